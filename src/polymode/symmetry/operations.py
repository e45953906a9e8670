"""Rules for operations without parameters of their own, by name.

What only moves entries is applied to the labels as it is. What acts entry by entry keeps permutable
units; it keeps their scale if it is homogeneous, f(s x) = s f(x) for s > 0: ReLU and LeakyReLU are,
SiLU and GELU are not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.symmetry.layers import contract
from polymode.symmetry.units import PINNED, ZERO, Label, Value, move, varied, varies
from polymode.symmetry.walk import Walk, each_in

MOVING = set(
    """flatten reshape view unflatten permute transpose swapaxes swapdims movedim moveaxis
    squeeze unsqueeze getitem select narrow unbind chunk split tensor_split expand expand_as repeat
    contiguous clone detach flip roll tile broadcast_to index_select pixel_shuffle pixel_unshuffle
    channel_shuffle t view_as reshape_as rot90 T mT repeat_interleave ravel""".split()
)
KEEPING = set(
    """identity dropout dropout1d dropout2d dropout3d alpha_dropout relu relu_ leaky_relu
    leaky_relu_ abs neg to float double half type_as bfloat16 rrelu""".split()
)
ELEMENTWISE = set(
    """tanh sigmoid silu gelu elu selu celu softplus softsign mish hardswish
    hardsigmoid hardtanh relu6 logsigmoid exp log log1p expm1 sqrt rsqrt sin cos erf square pow
    reciprocal clamp clip tanhshrink softshrink hardshrink threshold relu6 exp2 sign
    feature_alpha_dropout sigmoid_ tanh_ silu_ atan sinh cosh round floor""".split()
)
POOLING = set(
    """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d lp_pool2d interpolate upsample""".split()
)
ADDING = {"add", "sub", "iadd", "isub", "add_", "sub_", "maximum", "minimum", "subtract"}
MULTIPLYING = {"mul", "imul", "mul_", "multiply", "truediv", "div", "div_", "itruediv", "divide"}
REDUCING = {"mean", "sum", "amax", "amin"}

_MODULES: dict[type[nn.Module], str] = {
    nn.Flatten: "flatten", nn.Unflatten: "unflatten", nn.Identity: "identity",
    nn.Softmax: "softmax", nn.LogSoftmax: "softmax", nn.Softmax2d: "softmax",
    nn.PixelShuffle: "pixel_shuffle", nn.PixelUnshuffle: "pixel_unshuffle",
    nn.ChannelShuffle: "channel_shuffle", nn.ZeroPad2d: "pad_zeros",
    nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.RReLU: "rrelu", nn.Dropout: "dropout",
    nn.Dropout1d: "dropout", nn.Dropout2d: "dropout", nn.Dropout3d: "dropout",
    nn.AlphaDropout: "dropout", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu",
    nn.GELU: "gelu", nn.ELU: "elu", nn.SELU: "selu", nn.CELU: "celu", nn.Softplus: "softplus",
    nn.Softsign: "softsign", nn.Mish: "mish", nn.Hardswish: "hardswish", nn.ReLU6: "relu6",
    nn.Hardsigmoid: "hardsigmoid", nn.Hardtanh: "hardtanh", nn.LogSigmoid: "logsigmoid",
    nn.Tanhshrink: "tanhshrink", nn.Softshrink: "softshrink", nn.Hardshrink: "hardshrink",
    nn.Threshold: "threshold", nn.Upsample: "interpolate", nn.MaxPool1d: "max_pool1d",
    nn.MaxPool2d: "max_pool2d", nn.MaxPool3d: "max_pool3d", nn.AvgPool1d: "avg_pool1d",
    nn.AvgPool2d: "avg_pool2d", nn.AvgPool3d: "avg_pool3d",
    nn.AdaptiveAvgPool1d: "adaptive_avg_pool1d", nn.AdaptiveAvgPool2d: "adaptive_avg_pool2d",
    nn.AdaptiveAvgPool3d: "adaptive_avg_pool3d", nn.AdaptiveMaxPool1d: "adaptive_max_pool1d",
    nn.AdaptiveMaxPool2d: "adaptive_max_pool2d", nn.AdaptiveMaxPool3d: "adaptive_max_pool3d",
    nn.LPPool2d: "lp_pool2d",
}  # fmt: skip
_ODD_NAMES: dict[Any, str] = {
    getattr(F, name): name for name in POOLING if hasattr(F, name)
}  # torch wraps some of them under another name


@dataclass
class Call:
    """One operation of the graph: what is called, labelled inputs, the unlabelled result."""

    name: str
    token: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    data: Any

    def values(self) -> Iterator[Value]:
        found: list[Value] = []
        each_in(
            (self.args, self.kwargs), lambda v: found.append(v) if isinstance(v, Value) else None
        )
        return iter(found)

    def get(self, name: str, place: int, default: Any) -> Any:
        """Return an argument by name or place."""
        return self.kwargs.get(name, self.args[place] if len(self.args) > place else default)


def name_of(target: Any) -> str | None:
    """Return the name of one of torch's or Python's functions, or of a tensor's method."""
    if isinstance(target, str):
        return target
    if isinstance(target, nn.Module):
        return _MODULES.get(type(target))
    if target in _ODD_NAMES:
        return _ODD_NAMES[target]
    name = getattr(target, "__name__", "").removeprefix("_")
    for home in (operator, torch, F, torch._C._nn):
        for known in (name, target.__name__ if hasattr(target, "__name__") else name):
            if getattr(home, known, None) is target:
                return name
    return None


