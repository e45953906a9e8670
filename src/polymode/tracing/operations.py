"""The one table of operations: what each does to the entries of its input, and to their scale.

What reads a network's graph reads this table: batched products (`stack/fast/dense.py`), wide first
convolutions (`stack/fast/prefix.py`), rewritten graphs (`stack/fast/rewrite.py`), symmetries
(`symmetry/operation_rules.py`), groups of prior precisions (`methods/laplace/prior_groups.py`) and
derivatives with respect to weights (`curvature/derivatives.py`).

An operation has a name, under which it may be called as a module, a function or a method of a
tensor. It has a kind (`KINDS`), and a degree d if f(s x) = s^d f(x) for every s > 0: 1 for ReLU,
0 for a sign, none for tanh.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from polymode.core.rows import map_leaves

PLAIN = (int, float, bool, str, type(None))

KINDS = {
    "elementwise": "each entry of the result depends on the same entry of the input",
    "random": "elementwise in evaluation mode; in training mode noise is drawn for each example",
    "slopes": "elementwise, with weights for each channel or for all",
    "sum": "elementwise in two inputs; the result has their common scale",
    "product": "elementwise in two inputs; the result has the product of their scales",
    "quotient": "elementwise in two inputs; the result has the quotient of their scales",
    "comparison": "elementwise in two inputs; a common scale does not matter",
    "choice": "elementwise in a condition and two inputs, of which it takes one",
    "moving": "entries change places, or are copied or left out",
    "join": "several inputs beside each other",
    "padding": "further entries around an image",
    "pooling": "each channel of an image by itself, over windows of it",
    "reduction": "many entries, in any order, give one",
    "extremum": "a reduction of one input, or the larger or smaller of two",
    "order": "entries sorted",
    "softmax": "entries over their sum",
    "gating": "one half of the channels times a function of the other",
    "matrix product": "sums of products of two inputs",
    "attention": "softmax(q kᵀ) v",
    "linear": "a product with a weight that is an argument",
    "shape": "depends on the shape of the input only",
}
# Each entry of the result depends on the entries of the inputs at the same place.
ENTRYWISE = frozenset(("elementwise", "sum", "product", "quotient", "comparison", "choice"))


@dataclass(frozen=True)
class Operation:
    """What is known of an operation.

    Attributes:
        name: the same for the module, the function and the method.
        kind: one of `KINDS`.
        degree: d in f(s x) = s^d f(x) for all s > 0 (of all inputs at once); None without one.
        in_place: whether it writes into its input, by its name.
    """

    name: str
    kind: str
    degree: float | None = None
    in_place: bool = False

    @property
    def entrywise(self) -> bool:
        """Whether entries of the result depend on entries at the same place only."""
        return self.kind in ENTRYWISE

    @property
    def channelwise(self) -> bool:
        """Whether channels of the result depend on the same channels of an image only."""
        return self.entrywise or self.kind == "pooling"


_ROWS: tuple[tuple[str, float | None, str], ...] = (
    ("elementwise", 1, """identity relu leaky_relu abs absolute neg negative dropout to float double
        half bfloat16 type_as"""),
    ("elementwise", None, """tanh sigmoid silu gelu elu selu celu softplus softsign mish hardswish
        hardsigmoid hardtanh relu6 logsigmoid log_sigmoid exp log log1p expm1 sin cos erf tanhshrink
        softshrink hardshrink threshold exp2 atan sinh cosh round floor long int pow clamp clip
        clamp_min clamp_max"""),
    ("elementwise", 2, "square"),
    ("elementwise", 0.5, "sqrt"),
    ("elementwise", -0.5, "rsqrt"),
    ("elementwise", -1, "reciprocal"),
    ("elementwise", 0, "sign"),
    ("random", 1, "dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu"),
    ("slopes", 1, "prelu"),
    ("sum", 1, "add sub rsub iadd isub subtract maximum minimum"),
    ("product", 2, "mul imul multiply"),
    ("quotient", 0, "truediv itruediv div divide true_divide"),
    ("comparison", 0, "gt lt ge le greater less"),
    ("choice", None, "where masked_fill"),
    ("moving", 1, """flatten reshape view unflatten permute transpose swapaxes swapdims movedim
        moveaxis squeeze unsqueeze getitem select narrow unbind chunk split tensor_split expand
        expand_as repeat contiguous clone detach flip roll tile broadcast_to index_select
        pixel_shuffle pixel_unshuffle channel_shuffle t view_as reshape_as rot90 T mT
        repeat_interleave ravel"""),
    ("join", 1, "cat concat concatenate stack"),
    ("padding", 1, "pad pad_zeros"),
    ("pooling", 1, """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d lp_pool2d interpolate upsample"""),
    ("reduction", 1, "mean sum amax amin std norm"),
    ("reduction", 2, "var"),
    ("reduction", None, "logsumexp"),
    ("extremum", 1, "max min"),
    ("order", 1, "topk sort msort"),
    ("softmax", None, "softmax log_softmax"),
    ("gating", None, "glu"),
    ("matrix product", 2, "matmul bmm"),
    ("attention", None, "scaled_dot_product_attention"),
    ("linear", None, "linear"),
    ("shape", None, """shape device dtype ndim size dim numel zeros_like ones_like new_zeros
        new_ones zeros"""),
)  # fmt: skip
TABLE: Mapping[str, Operation] = MappingProxyType({
    name: Operation(name, kind, degree)
    for kind, degree, names in _ROWS
    for name in names.split()
})  # fmt: skip

MODULES: Mapping[type[nn.Module], str] = MappingProxyType({
    nn.Identity: "identity", nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.RReLU: "rrelu",
    nn.PReLU: "prelu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu", nn.GELU: "gelu",
    nn.ELU: "elu", nn.SELU: "selu", nn.CELU: "celu", nn.Softplus: "softplus",
    nn.Softsign: "softsign", nn.Mish: "mish", nn.Hardswish: "hardswish", nn.ReLU6: "relu6",
    nn.Hardsigmoid: "hardsigmoid", nn.Hardtanh: "hardtanh", nn.LogSigmoid: "logsigmoid",
    nn.Tanhshrink: "tanhshrink", nn.Softshrink: "softshrink", nn.Hardshrink: "hardshrink",
    nn.Threshold: "threshold", nn.GLU: "glu", nn.Softmax: "softmax", nn.Softmax2d: "softmax",
    nn.LogSoftmax: "log_softmax", nn.Dropout: "dropout", nn.Dropout1d: "dropout1d",
    nn.Dropout2d: "dropout2d", nn.Dropout3d: "dropout3d", nn.AlphaDropout: "alpha_dropout",
    nn.FeatureAlphaDropout: "feature_alpha_dropout", nn.Flatten: "flatten",
    nn.Unflatten: "unflatten", nn.PixelShuffle: "pixel_shuffle",
    nn.PixelUnshuffle: "pixel_unshuffle", nn.ChannelShuffle: "channel_shuffle",
    nn.ZeroPad2d: "pad_zeros", nn.Upsample: "interpolate",
    nn.UpsamplingBilinear2d: "interpolate", nn.UpsamplingNearest2d: "interpolate",
    nn.MaxPool1d: "max_pool1d", nn.MaxPool2d: "max_pool2d", nn.MaxPool3d: "max_pool3d",
    nn.AvgPool1d: "avg_pool1d", nn.AvgPool2d: "avg_pool2d", nn.AvgPool3d: "avg_pool3d",
    nn.AdaptiveAvgPool1d: "adaptive_avg_pool1d", nn.AdaptiveAvgPool2d: "adaptive_avg_pool2d",
    nn.AdaptiveAvgPool3d: "adaptive_avg_pool3d", nn.AdaptiveMaxPool1d: "adaptive_max_pool1d",
    nn.AdaptiveMaxPool2d: "adaptive_max_pool2d", nn.AdaptiveMaxPool3d: "adaptive_max_pool3d",
    nn.LPPool2d: "lp_pool2d",
})  # fmt: skip
_HOMES = (operator, torch, F, torch._C._nn, Tensor)
_WRAPPED: Mapping[Any, str] = MappingProxyType({
    getattr(F, name): name
    for name, entry in TABLE.items()
    if entry.kind == "pooling" and hasattr(F, name)
})  # fmt: skip  # functions that torch keeps under another name
_IN_PLACE = frozenset(("iadd", "isub", "imul", "itruediv"))


def name_of(target: Any) -> str | None:
    """Return the name of a module, of a function of torch or Python, or of a tensor's method."""
    if isinstance(target, str):
        return target
    if isinstance(target, nn.Module):
        return MODULES.get(type(target))
    if target in _WRAPPED:
        return _WRAPPED[target]
    full = getattr(target, "__name__", "")
    name = full.removeprefix("_")
    for home in _HOMES:
        if any(getattr(home, candidate, None) is target for candidate in (name, full)):
            return name
    return None


