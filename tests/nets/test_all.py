"""What every network of the room must do: run in a stack, be differentiated twice and forward, be
mapped over parameters, learn.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap

from polymode import nets
from polymode.core.rng import global_stream
from polymode.likelihoods.kinds import Categorical
from polymode.nets.filter_response import FilterResponseNorm2d
from polymode.nets.resnet import Scale, Shift
from polymode.stack.fast.plan import Plan
from polymode.stack.stack import Stack

PLANS = {
    "loop": Plan("loop"),
    "batched": Plan("batched"),
    "chunked": Plan("chunked", chunk_size=2),
    "threads": Plan("threads"),
    "channels_last": Plan("threads", channels_last=True),
    "wide": Plan("threads", channels_last=True, wide=True),
    "auto": None,
}

# torch compiles its rules for the forward derivative at the first use, by a function it deprecates
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


@dataclass(frozen=True)
class Case:
    """A small version of a network."""

    make: Callable[..., nn.Module]
    shape: tuple[int, ...]
    outputs: int = 3

    def __call__(self) -> nn.Module:
        return self.make(self.shape, self.outputs)


small = partial(nets.resnet8, width=4)
CASES = {
    "mlp": Case(partial(nets.mlp, hidden=(6, 5), activation="tanh", bias=False), (4,)),
    "mlp-batch": Case(partial(nets.mlp, hidden=(6, 5), norm="batch", activation="mish"), (4,)),
    "mlp-erf-dropout": Case(
        partial(nets.mlp, hidden=(6,), activation="erf", dropout=0.3, input_dropout=0.2), (1, 2, 2)
    ),
    "mlp-prelu": Case(partial(nets.mlp, hidden=(6, 5), activation=nn.PReLU, norm="layer"), (4,)),
    "tabular": Case(partial(nets.tabular, codes=[(1, 5), (2, 40)], hidden=(6,)), (4,)),
    "optunet": Case(nets.optunet, (1, 18, 20)),
    "lenet": Case(nets.lenet, (1, 8, 8)),
    "cnn": Case(partial(nets.cnn, channels=(4, 4), hidden=8), (1, 8, 8)),
    "resnet8": Case(small, (2, 8, 8)),
    "resnet8-padding": Case(partial(small, shortcut="padding"), (2, 8, 6)),
    "resnet8-preactivation": Case(partial(small, preactivation=True), (2, 8, 8)),
    "resnet8-dropout": Case(partial(small, dropout=0.2), (2, 8, 8)),
    "resnet8-frn": Case(
        partial(small, norm="filter_response", activation="silu", bias=True), (2, 8, 8)
    ),
    "resnet8-fixup": Case(partial(small, norm=None), (2, 8, 8)),
    "resnet8-fixup-padding": Case(partial(small, norm=None, shortcut="padding"), (2, 8, 8)),
    "resnet20": Case(partial(nets.resnet20, width=2), (2, 8, 8)),
    "resnet18": Case(partial(nets.resnet18, width=2), (2, 8, 8)),
    "vit": Case(partial(nets.vit, patch=2, dim=8, depth=2, heads=2), (2, 4, 6)),
    "vit-mean-dropout": Case(
        partial(nets.vit, patch=2, dim=8, depth=1, heads=4, pool="mean", dropout=0.2), (2, 4, 4)
    ),
    "unet": Case(partial(nets.unet, channels=(4, 6, 4), skips=(2, 1), sigmoid=True), (1, 7, 8)),
    "unet-group": Case(
        partial(nets.unet, channels=(4, 8, 4), skips=(0, 2), norm="group", blank_skips=True),
        (1, 8, 9),
        outputs=1,
    ),
}
TELLING = ("mlp-batch", "resnet8-dropout", "vit-mean-dropout")  # all kinds of layers and noise
RANDOM = {name for name in CASES if "dropout" in name}
every = pytest.mark.parametrize("case", [pytest.param(c, id=name) for name, c in CASES.items()])
fixed = pytest.mark.parametrize(
    "case", [pytest.param(c, id=name) for name, c in CASES.items() if name not in RANDOM]
)


@pytest.fixture(autouse=True)
def _one_thread():
    """Several threads within tiny operations only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randomised(case: Case, seed: int = 0) -> nn.Module:
    """A float64 network in which no parameter or statistic has the special value it starts at."""
    with global_stream(seed):
        net = case().double().eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
            for name, buffer in net.named_buffers():
                if name.endswith("running_mean"):
                    buffer += 0.1 * torch.randn_like(buffer)
                elif name.endswith("running_var"):
                    buffer *= 0.2 + 0.3 * torch.rand_like(buffer)
    return net


