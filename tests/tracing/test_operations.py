"""The table of operations against the numbers: entries, scales and units of tiny networks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode import symmetry
from polymode.methods.laplace.prior_groups import normalised_sets
from polymode.stack.fast.dense import dense_forward
from polymode.stack.stack import Stack
from polymode.tracing.operations import KINDS, MODULES, TABLE, name_of, operation

pytestmark = pytest.mark.filterwarnings("ignore:.*upsample:UserWarning")

# arguments after the inputs, where there must be some or the usual ones would show too little
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "threshold": (0.1, 2.0), "pow": (1.5,), "clamp": (-1.0, 0.5), "clip": (-1.0, 0.5),
    "clamp_min": (-1.0,), "clamp_max": (0.5,), "to": (torch.float64,),
    "flatten": (1,), "reshape": ((-1,),), "view": (-1,), "unflatten": (1, (2, 2)),
    "permute": ((1, 0, 2, 3),), "transpose": (0, 1), "swapaxes": (0, 1), "swapdims": (0, 1),
    "movedim": (0, 1), "moveaxis": (0, 1), "getitem": (0,), "select": (1, 0), "narrow": (1, 0, 2),
    "chunk": (2, 1), "split": (2, 1), "tensor_split": (2, 1), "expand": (2, 4, 6, 6),
    "repeat": (2, 1, 1, 1), "flip": ((1,),), "roll": (1,), "tile": ((2,),), "unsqueeze": (0,),
    "broadcast_to": ((2, 4, 6, 6),), "index_select": (1, torch.tensor([2, 0])),
    "pixel_shuffle": (2,), "pixel_unshuffle": (2,), "channel_shuffle": (2,),
    "repeat_interleave": (2,), "view_as": (torch.empty(4, 2, 6, 6),),
    "reshape_as": (torch.empty(4, 2, 6, 6),), "expand_as": (torch.empty(2, 4, 6, 6),),
    "type_as": (torch.empty(1, dtype=torch.float64),), "pad": ((1, 2),),
    "adaptive_avg_pool1d": (2,), "adaptive_avg_pool2d": (2,), "adaptive_avg_pool3d": (2,),
    "adaptive_max_pool1d": (2,), "adaptive_max_pool2d": (2,), "adaptive_max_pool3d": (2,),
    "lp_pool2d": (2.0, 2), "interpolate": (None, 2), "upsample": (None, 2),
    "mean": (1,), "sum": (1,), "amax": (1,), "amin": (1,), "std": (1,), "var": (1,),
    "norm": (2.0, 1), "logsumexp": (1,), "max": (1,), "min": (1,), "topk": (2,), "sort": (1,),
    "softmax": (1,), "log_softmax": (1,),
}  # fmt: skip
ARGUMENTS |= {name: (2,) for name in TABLE if "pool" in name and name not in ARGUMENTS}
ARGUMENTS |= {name: (0.5, False) for name in TABLE if "dropout" in name}
POSITIVE = {"log", "log1p", "sqrt", "rsqrt", "pow"}
TWO = ("sum", "product", "quotient", "comparison", "matrix product")
MODULE_ARGUMENTS: dict[type[nn.Module], tuple[Any, ...]] = {
    nn.Threshold: (0.1, 2.0), nn.PixelShuffle: (2,), nn.PixelUnshuffle: (2,),
    nn.ChannelShuffle: (2,), nn.ZeroPad2d: (1,), nn.Unflatten: (1, (2, 2)),
    nn.Softmax: (1,), nn.LogSoftmax: (1,), nn.Upsample: (None, 2),
    nn.UpsamplingBilinear2d: (None, 2), nn.UpsamplingNearest2d: (None, 2),
}  # fmt: skip
MODULE_ARGUMENTS |= {kind: (2,) for kind in MODULES if "Pool" in kind.__name__}
MODULE_ARGUMENTS[nn.LPPool2d] = (2.0, 2)


def example(name: str, seed: int = 0) -> Tensor:
    shape = (2, 4, 6) if name.endswith("1d") else (2, 4, 6, 6, 6) if name.endswith("3d") else None
    if name in ("t", "T", "mT", "msort", "bmm"):
        shape = (4, 6) if name != "bmm" else (4, 6, 6)
    x = 2 * torch.randn(
        shape or (2, 4, 6, 6), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return x.abs() + 0.1 if name in POSITIVE else x


def first(result: Any) -> Tensor:
    """The values of a result, or the first of several."""
    return result[0] if isinstance(result, (tuple, list)) else result


def calls(name: str) -> list[tuple[Any, Callable[..., Tensor]]]:
    """Every way to call an operation, as (what is called, function of the inputs)."""
    arguments = ARGUMENTS.get(name, ())
    found: list[tuple[Any, Callable[..., Tensor]]] = []
    for home in (operator, torch, F, torch._C._nn):
        function = getattr(home, name, None)
        if callable(function) and name_of(function) == name:
            found.append((function, lambda *x, f=function: first(f(*x, *arguments))))
    if callable(method := getattr(Tensor, name, None)):
        found.append((name, lambda *x: first(method(*x, *arguments))))
    elif method is not None:
        found.append((name, lambda x: getattr(x, name)))
    for kind, other in MODULES.items():
        if other == name and name != "prelu":
            layer = kind(*MODULE_ARGUMENTS.get(kind, ())).eval()
            found.append((layer, lambda x, f=layer: first(f(x))))
    return found


def known_calls() -> list[Any]:
    out = {"shape", "linear", "attention", "choice", "join", "slopes"}
    names = [name for name, entry in TABLE.items() if entry.kind not in out]
    return [
        pytest.param(name, target, function, id=f"{name}-{number}")
        for name in names
        for number, (target, function) in enumerate(calls(name))
    ]


def inputs(name: str, scale: float = 1.0) -> tuple[Tensor, ...]:
    both = (example(name), example(name, 1))[: 2 if TABLE[name].kind in TWO else 1]
    return tuple(scale * x for x in both)


def entry_of(name: str, target: Any) -> Any:
    arguments = () if isinstance(target, nn.Module) else ARGUMENTS.get(name, ())
    return operation(target, (*inputs(name), *arguments))


@pytest.mark.parametrize(("name", "target", "function"), known_calls())
def test_degrees(name, target, function) -> None:
    """A claimed degree holds; where none is claimed, no power of the scale fits."""
    result, scaled = (function(*inputs(name, s)).double() for s in (1.0, 3.0))
    degree = entry_of(name, target).degree
    if degree is not None:
        rounding = 1e-2 if name in ("half", "bfloat16") else 1e-4 if name == "float" else 1e-12
        torch.testing.assert_close(scaled, 3.0**degree * result, rtol=rounding, atol=1e-9)
        return
    largest = result.abs().argmax()
    factor = scaled.flatten()[largest] / result.flatten()[largest]
    assert not torch.allclose(scaled, factor * result, rtol=1e-3)


@pytest.mark.parametrize(("name", "target", "function"), known_calls())
def test_kinds(name, target, function) -> None:
    """What depends on what, by changing, relabelling or reordering entries."""
    entry, (x, *others) = entry_of(name, target), inputs(name)
    assert entry.kind in KINDS
    changed = x.clone()
    if entry.entrywise or entry.kind == "random":
        changed[0, 1] += 0.7
        same = torch.ones_like(x, dtype=torch.bool)
        same[0, 1] = False
        before, after = function(x, *others), function(changed, *others)
        assert before.shape == x.shape and torch.equal(before[same], after[same])
    elif entry.kind == "pooling":
        changed[:, 1] += 0.7
        keep = [0, 2, 3]
        assert torch.equal(function(x)[:, keep], function(changed)[:, keep])
    elif entry.kind in ("moving", "padding"):
        labels = torch.arange(1.0, x.numel() + 1).double().view(x.shape)
        result = set(function(labels).flatten().tolist())
        assert result <= {*labels.flatten().tolist(), 0.0} and len(result) > 1
    elif entry.kind in ("reduction", "extremum", "softmax"):
        order = torch.tensor([2, 0, 3, 1])
        before, after = function(x), function(x[:, order])
        expected = before[:, order] if entry.kind == "softmax" and before.dim() == 4 else before
        if not isinstance(target, nn.Softmax2d):
            torch.testing.assert_close(after, expected)


def test_all_of_the_table_is_tried() -> None:
    tried = {parameter.values[0] for parameter in known_calls()}
    elsewhere = {"shape", "linear", "attention", "choice", "join", "slopes"}
    missing = {n for n, entry in TABLE.items() if entry.kind not in elsewhere} - tried
    assert not missing


class Tiny(nn.Module):
    """A layer, an operation, a norm or none, a layer."""

    def __init__(self, operation: Any, norm: bool = False) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, 4), nn.Linear(4, 2)
        self.norm = nn.RMSNorm(4, eps=1e-300) if norm else nn.Identity()
        self.layer = operation if isinstance(operation, nn.Module) else None
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.norm(self.operation(self.enter(x))))


UNITS: dict[str, Callable[[], Any]] = {
    "relu": nn.ReLU, "leaky": nn.LeakyReLU, "rrelu": nn.RReLU, "prelu": nn.PReLU,
    "slopes": lambda: nn.PReLU(4), "celu": nn.CELU, "hardsigmoid": nn.Hardsigmoid,
    "logsigmoid": nn.LogSigmoid, "elu": nn.ELU, "selu": nn.SELU, "gelu": nn.GELU,
    "tanh": nn.Tanh, "hardtanh": nn.Hardtanh, "relu6": nn.ReLU6, "softshrink": nn.Softshrink,
    "threshold": lambda: nn.Threshold(0.1, 2.0), "relu as threshold": lambda: nn.Threshold(0, 0),
    "dropout1d": nn.Dropout1d, "alpha dropout": nn.AlphaDropout,
    "relu as clamp": lambda: lambda h: h.clamp(min=0), "clamp": lambda: lambda h: h.clamp(-1, 1),
    "abs": lambda: torch.abs, "negative": lambda: lambda h: -h, "half": lambda: lambda h: h / 2,
    "inverse": lambda: lambda h: 2 / (h.square() + 1.0), "square": lambda: torch.square,
    "sign": lambda: torch.sign, "floor": lambda: torch.floor,
    "rounded quotient": lambda: lambda h: torch.div(h, 0.3, rounding_mode="floor"),
    "whole quotient": lambda: lambda h: torch.div(h, 0.3),
    "larger": lambda: lambda h: torch.maximum(h, 2 * h), "sum with 1": lambda: lambda h: h + 1,
}  # fmt: skip


def with_units(name: str, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    net = Tiny(UNITS[name](), norm).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return net


X = 3 * torch.randn(32, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", UNITS)
def test_symmetries_are_those_of_the_numbers(name) -> None:
    """A unit is scaled, and two change places: outputs agree where `find` says so only."""
    net = with_units(name)
    found, before = symmetry.find(net, (3,)), net(X)
    assert not found.unseen, found
    scales, places = torch.tensor([0.5, 1.0, 3.0, 1.0]).double(), [2, 1, 0, 3]
    degree = {"square": 2, "sign": 0}.get(name, 1)
    with torch.no_grad():
        for parameter in (net.enter.weight, net.enter.bias):
            parameter.copy_(parameter * scales.view(-1, *[1] * (parameter.dim() - 1)))
        net.leave.weight.div_(scales**degree)
        agree = torch.allclose(net(X), before, rtol=1e-9)
        assert (found.num_scalings == 4) == agree, found
        net = with_units(name)
        for parameter in (net.enter.weight, net.enter.bias):
            parameter.copy_(parameter[places])
        net.leave.weight.copy_(net.leave.weight[:, places])
        if name == "slopes":
            net.layer.weight.copy_(net.layer.weight[places])
    torch.testing.assert_close(net(X), before)
    assert [group.size for group in found.groups] == [4]


@pytest.mark.parametrize("name", UNITS)
def test_groups_of_priors_are_those_of_the_numbers(name) -> None:
    """The first layer is scaled: before a norm this changes nothing where its set is found."""
    net = with_units(name, norm=True)
    before = net(X)
    sets = normalised_sets(Stack(with_units(name, norm=True)))
    with torch.no_grad():
        for parameter in (net.enter.weight, net.enter.bias):
            parameter.mul_(3.0)
    agree = torch.allclose(net(X), before, rtol=1e-9)
    if name in ("square", "sign"):  # of another degree than 1: not followed
        assert agree and not sets
    else:
        assert (frozenset(("enter.weight", "enter.bias")) in sets) == agree


@pytest.mark.parametrize("name", UNITS)
def test_batched_products_are_those_of_single_members(name) -> None:
    """All but layers with slopes, and those whose noise is not entry by entry, run batched."""
    nets = [with_units(name), with_units(name)]
    with torch.no_grad():
        nets[1].enter.weight.mul_(2.0)
    forward = dense_forward(nets[0])
    batched = name not in ("prelu", "slopes", "rrelu", "dropout1d", "alpha dropout")
    assert (forward is not None) == batched
    if forward is not None:
        both = [dict(net.named_parameters()) for net in nets]
        tensors = {key: torch.stack([member[key] for member in both]) for key in both[0]}
        outputs = torch.stack([net(X) for net in nets])
        torch.testing.assert_close(forward(tensors, X.expand(2, *X.shape)), outputs)


def test_degrees_that_arguments_decide() -> None:
    x = torch.randn(5)
    assert operation("norm", (x, 0)).degree == 0
    assert torch.equal(torch.norm(3 * x, 0), torch.norm(x, 0))
    assert operation(F.pad, (x, (1, 1), "constant", 2.0)).degree is None
    assert operation(F.pad, (x, (1, 1)), {"value": 0.0}).degree == 1
    assert operation("pow", (x, 3)).degree == 3
    assert operation("clamp", (x,), {"min": x}).degree is None
    assert operation(F.alpha_dropout, (x, 0.5, True)).degree is None
    torch.manual_seed(0)
    dropped = F.alpha_dropout(x, 0.5, True)
    torch.manual_seed(0)
    assert not torch.allclose(F.alpha_dropout(3 * x, 0.5, True), 3 * dropped)
    assert operation("add_", (x, 1)).in_place and not operation("add", (x, 1)).in_place
    assert operation(torch.fft.fft) is None and name_of(torch.cumsum) == "cumsum"
