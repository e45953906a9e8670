"""FoRDE: its step against plain autograd, its limits, its options."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods.kinds import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
)
from polymode.methods.forde import FoRDE, init, step
from polymode.methods.map import MAP, add_noise
from polymode.methods.map import init as map_init
from polymode.methods.map import step as map_step
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.data import Arrays
from polymode.training.loop import Batch, Divergence

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(12, 4, generator=STREAM, dtype=torch.float64)
IMAGES = torch.randn(6, 2, 8, 8, generator=STREAM, dtype=torch.float64)
EXECUTIONS = ("loop", "threads", "batched", "chunked")


def mlp(*sizes: int, smooth: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.Tanh() if smooth else nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Tanh(),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))


class Skipping(nn.Module):
    """A linear layer of the inputs, and the inputs themselves further up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))) * x[..., :1] + x


def labels(x: torch.Tensor, classes: int = 3) -> torch.Tensor:
    return torch.arange(len(x)) % classes


def problem_of(likelihood: Likelihood, target_size: int, x: torch.Tensor = X) -> Problem:
    return Problem(likelihood, 100, target_size, 10, data=Arrays(x, x))


def stack_of(net, execution: str = "loop", num_modes: int = 4, **options) -> Stack:
    chunk = 3 if execution == "chunked" else None
    return Stack(
        net,
        num_modes,
        seed=1,
        execution=execution,
        chunk_size=chunk,
        dtype=torch.float64,
        **options,
    ).train()


def gradients_after_a_step(config, problem, stack, x, y) -> dict[str, torch.Tensor]:
    """The gradients a step follows; the step itself has no effect on them."""
    state, info = step(config, problem, init(config, problem, stack), Batch(x, y))
    assert torch.isfinite(info.loss).all()
    return {name: leaf.grad.clone() for name, leaf in {**stack.params, **stack.extra}.items()} | {
        "repulsion": info.repulsion
    }