def inputs(case: Case, batch: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, *case.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def direction(tensors: dict[str, Tensor], seed: int = 2) -> dict[str, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(t.shape, generator=stream, dtype=t.dtype) for name, t in tensors.items()
    }


def dot(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
    return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()


def moved(a: dict[str, Tensor], b: dict[str, Tensor], step: float) -> dict[str, Tensor]:
    return {name: a[name] + step * b[name] for name in a}


def function_of(net: nn.Module) -> tuple[Callable[[dict[str, Tensor], Tensor], Tensor], dict]:
    """Return f(params, x), with statistics of the batch if the network is in training mode."""
    params = {name: p.detach() for name, p in net.named_parameters()}

    def f(params: dict[str, Tensor], x: Tensor) -> Tensor:
        buffers = {name: b.clone() for name, b in net.named_buffers()}
        return functional_call(net, (params, buffers), (x,))

    return f, params


def square_loss(outputs: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
    """Mean over examples, for logits (..., B, K) and images (..., B, K, H, W) alike."""
    return (outputs - y).square().mean(tuple(range(-y.dim(), 0)))


# -------------------------------------------------------------------- stacks


@pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name) for name in TELLING])
def test_executions_agree(case) -> None:
    """Losses, gradients, outputs and statistics after three training passes, to 1e-10.

    That every network runs in a stack is shown by its second derivatives.
    """
    x = inputs(case)
    y = torch.zeros_like(randomised(case)(x).detach())
    results, members, draws = {}, [randomised(case, seed) for seed in range(3)], {}
    for execution, plan in PLANS.items():
        stack = Stack(members).train()
        stack._random = draws  # whether the network draws, found out once, with one thread
        if plan is not None:
            stack.lay_out(plan.channels_last)
            stack.plans = {"gradients": plan, "outputs": plan}
            torch.set_num_threads(2 if plan.execution == "threads" else 1)
        for step in range(3):
            losses = stack.gradients(square_loss, x, y, step=step)
        with torch.no_grad():
            outputs = stack.eval()(x)
        gradient = torch.cat([leaf.grad.flatten(1) for leaf in stack.leaves()], dim=1)
        results[execution] = [losses, gradient, outputs, *stack.buffers.values()]
        torch.set_num_threads(1)
    for execution, result in results.items():
        for mine, theirs in zip(result, results["loop"], strict=True):
            scale = theirs.abs().max().item() + 1e-30
            assert (mine - theirs).abs().max().item() <= 1e-10 * scale, execution


@fixed
def test_double_backward_through_the_stack(case) -> None:
    """The gradient, for the parameters, of the size of input gradients: batched as in a loop."""
    x = inputs(case, 3).requires_grad_()
    results = []
    for execution in ("batched", "loop"):
        stack = Stack([randomised(case, seed) for seed in range(2)], execution=execution).train()
        (slope,) = torch.autograd.grad(stack(x).sum(), x, create_graph=True)
        results.append(
            torch.autograd.grad(
                slope.square().sum(), list(stack.params.values()), materialize_grads=True
            )
        )
    scale = max(theirs.abs().max().item() for theirs in results[1])
    for mine, theirs in zip(*results, strict=True):
        assert (mine - theirs).abs().max().item() <= 1e-10 * scale


