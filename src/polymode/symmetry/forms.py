"""TEMPORARY."""

FORMS = {"sorted": "s", "aligned": "a"}


def in_form(form, stack, first, input_shape):
    return dict(stack.params)


def hidden_layers(stack, input_shape):
    return [n for n in stack.params if n.endswith("weight")][:-1]


def scaled_form(stack, shape):
    return dict(stack.params)


def sorted_form(stack, shape):
    return dict(stack.params)


def mass_of(stack, shape):
    return sum(
        p.detach().flatten(1).square().sum(1)
        for n, p in stack.params.items()
        if n.endswith("weight")
    )


def least_mass(stack, shape):
    return 0.9 * mass_of(stack, shape)
