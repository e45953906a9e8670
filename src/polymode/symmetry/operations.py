"""Rules for operations without parameters of their own, by name.

What only moves entries is applied to the labels as it is. What acts entry by entry keeps permutable
units; it keeps their scale if it is homogeneous, f(s x) = s f(x) for s > 0: ReLU and LeakyReLU are,
SiLU and GELU are not. A power has the power of the scale, a sign or a comparison with 0 has none.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.symmetry.call import Call
from polymode.symmetry.layers import contract
from polymode.symmetry.products import attention_scores, matmul, stored_shape
from polymode.symmetry.reductions import (
    DEGREES,
    EXTREMA,
    INHOMOGENEOUS,
    SORTING,
    extremum,
    ordered,
    reduced,
    softmax,
)
from polymode.symmetry.units import PINNED, ZERO, Label, Value, apply_to, move, varied, varies
from polymode.symmetry.walk import Walk

MOVING = set(
    """flatten reshape view unflatten permute transpose swapaxes swapdims movedim moveaxis
    squeeze unsqueeze getitem select narrow unbind chunk split tensor_split expand expand_as repeat
    contiguous clone detach flip roll tile broadcast_to index_select pixel_shuffle pixel_unshuffle
    channel_shuffle t view_as reshape_as rot90 T mT repeat_interleave ravel""".split()
)
TURNING = set("t T mT transpose swapaxes swapdims permute movedim moveaxis".split())
KEEPING = set(
    """identity dropout dropout1d dropout2d dropout3d alpha_dropout relu relu_ leaky_relu
    leaky_relu_ abs neg to float double half type_as bfloat16 rrelu""".split()
)
ELEMENTWISE = set(
    """tanh sigmoid silu gelu elu selu celu softplus softsign mish hardswish
    hardsigmoid hardtanh relu6 logsigmoid exp log log1p expm1 sin cos erf
    tanhshrink softshrink hardshrink threshold exp2 log_sigmoid
    feature_alpha_dropout sigmoid_ tanh_ silu_ atan sinh cosh round floor""".split()
)
POWERS = {"square": 2, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1, "sign": 0}
CLAMPING = {"clamp", "clip", "clamp_", "clamp_min", "clamp_max"}
COMPARING = {"gt", "lt", "ge", "le", "greater", "less"}
POOLING = set(
    """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d lp_pool2d interpolate upsample""".split()
)
ADDING = {"add", "sub", "iadd", "isub", "add_", "sub_", "maximum", "minimum", "subtract"}
MULTIPLYING = {"mul", "imul", "mul_", "multiply", "truediv", "div", "div_", "itruediv", "divide"}
REDUCING = {*DEGREES, *INHOMOGENEOUS}

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
    nn.LPPool2d: "lp_pool2d", nn.GLU: "glu",
}  # fmt: skip
_ODD_NAMES: dict[Any, str] = {
    getattr(F, name): name for name in POOLING if hasattr(F, name)
}  # torch wraps some of them under another name


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
        parts = [apply_to(walk.adopt(v), lambda t: t.unsqueeze(dim))[0] for v in call.args[0]]
        return _cat(walk, parts, dim, call.data)
    if name in ("pad", "pad_zeros"):
        return _pad(walk, call)
    if name in ("zeros_like", "new_zeros", "zeros"):
        return Value(call.data, zero=True)
    if name in EXTREMA and sum(1 for _ in call.values()) == 2:
        call.name = "maximum"
    if call.name in ADDING or name in MULTIPLYING:
        return _both(walk, call)
    if name in COMPARING:
        return _compared(walk, call)
    if name in ("where", "masked_fill"):
        return _where(walk, call)
    if name in ("matmul", "bmm"):
        return matmul(walk, call)
    if name == "scaled_dot_product_attention":
        return attention_scores(walk, call)
    if name == "linear":
        return _functional_linear(walk, call)
    x = walk.adopt(call.args[0]) if call.args else None
    if not isinstance(x, Value):
        return NotImplemented
    if name in KEEPING:
        return Value(call.data, x.moves, x.scale, x.zero)
    if sum(1 for _ in call.values()) > 1:
        return NotImplemented
    if name in ELEMENTWISE:
        return Value(call.data, walk.pin_scale(x).moves)
    if name in POWERS or name == "pow":
        return _power(walk, call, x)
    if name in CLAMPING:
        bounds = [*call.args[1:], *call.kwargs.values()]
        x = x if all(bound is None or bound == 0 for bound in bounds) else walk.pin_scale(x)
        return Value(call.data, x.moves, x.scale, x.zero)
    if name == "glu":
        return _glu(walk, call, x)
    if name in POOLING:
        x = walk.pin_along(x, range(2, x.data.dim()))
        if isinstance(call.data, Tensor):
            return Value(call.data, x.moves, x.scale, x.zero)
    if name in REDUCING:
        return reduced(walk, call, x)
    if name in EXTREMA:
        return extremum(walk, call, x)
    if name in SORTING:
        return ordered(walk, call, x)
    if name in ("softmax", "log_softmax"):
        return softmax(walk, call, x)
    return NotImplemented


def _moved(walk: Walk, call: Call) -> Any:
    if sum(1 for _ in call.values()) > 1:  # places that are computed
        return NotImplemented
    first = call.args[0]
    if first.raw is not None and first.data.dim() == 2 and call.name in TURNING:
        if call.data.shape == first.data.shape[::-1] and call.data.stride() != first.data.stride():
            return Value(call.data, raw=first.raw, turned=not first.turned)
    x = walk.adopt(first)
    moved = apply_to(x, lambda t: call.function(t, *call.args[1:], **call.kwargs))
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
        if (adding and number != 0) or not isinstance(number, (int, float)):
            value = walk.pin_scale(value)
        below = not isinstance(x, Value) and "div" in call.name
        scale = walk.scales.power(value.scale, -1) if below else value.scale
        return Value(call.data, value.moves, scale, value.zero)
    x, y = (walk.adopt(v, "bias" if adding else "gain") for v in (x, y))
    moves = walk.merge(call.token, x, y, call.data)
    if adding:
        return Value(call.data, moves, walk.add_scales(x, y, call.data), x.zero and y.zero)
    sign = -1 if "div" in call.name else 1
    scale = walk.multiply_scales(x, y, call.data, sign)
    return Value(call.data, moves, scale, x.zero or (y.zero and sign > 0))


def _power(walk: Walk, call: Call, x: Value) -> Any:
    exponent = POWERS.get(call.name, call.get("exponent", 1, None))
    if not isinstance(exponent, (int, float)):
        return NotImplemented
    moves = [np.where(label == ZERO, PINNED, label) for label in x.moves]
    return Value(call.data, moves, walk.scales.power(x.scale, exponent))


def _compared(walk: Walk, call: Call) -> Any:
    """Which of two is larger, which a common scale does not change; numbers but 0 have none."""
    x, y = (_constant(v) if isinstance(v, (int, float)) else v for v in call.args[:2])
    if not (isinstance(x, Value) and isinstance(y, Value)):
        return NotImplemented
    x, y = walk.adopt(x), walk.adopt(y)
    walk.add_scales(x, y, call.data)
    return Value(call.data, walk.merge(call.token, x, y, call.data))


def _constant(number: float) -> Value:
    return Value(torch.empty((), device="meta"), zero=number == 0)


def _where(walk: Walk, call: Call) -> Any:
    """One of two by a condition, entry by entry."""
    if len(call.args) != 3 or call.kwargs:
        return NotImplemented
    chosen, one, other = call.args
    if call.name == "masked_fill":
        chosen, one, other = one, other, chosen
    parts = [_constant(v) if isinstance(v, (int, float)) else v for v in (chosen, one, other)]
    if not all(isinstance(v, Value) for v in parts):
        return NotImplemented
    chosen, one, other = (walk.adopt(v, "bias") for v in parts)
    moves = walk.merge(call.token, one, other, call.data)
    both = Value(call.data, moves, walk.add_scales(one, other, call.data), one.zero and other.zero)
    moves = walk.merge(f"{call.token}/condition", both, chosen, call.data)
    return Value(call.data, moves, both.scale, both.zero)


def _glu(walk: Walk, call: Call, x: Value) -> Any:
    """One half of the channels times the sigmoid of the other."""
    axis = call.function.dim if isinstance(call.function, nn.GLU) else call.get("dim", 1, -1)
    one, gate = apply_to(x, lambda t: t.chunk(2, axis))
    gate = walk.pin_scale(gate)
    return Value(call.data, walk.merge(call.token, one, gate, call.data), one.scale, one.zero)


def _functional_linear(walk: Walk, call: Call) -> Any:
    x, weight = walk.adopt(call.args[0]), call.get("weight", 1, None)
    bias = call.get("bias", 2, None)
    raw = [v.raw if isinstance(v, Value) else None for v in (weight, bias)]
    if raw[0] is None or (bias is not None and raw[1] is None) or not isinstance(x, Value):
        return NotImplemented
    return contract(
        walk, call.token, x, call.data, axis=-1, weight=raw[0], bias=raw[1],
        shape=stored_shape(weight), transposed=weight.turned,
    )  # fmt: skip