def test_batch_norm_has_statistics_of_each_member() -> None:
    case = CASES["resnet8"]
    x, modules = inputs(case), [randomised(case, seed).train() for seed in range(3)]
    for execution in ("loop", "batched", "threads", "chunked"):
        stack = Stack(modules, execution=execution, chunk_size=2).train()
        stack.gradients(square_loss, x, torch.zeros(5, 3, dtype=torch.float64))
        for k, module in enumerate(copy.deepcopy(modules)):
            module(x)
            for name, value in module.named_buffers():
                torch.testing.assert_close(stack.buffers[name][k], value)
    name = "layer2.0.shortcut.1.running_mean"
    assert (stack.buffers[name][0] - stack.buffers[name][1]).abs().max() > 1e-3


# -------------------------------------------------------------------- derivatives


@fixed
def test_double_backward_against_differences(case) -> None:
    """d/d params of |d output / d x|^2, with statistics of the batch."""
    f, params = function_of(randomised(case).train())
    x, v = inputs(case, 3), direction(params)

    def size(params: dict[str, Tensor], graph: bool = False) -> Tensor:
        here = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(f(params, here)[:, 0].sum(), here, create_graph=graph)
        return slope.square().sum()

    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    grads = torch.autograd.grad(
        size(leaves, graph=True), list(leaves.values()), materialize_grads=True
    )
    exact = dot(dict(zip(params, grads, strict=True)), v)
    step = 1e-6
    differences = (size(moved(params, v, step)) - size(moved(params, v, -step))) / (2 * step)
    assert exact.abs() > 1e-4
    torch.testing.assert_close(exact, differences, rtol=1e-5, atol=1e-8)


@fixed
def test_forward_derivative(case) -> None:
    """Against differences, and <u, J v> = <J^T u, v>."""
    f, params = function_of(randomised(case))
    x, v, step = inputs(case, 3), direction(params), 1e-6
    outputs, along = jvp(lambda p: f(p, x), (params,), (v,))
    differences = (f(moved(params, v, step), x) - f(moved(params, v, -step), x)) / (2 * step)
    assert along.abs().min() > 1e-8
    torch.testing.assert_close(along, differences, rtol=1e-5, atol=1e-7)
    u = direction({"": outputs})[""]
    (back,) = vjp(lambda p: f(p, x), params)[1](u)
    torch.testing.assert_close((u * along).sum(), dot(back, v), rtol=1e-10, atol=1e-12)


@fixed
def test_curvature_forward_over_reverse(case) -> None:
    """Hessian times vector: forward over reverse equals reverse over reverse."""
    f, params = function_of(randomised(case))
    x, v = inputs(case, 3), direction(params)
    slope = grad(lambda p: f(p, x).square().mean())
    forward = jvp(slope, (params,), (v,))[1]
    reverse = grad(lambda p: dot(slope(p), v))(params)
    for name in params:
        torch.testing.assert_close(forward[name], reverse[name], rtol=1e-8, atol=1e-10)


@fixed
def test_maps_over_parameters_and_examples(case) -> None:
    """`vmap` over members, and the gradient of each example's own loss."""
    members = [randomised(case, seed) for seed in range(3)]
    x = inputs(case)
    f, params = function_of(members[0])
    stacked = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in members])
        for name in params
    }
    buffers = {
        name: torch.stack([dict(m.named_buffers())[name] for m in members])
        for name, _ in members[0].named_buffers()
    }
    mapped = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(stacked, buffers)
    torch.testing.assert_close(mapped, torch.stack([m(x).detach() for m in members]))

    def loss(params: dict[str, Tensor], example: Tensor) -> Tensor:
        return functional_call(members[0], params, (example[None],)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(params, x)
    for name, value in grad(loss)(params, x[2]).items():
        torch.testing.assert_close(each[name][2], value)


@every
def test_every_parameter_is_used(case) -> None:
    net = randomised(case)
    net(inputs(case)).square().sum().backward()
    unused = [name for name, p in net.named_parameters() if not p.grad.abs().max() > 0]
    assert not unused


# -------------------------------------------------------------------- modules


@every
def test_examples_do_not_see_each_other_in_evaluation(case) -> None:
    net, x = randomised(case), inputs(case)
    outputs = net(x)
    assert outputs.dtype == torch.float64
    assert outputs.shape[:2] == (5, case.outputs)
    torch.testing.assert_close(net(x[1:3]), outputs[1:3])


@every
def test_state_goes_to_another_network_and_back(case) -> None:
    net, other, x = randomised(case), case().double().eval(), inputs(case)
    assert (other(x) - net(x)).abs().max() > 1e-6
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x), net(x))