def follow(walk: Walk, call: Call) -> Any:
    """Return the labelled result of an operation, or NotImplemented if nothing is known of it."""
    name = call.name
    if name == "getitem" and isinstance(call.args[0], (tuple, list)):
        return call.args[0][call.args[1]]
    if name in MOVING and isinstance(call.args[0], Value):
        return _moved(walk, call)
    if name in ("cat", "concat", "concatenate"):
        return _cat(walk, list(call.args[0]), call.get("dim", 1, 0), call.data)
    if name == "stack":
        dim = call.get("dim", 1, 0) % call.data.dim()
        parts = [_apply(walk, walk.adopt(v), lambda t: t.unsqueeze(dim))[0] for v in call.args[0]]
        return _cat(walk, parts, dim, call.data)
    if name in ("pad", "pad_zeros"):
        return _pad(walk, call)
    if name in ("zeros_like", "new_zeros", "zeros"):
        return Value(call.data, zero=True)
    if name in ADDING or name in MULTIPLYING:
        return _both(walk, call)
    if name in ("matmul", "bmm"):
        return _matmul(walk, call)
    if name == "scaled_dot_product_attention":
        return _attention(walk, call)
    if name == "linear":
        return _functional_linear(walk, call)
    x = walk.adopt(call.args[0]) if call.args else None
    if not isinstance(x, Value):
        return NotImplemented
    if name in KEEPING:
        return Value(call.data, x.moves, x.scale, x.zero)
    if name in ELEMENTWISE and sum(1 for _ in call.values()) == 1:
        return Value(call.data, walk.pin_scale(x).moves)
    if name in POOLING:
        x = walk.pin_along(x, range(2, x.data.dim()))
        if isinstance(call.data, Tensor):
            return Value(call.data, x.moves, x.scale, x.zero)
    if name in REDUCING:
        return _reduced(walk, call, x)
    if name in ("softmax", "log_softmax"):
        return _softmax(walk, call, x)
    return NotImplemented