def operation(
    target: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = MappingProxyType({})
) -> Operation | None:
    """Return what is known of a call of a module, function or method; None if nothing is.

    Args:
        args, kwargs: all arguments, the input first: the degree of some operations depends on them.
            Arguments that are no numbers count as unknown.
    """
    name = name_of(target) or ""
    entry = TABLE.get(name) or TABLE.get(name.removesuffix("_"))
    if entry is None:
        return None
    if entry.name in _DEGREES:
        entry = replace(entry, degree=_DEGREES[entry.name](target, args, kwargs))
    if entry.kind == "quotient" and kwargs.get("rounding_mode") is not None:
        entry = replace(entry, kind="elementwise", degree=None)
    return replace(entry, in_place=True) if name != entry.name or name in _IN_PLACE else entry


def operation_at(node: fx.Node, module: nn.Module) -> Operation | None:
    """Return what is known of what a node calls; None if nothing is."""
    if node.op == "call_module":
        return operation(module.get_submodule(str(node.target)), node.args, node.kwargs)
    if node.target is getattr:
        return operation(str(node.args[1]), node.args[:1])
    if node.op in ("call_function", "call_method"):
        return operation(node.target, node.args, node.kwargs)
    return None


# ---------------------------------------------------------------- degrees that arguments decide