KNOWN = {
    nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.PReLU,
    FilterResponseNorm2d, Shift, Scale, nn.Embedding,
}  # fmt: skip


@every
def test_parameters_belong_to_layers_that_curvature_code_can_know(case) -> None:
    """By exact type; only the token and the positions of a transformer stand by themselves."""
    for path, module in case().named_modules():
        own = {name for name, _ in module.named_parameters(recurse=False)}
        assert type(module) in KNOWN or own <= {"token", "positions"}, (path, own)


@fixed
def test_fits_sixteen_random_images(case) -> None:
    """Float32, Adam: random labels (for U-Nets smoothed images) are learnt by heart.

    The loss must fall below a fifth of what the best constant gives. Of four members the best one
    counts for OptuNet, in which a start with all three last units dead stays so.
    """
    stack = Stack(case, 4 if case.make is nets.optunet else 1, execution="loop").train()
    x = inputs(case, 16, torch.float32)
    with torch.no_grad():
        images = stack(x).dim() == 5
    if images:
        y, loss = F.avg_pool2d(x, 3, 1, 1).sigmoid(), square_loss
        constant = (y - y.mean()).square().mean().item()
    else:
        y, loss, constant = torch.arange(16) % 2, Categorical().nll, math.log(2)
    optimizer = torch.optim.Adam(stack.leaves(), lr=0.01)
    for _ in range(400):
        best = stack.gradients(loss, x, y).min().item()
        optimizer.step()
        if best < 0.2 * constant:
            return
    raise AssertionError(f"loss {best:.3f}, of a constant {constant:.3f}")


IMAGES = [
    nets.optunet,
    nets.lenet,
    nets.cnn,
    nets.resnet8,
    nets.resnet20,
    nets.resnet18,
    nets.vit,
    nets.unet,
]


@pytest.mark.parametrize("make", [nets.mlp, *IMAGES])
@pytest.mark.parametrize(
    ("shape", "outputs", "message"),
    [
        ((), 3, "shape of one example without the batch axis"),
        ((1, 0, 28), 3, "shape of one example"),
        (28, 3, "shape of one example"),
        ((1, 28, 28), 0, "`num_outputs` of .* must be >= 1, got 0"),
    ],
)
def test_bad_sizes(make, shape, outputs, message) -> None:
    with pytest.raises(ValueError, match=message):
        make(shape, outputs)


@pytest.mark.parametrize("make", IMAGES)
@pytest.mark.parametrize("shape", [(28, 28), (784,), (1, 1, 28, 28)])
def test_images_have_three_axes(make, shape) -> None:
    with pytest.raises(ValueError, match=r"takes images of shape \(C, H, W\), got input_shape \("):
        make(shape, 10)


@pytest.mark.parametrize(
    ("make", "smallest"),
    [
        (nets.optunet, 18),
        (nets.lenet, 4),
        (nets.resnet8, 4),
        (nets.resnet20, 4),
        (nets.resnet18, 8),
        (nets.unet, 4),
    ],
)
def test_smallest_image(make, smallest) -> None:
    net = make((1, smallest, smallest), 2).eval()
    assert net(torch.zeros(2, 1, smallest, smallest)).shape[:2] == (2, 2)
    with pytest.raises(ValueError, match=f"at least {smallest}x{smallest} pixels.*, got 28x"):
        make((1, 28, smallest - 1), 2)


def test_all_are_named() -> None:
    assert nets.__all__ == [
        "mlp", "optunet", "lenet", "cnn", "resnet8", "resnet20", "resnet18", "resnet", "vit",
        "unet", "tabular",
    ]  # fmt: skip
    tested = {getattr(case.make, "func", case.make) for case in CASES.values()}
    assert tested == {getattr(nets, name) for name in nets.__all__ if name != "resnet"}