def _apply(walk: Walk, x: Value, function: Callable[[Any], Any]) -> list[Value]:
    """Apply a function that only moves entries."""
    results = function(x.data)
    results = results if isinstance(results, (tuple, list)) else (results,)
    moves = [move(label, x.data, function) for label in x.moves]
    scale = move(x.scale, x.data, function)
    return [
        Value(data, [label[k] for label in moves], scale[k], x.zero, origin=x.origin)
        for k, data in enumerate(results)
    ]


def _moved(walk: Walk, call: Call) -> Any:
    x = walk.adopt(call.args[0])
    if any(isinstance(each, Value) for each in call.args[1:]):
        return NotImplemented
    moved = _apply(walk, x, lambda t: call.function(t, *call.args[1:], **call.kwargs))
    return moved[0] if isinstance(call.data, Tensor) else tuple(moved)


def _cat(walk: Walk, values: list[Any], dim: int, data: Tensor) -> Value:
    values, dim = [walk.adopt(value) for value in values], dim % data.dim()
    whole = {
        a for v in values for label in v.moves if not varies(label, dim) for a in varied(label)
    }
    for value in values:
        value.moves = [
            walk.regular(walk.moves, label, [a for a in varied(label) if a != dim])
            if varies(label, dim) and whole & set(varied(label))
            else label
            for label in value.moves
        ]
    joined = [label for v in values for label in v.moves if not varies(label, dim)]
    moves: list[Label] = []
    for label in joined:
        if any(set(varied(label)) & set(varied(other)) for other in moves):
            continue
        moves.append(label)
        for value in values:
            partners = [other for other in value.moves if set(varied(other)) & set(varied(label))]
            for other in partners:
                walk.moves.tie(label, other)
            if not partners:
                walk.pin_against(label, value, data.dim())
    if any(
        varies(label, dim) or value.data.shape[dim] == 1
        for value in values
        for label in value.moves
    ):
        moves.append(_concatenated([_along(walk, value, dim) for value in values], dim))
    scales = [np.full_like(v.scale, ZERO) if v.zero else v.scale for v in values]
    sizes = [value.data.shape[dim] for value in values]
    wide = [
        np.broadcast_to(s, [n if a == dim else m for a, m in enumerate(s.shape)])
        for s, n in zip(scales, sizes, strict=True)
    ]
    return Value(data, moves, _concatenated(wide, dim), all(v.zero for v in values))


def _along(walk: Walk, value: Value, dim: int) -> Label:
    """Return the units of a value along an axis with whatever else they vary along."""
    found = [label for label in value.moves if varies(label, dim)]
    for label in found[1:]:
        walk.moves.pin(label)
    if found:
        return found[0]
    shape = [value.data.shape[dim] if axis == dim else 1 for axis in range(value.data.dim())]
    return np.full(shape, ZERO if value.zero else PINNED)


def _concatenated(labels: list[Label], dim: int) -> Label:
    shape = np.broadcast_shapes(
        *[[1 if a == dim else n for a, n in enumerate(label.shape)] for label in labels]
    )
    wide = [
        np.broadcast_to(label, [label.shape[dim] if a == dim else n for a, n in enumerate(shape)])
        for label in labels
    ]
    return np.concatenate(wide, dim)


def _pad(walk: Walk, call: Call) -> Any:
    """Zeros around an image suit every unit; other values do not scale."""
    x = walk.adopt(call.args[0])
    if call.name == "pad_zeros":
        return Value(call.data, walk.pin_along(x, range(2, x.data.dim())).moves, x.scale, x.zero)
    mode, value = call.get("mode", 2, "constant"), call.get("value", 3, None)
    if mode != "constant":
        return NotImplemented
    if value:
        x = walk.pin_scale(x)
    widths = call.get("pad", 1, ())

    def padded(label: Label, keep: int) -> Label:
        return move(label, x.data, lambda t: F.pad(t, widths, value=keep))[0]

    fill = PINNED if value else ZERO
    moves = [padded(label, fill) for label in x.moves]
    moves = [
        _where_axis_pads(walk, old, new, fill) for old, new in zip(x.moves, moves, strict=True)
    ]
    return Value(call.data, moves, padded(x.scale, fill) if not value else x.scale, x.zero)