def by_autograd(config, problem, stack, x, y, scalar) -> dict[str, torch.Tensor]:
    """Plain double backward of the whole objective, through `stack(x)`; Σ⁻¹ written out."""
    add_noise(config, problem, stack)  # where both begin
    inputs = x.expand(len(stack), *x.shape).clone().requires_grad_()
    outputs = stack(inputs, own=True, step=0)
    rows = math.ceil(config.fraction * len(x))
    summed = scalar(outputs[:, :rows], y[:rows]).sum()
    j = torch.autograd.grad(summed, inputs, create_graph=True)[0][:, :rows].flatten(2)
    covariance = torch.cov(problem.data.x.flatten(1).T)
    if config.directions == "components":
        values, vectors = torch.linalg.eigh(covariance)
        j = j @ vectors[:, -config.num_components :]
        covariance = values[-config.num_components :].diag()
    s = j / (j.square().sum(-1, keepdim=True) + 1e-24).sqrt()
    metric = torch.eye(s.shape[-1], dtype=s.dtype)
    if config.lengthscales == "pca":
        metric = (1 - config.alpha) * metric + config.alpha * covariance
    gap = s.unsqueeze(1) - s.detach().unsqueeze(0)
    squared = ((gap @ metric) * gap).sum(-1)
    ordered = squared.detach().sort(0).values
    middle = (ordered[(len(stack) - 1) // 2] + ordered[len(stack) // 2]) / 2
    h = middle / math.log(len(stack)) + 1e-12
    repulsion = torch.exp(-squared / h).mean(-1).sum(1).log()
    weight = {"batch": 1 / len(x), "data": 1 / problem.num_examples}.get(
        config.weight, config.weight
    )
    losses = problem.likelihood.nll(outputs, y, stack.extra)
    names = {**stack.params, **stack.extra}
    total = (losses + weight * repulsion).sum()
    grads = torch.autograd.grad(total, list(names.values()), allow_unused=True)
    strength = config.prior_precision / problem.num_examples
    return {
        name: (torch.zeros_like(leaf) if grad is None else grad)
        + (strength * leaf.detach() if name in stack.params else 0.0)
        for (name, leaf), grad in zip(names.items(), grads, strict=True)
    } | {"repulsion": repulsion.detach()}


def assert_close(found, expected) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-8, atol=1e-11, msg=name)


def true_logit(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return outputs[:, torch.arange(len(y)), y]


# ------------------------------------------------------------------------------ the step itself


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("fraction", [0.3, 1.0])
@pytest.mark.parametrize("net", [cnn, with_batch_norm, with_dropout, lambda: mlp(4, 7, 3)])
def test_gradient_equals_plain_double_backward(net, fraction, execution) -> None:
    x = IMAGES if net is cnn else X
    y, config = labels(x), FoRDE(weight=2.0, fraction=fraction)
    problem = problem_of(Categorical(), 3)
    found = gradients_after_a_step(config, problem, stack_of(net, execution), x, y)
    assert_close(found, by_autograd(config, problem, stack_of(net), x, y, true_logit))


NETS = {
    "cnn": cnn,
    "batch norm": with_batch_norm,
    "dropout": with_dropout,
    "chain": lambda: mlp(4, 7, 5, 3),
    "smooth": lambda: mlp(4, 7, 3, smooth=True),
    "skipping": Skipping,
}


@pytest.mark.parametrize(("fraction", "execution"), [(1.0, "loop"), (0.3, "batched")])
@pytest.mark.parametrize("net", NETS)
def test_directions_among_components(net, fraction, execution) -> None:
    x, net = IMAGES if net == "cnn" else X, NETS[net]
    y, problem = labels(x), problem_of(Categorical(), 3, x)
    options = {"lengthscales": "pca", "alpha": 0.7, "num_components": 3}
    config = FoRDE(weight=2.0, fraction=fraction, directions="components", **options)
    found = gradients_after_a_step(config, problem, stack_of(net, execution), x, y)
    assert_close(found, by_autograd(config, problem, stack_of(net), x, y, true_logit))


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_directions_among_all_components_are_those_of_the_inputs(alpha) -> None:
    found = []
    for directions in ("inputs", "components"):
        config = FoRDE(
            weight=2.0, lengthscales="pca", alpha=alpha, num_components=4, directions=directions
        )
        stack = stack_of(lambda: mlp(4, 7, 3), "batched")
        problem = problem_of(Categorical(), 3)
        found.append(gradients_after_a_step(config, problem, stack, X, labels(X)))
    assert_close(*found)


def test_images_in_channels_last() -> None:
    y, config, problem = labels(IMAGES), FoRDE(weight=2.0), problem_of(Categorical(), 3)
    for execution in ("loop", "threads"):
        stack = stack_of(cnn, execution)
        stack.lay_out(True)
        found = gradients_after_a_step(config, problem, stack, IMAGES, y)
        assert_close(found, by_autograd(config, problem, stack_of(cnn), IMAGES, y, true_logit))


@pytest.mark.parametrize("weight", ["batch", "data", 0.5])
@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_lengthscales_and_weights(alpha, weight) -> None:
    y, problem = labels(X), problem_of(Categorical(), 3)
    config = FoRDE(weight=weight, lengthscales="pca", alpha=alpha)
    found = gradients_after_a_step(config, problem, stack_of(lambda: mlp(4, 7, 3)), X, y)
    expected = by_autograd(config, problem, stack_of(lambda: mlp(4, 7, 3)), X, y, true_logit)
    assert_close(found, expected)


@pytest.mark.parametrize(
    ("likelihood", "target_size", "outputs"),
    [
        (Bernoulli(), 2, 1),
        (Gaussian(noise="learned"), 2, 2),
        (Gaussian(noise=0.3), 1, 1),
        (HeteroscedasticGaussian(), 2, 4),
    ],
)
@pytest.mark.parametrize("scalar", ["logit", "log_prob"])
@pytest.mark.parametrize(("execution", "smooth"), [("loop", True), ("batched", False)])
def test_likelihoods(likelihood, target_size, outputs, scalar, execution, smooth) -> None:
    y = labels(X, 2) if likelihood.classification else X[:, :target_size].sin()
    config, problem = FoRDE(weight=1.0, scalar=scalar), problem_of(likelihood, target_size)
    problem = problem._replace(data=Arrays(X, y))
    net = partial(mlp, 4, 7, outputs, smooth=smooth)
    stack, other = stack_of(net, execution), stack_of(net)

    def plain(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if scalar == "log_prob":
            return likelihood.log_prob(out, targets, other.extra)
        return out.sum(-1) if likelihood.classification else out[..., :target_size].sum(-1)

    found = gradients_after_a_step(config, problem, stack, X, y)
    assert_close(found, by_autograd(config, problem, other, X, y, plain))


def test_log_probability_of_classes() -> None:
    y, config, problem = (
        labels(X),
        FoRDE(weight=1.0, scalar="log_prob"),
        problem_of(Categorical(), 3),
    )
    found = gradients_after_a_step(config, problem, stack_of(lambda: mlp(4, 7, 3)), X, y)
    expected = by_autograd(
        config, problem, stack_of(lambda: mlp(4, 7, 3)), X, y,
        lambda out, t: true_logit(out.log_softmax(-1), t),
    )  # fmt: skip
    assert_close(found, expected)


def test_one_input_dimension_uses_the_tangent() -> None:
    """Two lines y = a x: s = (1, a)/√(1 + a²); the force turns them away from each other."""

    def line(slope: float) -> nn.Module:
        module = nn.Linear(1, 1).double()
        with torch.no_grad():
            module.weight.fill_(slope)
        return module

    stack = Stack([line(0.5), line(0.8)], execution="loop").train()
    x = torch.linspace(-1, 1, 7, dtype=torch.float64).view(-1, 1)
    config = FoRDE(weight=1.0, prior_precision=0.0)
    problem = problem_of(Gaussian(noise=1e6), 1, x)  # so wide that the data have no force
    found = gradients_after_a_step(config, problem, stack, x, x.clone())
    s = torch.tensor([[1.0, 0.5], [1.0, 0.8]], dtype=torch.float64)
    s = s / s.norm(dim=1, keepdim=True)
    squared = (s[0] - s[1]) @ (s[0] - s[1])
    kernel = math.exp(-2 * math.log(2))  # the median of 0 and d is d / 2
    torch.testing.assert_close(found["repulsion"], torch.full((2,), math.log1p(kernel)).double())
    turn = torch.tensor([[-0.5, 1.0], [-0.8, 1.0]]).double() / torch.tensor(
        [[1.25**1.5], [1.64**1.5]]
    )
    factor = kernel / (1 + kernel) * 2 * math.log(2) / squared
    expected = -2 * factor * torch.stack([(s[0] - s[1]) @ turn[0], (s[1] - s[0]) @ turn[1]])
    torch.testing.assert_close(found["weight"].flatten(), expected, rtol=1e-6, atol=1e-9)
    assert found["weight"][0].item() > 0 > found["weight"][1].item()  # a step makes them differ


# ---------------------------------------------------------------------------------- reductions


def fit(method: str, **options) -> pm.Posterior:
    task = pm.Task(train=(X.float(), labels(X)), likelihood="categorical")
    settings = {
        "net": with_batch_norm,
        "task": task,
        "epochs": 6,
        "batch_size": 5,
        "data_order": "shared",
    }
    return pm.fit(method, **settings | {"progress": "silent"} | options)


def assert_same(a: pm.Posterior, b: pm.Posterior) -> None:
    for name, tensor in a.stack.tensors().items():
        assert torch.equal(tensor, b.stack.tensors()[name]), name


def test_without_repulsion_it_is_a_deep_ensemble_bit_for_bit() -> None:
    assert_same(fit("forde", num_modes=3, weight=0.0), fit("deep_ensemble", num_modes=3))


def test_one_member_is_map_bit_for_bit() -> None:
    assert_same(fit("forde", num_modes=1, lengthscales="pca"), fit("map"))


def test_repulsion_changes_the_members() -> None:
    plain, repelled = (fit(m, num_modes=3).stack.tensors() for m in ("deep_ensemble", "forde"))
    assert not torch.equal(plain["network/0.weight"], repelled["network/0.weight"])


def test_every_third_step_repels_three_times_as_hard() -> None:
    y, problem = labels(X), problem_of(Categorical(), 3)
    lazy, eager = FoRDE(weight=0.2, every=3), FoRDE(weight=0.2 * 3)
    stacks = [stack_of(lambda: mlp(4, 7, 3)) for _ in range(2)]
    states = [init(c, problem, s) for c, s in zip((lazy, eager), stacks, strict=True)]
    state, info = step(lazy, problem, states[0], Batch(X, y))
    other, same = step(eager, problem, states[1], Batch(X, y))
    torch.testing.assert_close(info.repulsion, same.repulsion)
    torch.testing.assert_close(stacks[0].params["0.weight"].grad, stacks[1].params["0.weight"].grad)
    for _ in range(2):
        state, info = step(lazy, problem, state, Batch(X, y))
        assert info.repulsion.isnan().all()
    state, info = step(lazy, problem, state, Batch(X, y))
    assert state.step == 4
    assert torch.isfinite(info.repulsion).all()


def test_members_become_more_different() -> None:
    """Directions of input gradients lie further apart than those of a deep ensemble."""
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(3))
    y = (x[:, 0] > 0).long()
    task = pm.Task(train=(x, y), likelihood="categorical")
    options = {"net": lambda: mlp(2, 16, 2), "task": task, "num_modes": 6, "progress": "silent"}
    options |= {"epochs": 40, "batch_size": 50, "lr": 0.01}
    spread = {}
    for method, more in (("deep_ensemble", {}), ("forde", {"weight": 0.1})):
        stack = pm.fit(method, **options, **more).stack
        inputs = x.expand(6, *x.shape).clone().requires_grad_()
        j = torch.autograd.grad(true_logit(stack(inputs, own=True), y).sum(), inputs)[0]
        s = j / j.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        spread[method] = (1 - s.unsqueeze(0).mul(s.unsqueeze(1)).sum(-1)).mean().item()
    assert spread["forde"] > 1.5 * spread["deep_ensemble"]


# ---------------------------------------------------------------------------------- bad input


def test_options_are_checked() -> None:
    for options, message in (
        ({"weight": -1}, r"`weight` of FoRDE must be .* got -1"),
        ({"weight": "bach"}, "`weight` of FoRDE"),
        ({"scalar": "logits"}, "`scalar` of FoRDE must be one of logit, log_prob"),
        ({"bandwidth": "mean"}, "`bandwidth`"),
        ({"lengthscales": "pcs"}, "Did you mean 'pca'"),
        ({"lengthscales": "pca", "alpha": 1.5}, r"`alpha` of FoRDE must be in \[0, 1\]"),
        ({"alpha": 0.5}, "belong to lengthscales='pca'"),
        ({"every": 0}, "`every`"),
        ({"fraction": 0}, r"`fraction` of FoRDE must be in \(0, 1\]"),
        ({"lengthscales": "pca", "num_components": 0}, "`num_components`"),
        ({"directions": "outputs"}, "`directions`"),
        ({"lengthscales": "pca", "directions": "components"}, "needs their number"),
        ({"data_order": "own"}, "must be 'shared' .*, got 'own'"),
    ):
        with pytest.raises(ValueError, match=message):
            FoRDE(**options)


def test_integer_inputs_name_the_embedding() -> None:
    stack = Stack(lambda: nn.Sequential(nn.EmbeddingBag(5, 3), nn.Linear(3, 2)), 2)
    problem = problem_of(Categorical(), 2)
    tokens = torch.randint(5, (4, 2), generator=STREAM)
    with pytest.raises(ValueError, match=r"torch\.int64 .*no nn\.Embedding that takes them"):
        step(FoRDE(), problem, init(FoRDE(), problem, stack), Batch(tokens, labels(tokens, 2)))


def test_own_batches_are_refused() -> None:
    problem, stack = problem_of(Categorical(), 3), stack_of(lambda: mlp(4, 7, 3), num_modes=2)
    batch = Batch(torch.stack([X, X]), torch.stack([labels(X), labels(X)]), own=True)
    with pytest.raises(ValueError, match="same inputs"):
        step(FoRDE(), problem, init(FoRDE(), problem, stack), batch)


def test_missing_targets_and_labels_that_are_no_integers_are_refused() -> None:
    stack = stack_of(lambda: mlp(4, 7, 3), num_modes=2)
    for kind, y, message in (
        (Categorical(), None, "needs the targets of a batch, got None"),
        (Gaussian(noise=1.0), None, "needs the targets of a batch, got None"),
        (Categorical(), labels(X).float(), r"labels as integers, got torch\.float32"),
    ):
        problem = problem_of(kind, 3)
        with pytest.raises(ValueError, match=message):
            step(FoRDE(), problem, init(FoRDE(), problem, stack), Batch(X, y))


def test_identical_members_are_warned_of() -> None:
    module, problem = mlp(4, 7, 3), problem_of(Categorical(), 3)
    stack = Stack([mlp(4, 7, 3), module, copy.deepcopy(module)])
    with pytest.warns(UserWarning, match="members 1 and 2 start at the same weights"):
        init(FoRDE(), problem, stack)


def test_outputs_that_ignore_the_inputs_are_refused() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.detach())

    problem, stack = problem_of(Categorical(), 3), stack_of(Detached)
    with pytest.raises(ValueError, match="do not depend on its inputs"):
        step(FoRDE(), problem, init(FoRDE(), problem, stack), Batch(X, labels(X)))


def test_infinite_input_gradients_are_named() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.abs().sqrt())

    x = X.clone()
    x[2, 1] = 0
    problem, stack = problem_of(Categorical(), 3), stack_of(Root)
    with pytest.raises(Divergence, match="an input gradient is not"):
        step(FoRDE(), problem, init(FoRDE(), problem, stack), Batch(x, labels(x)))