_Degree = Callable[[Any, Sequence[Any], Mapping[str, Any]], float | None]


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _of_bounds(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """Bounds at 0 scale with everything else; other numbers do not."""
    bounds = (*args[1:], *kwargs.values())
    return 1 if all(b is None or (_is_number(b) and b == 0) for b in bounds) else None


def _of_threshold(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    if isinstance(target, nn.Threshold):
        numbers = (target.threshold, target.value)
    else:
        numbers = _argument(args, kwargs, 1, "threshold"), _argument(args, kwargs, 2, "value")
    return 1 if all(_is_number(n) and n == 0 for n in numbers) else None


def _of_alpha_dropout(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """What is dropped becomes a constant, not 0."""
    if isinstance(target, nn.Module):
        return None if target.training else 1
    return None if _argument(args, kwargs, 2, "training") else 1


def _of_power(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    exponent = _argument(args, kwargs, 1, "exponent")
    return float(exponent) if _is_number(exponent) else None


def _of_norm(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """The 0-norm counts entries."""
    return 0 if _argument(args, kwargs, 1, "p") == 0 else 1


def _of_padding(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    mode, value = _argument(args, kwargs, 2, "mode"), _argument(args, kwargs, 3, "value")
    return None if mode in (None, "constant") and value else 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


_DEGREES: dict[str, _Degree] = {
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), _of_bounds),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), _of_alpha_dropout),
    "threshold": _of_threshold,
    "pow": _of_power,
    "norm": _of_norm,
    "pad": _of_padding,
}


# ---------------------------------------------------------------- layers with weights


def is_linear(layer: nn.Module) -> bool:
    """Whether a layer is linear in its input and in its weights, but for a bias."""
    return isinstance(layer, (nn.Linear, _ConvNd, nn.Embedding))


def normalises(layer: nn.Module) -> bool:
    """Whether the scale of its input does not change what a layer returns, but for its eps.

    Layers other than torch's say so by an attribute `normalises`; they are one step of a graph.
    """
    norms = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return isinstance(layer, norms) or getattr(layer, "normalises", False) is True


# ---------------------------------------------------------------- nodes of a graph


def repeat_rows(x: Any, times: int, axis: int = 0) -> Any:
    """Return `times` copies of the rows, one copy of all behind another; a new tensor.

    >>> repeat_rows(torch.tensor([[1], [2]]), 2).flatten().tolist()
    [1, 2, 1, 2]
    """
    if isinstance(x, fx.Proxy):  # one step of a graph that is traced again
        arguments = (x, times) if axis == 0 else (x, times, axis)
        return x.tracer.create_proxy("call_function", repeat_rows, arguments, {})
    return map_leaves(
        x, lambda leaf: leaf.repeat([times if a == axis else 1 for a in range(leaf.dim())])
    )


def called(node: fx.Node, module: nn.Module) -> Any:
    """Return what a node calls: a module's class, a function, or a method's name."""
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target)))
    return node.target if node.op in ("call_function", "call_method") else None


def function_of(node: fx.Node, module: nn.Module) -> Callable[..., Any]:
    """Return the function that a node calls."""
    if node.op == "call_module":
        return module.get_submodule(str(node.target))
    if node.op == "call_method":
        method: Callable[..., Any] = getattr(Tensor, str(node.target))
        return method
    assert callable(node.target)
    return node.target


def is_kind(node: fx.Node, module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the node calls a module of this class, not of a subclass."""
    return called(node, module) is kind


def is_relu(node: fx.Node, module: nn.Module) -> bool:
    """Whether the node is a ReLU: module, function or method."""
    entry = operation_at(node, module)
    return entry is not None and entry.name == "relu" and not entry.in_place


def is_flatten(node: fx.Node, module: nn.Module) -> bool:
    """Whether the node flattens all dimensions of an example into one."""
    if is_kind(node, module, nn.Flatten):
        flatten = module.get_submodule(str(node.target))
        return (flatten.start_dim, flatten.end_dim) == (1, -1)
    if node.op == "call_module" or node.target not in (torch.flatten, "flatten"):
        return False
    return (*node.args[1:], *node.kwargs.items()) in ((1,), (("start_dim", 1),))