def _where_axis_pads(walk: Walk, old: Label, new: Label, fill: int) -> Label:
    """Padding along another axis than a label's leaves the label as it was."""
    for axis in range(new.ndim):
        if new.shape[axis] > 1 and old.shape[axis] == 1:
            places = np.moveaxis(new, axis, 0)
            kept = [each for each in places if not (each == fill).all()]
            new = np.expand_dims(kept[0], axis)
    return new


def _both(walk: Walk, call: Call) -> Any:
    """Sum, difference, maximum, product or quotient of two values, or of one and a number."""
    x, y = call.args[:2]
    adding = call.name in ADDING
    if not (isinstance(x, Value) and isinstance(y, Value)):
        value, number = (x, y) if isinstance(x, Value) else (y, x)
        value = walk.adopt(value)
        below = value is not x and call.name in ("truediv", "div", "divide")
        if (adding and number != 0) or below or not isinstance(number, (int, float)):
            value = walk.pin_scale(value)
        return Value(call.data, value.moves, value.scale, value.zero, origin=None)
    x, y = (walk.adopt(v, "bias" if adding else "gain") for v in (x, y))
    moves = walk.merge(call.token, x, y, call.data)
    if adding:
        return Value(call.data, moves, walk.add_scales(x, y, call.data), x.zero and y.zero)
    if "div" in call.name:
        y = Value(y.data, walk.pin_scale(y).moves)
    return Value(call.data, moves, walk.multiply_scales(x, y, call.data), x.zero or y.zero)


def _reduced(walk: Walk, call: Call, x: Value) -> Any:
    """Mean, sum or extremum over axes; over units, it is the same in every order."""
    dims = call.get("dim", 1, None)
    axes = range(x.data.dim()) if dims is None else [d % x.data.dim() for d in np.atleast_1d(dims)]
    kept: list[Label] = []
    for label in x.moves:
        if not any(varies(label, axis) for axis in axes):
            kept.append(label)
        elif any(axis not in axes for axis in varied(label)):
            walk.moves.pin(label)
    scale = walk.regular(walk.scales, x.scale, [a for a in range(x.data.dim()) if a not in axes])
    keep = call.get("keepdim", 2, False)

    def drop(label: Label) -> Label:
        return label if keep else np.squeeze(label, tuple(int(axis) for axis in axes))

    return Value(call.data, [drop(label) for label in kept], drop(scale), x.zero)


def _softmax(walk: Walk, call: Call, x: Value) -> Value:
    axis: Any = call.get("dim", 1, None)
    if isinstance(call.function, nn.Module):
        axis = getattr(call.function, "dim", -3)  # Softmax2d has no such attribute
    axis = (-1 if axis is None else axis) % x.data.dim()
    x = walk.pin_scale(x)
    for label in x.moves:
        if varies(label, axis) and varied(label) != (axis,):
            walk.moves.pin(label)
    return Value(call.data, x.moves)


def _matmul(walk: Walk, call: Call) -> Any:
    x, y = call.args[:2]
    if not (isinstance(x, Value) and isinstance(y, Value)):
        return NotImplemented
    if y.raw is not None and y.data.dim() == 2 and x.raw is None:
        return contract(
            walk, call.token, x, call.data, axis=-1, weight=y.raw, bias=None,
            shape=tuple(y.data.shape), transposed=True,
        )  # fmt: skip
    x, y = walk.adopt(x), walk.adopt(y)
    if x.data.dim() != y.data.dim() or x.data.dim() < 2:
        return NotImplemented
    return product(walk, call.token, x, y, call.data)