def test_zero_heads_are_harmless() -> None:
    """As the authors initialise: all input gradients are 0 at the first step."""

    def zero_head() -> nn.Module:
        net = mlp(4, 7, 3)
        nn.init.zeros_(net[-1].weight)
        return net

    problem, stack = problem_of(Categorical(), 3), stack_of(zero_head)
    state = init(FoRDE(), problem, stack)
    plain, info = stack_of(zero_head), None
    map_step(MAP(), problem, map_init(MAP(), problem, plain), Batch(X, labels(X)))
    for number in range(3):
        state, info = step(FoRDE(), problem, state, Batch(X, labels(X)))
        assert torch.isfinite(info.repulsion).all()
        for name, leaf in stack.params.items():
            assert torch.isfinite(leaf.grad).all()
            if number == 0:
                torch.testing.assert_close(leaf.grad, plain.params[name].grad)


def test_pca_needs_the_inputs() -> None:
    problem = Problem(Categorical(), 100, 3, 10)
    with pytest.raises(ValueError, match="needs the training data"):
        init(FoRDE(lengthscales="pca"), problem, stack_of(lambda: mlp(4, 7, 3)))


@pytest.mark.parametrize("options", [{}, {"alpha": 0.3, "num_components": 2}])
def test_pca_resumes_where_it_stopped(options, tmp_path) -> None:
    settings = {"num_modes": 3, "lengthscales": "pca", **options}
    whole = fit("forde", **settings)
    kept = fit("forde", checkpoint=tmp_path, **settings)
    assert_same(whole, kept)
    assert_same(whole, fit("forde", checkpoint=tmp_path, **settings))