def product(walk: Walk, token: str, x: Value, y: Value, data: Tensor) -> Value:
    """Batched matrix product (..., n, k) (..., k, m): what is summed over is tied, by blocks."""
    dim = data.dim()
    summed = [
        walk.regular(walk.moves, label, [a for a in range(dim) if a != free])
        for value, own, free in ((x, dim - 1, dim - 2), (y, dim - 2, dim - 1))
        for label in value.moves
        if varies(label, own)
    ]
    sides = [np.swapaxes(s, -1, -2) if s.shape[-2] > 1 else s for s in summed]  # k last
    moves: list[Label] = []
    counts = [
        sum(varies(label, own) for label in v.moves) for v, own in ((x, dim - 1), (y, dim - 2))
    ]
    if counts == [1, 1]:
        walk.moves.tie(sides[0], sides[1])
        front = sides[0].shape[:-1] if sides[0].size >= sides[1].size else sides[1].shape[:-1]
        if np.prod(front) > 1:
            blocks = walk.moves.fresh(int(np.prod(front))).reshape(*front, 1)
            walk.nest(token, blocks, np.broadcast_to(sides[0], (*front, sides[0].shape[-1])))
            moves.append(blocks)
    else:
        for label in sides:
            walk.moves.pin(label)
    for value, other, own in ((x, y, dim - 1), (y, x, dim - 2)):
        for label in value.moves:
            if varies(label, own):
                continue
            partner = [k for k, each in enumerate(moves) if set(varied(each)) & set(varied(label))]
            for k in partner:
                moves[k] = walk.join(token, (moves[k], _thin(moves[k])), (label, _thin(label)), dim)
            if not partner:
                moves.append(label)
            batch = [axis for axis in varied(label) if axis < dim - 2]
            met = any(varies(each, axis) for axis in batch for each in other.moves)
            if not met and any(other.data.shape[axis] > 1 for axis in batch):
                walk.moves.pin(label)
    return Value(data, moves, _product_scale(walk, x, y, dim))


def _thin(label: Label) -> Value:
    """Return a value whose sizes are those of its label."""
    return Value(torch.empty(label.shape, device="meta"))


def _product_scale(walk: Walk, x: Value, y: Value, dim: int) -> Label:
    """Scales of what is summed over are inverse to each other; at most one side has others."""
    if varies(x.scale, dim - 1) or varies(y.scale, dim - 2):
        one = walk.regular(walk.scales, x.scale, [a for a in range(dim) if a != dim - 2])
        other = walk.regular(walk.scales, y.scale, [a for a in range(dim) if a != dim - 1])
        walk.scales.tie(one, np.swapaxes(other, -1, -2), sign=-1)
        return np.zeros((1,) * dim, int)
    if (walk.scales.roots(x.scale)[0] <= PINNED).all():
        return y.scale
    walk.scales.pin(y.scale)
    return x.scale


def _attention(walk: Walk, call: Call) -> Any:
    """softmax(q k^T / sqrt(d)) v, with torch's function for it."""
    values = list(call.values())
    if len(values) != 3 or len({v.data.dim() for v in values}) != 1:
        return NotImplemented
    q, k, v = (walk.adopt(value) for value in values)
    (turned,) = _apply(walk, k, lambda t: t.transpose(-2, -1))
    scores = product(walk, f"{call.token}/scores", q, turned, q.data @ turned.data)
    scores = walk.touch(f"{call.token}/scores", walk.pin_scale(scores))
    return product(walk, call.token, scores, v, call.data)


def _functional_linear(walk: Walk, call: Call) -> Any:
    x, weight = walk.adopt(call.args[0]), call.get("weight", 1, None)
    bias = call.get("bias", 2, None)
    raw = [v.raw if isinstance(v, Value) else None for v in (weight, bias)]
    if raw[0] is None or (bias is not None and raw[1] is None) or not isinstance(x, Value):
        return NotImplemented
    return contract(
        walk, call.token, x, call.data, axis=-1, weight=raw[0], bias=raw[1],
        shape=tuple(weight.data.shape),
    )  # fmt: skip
