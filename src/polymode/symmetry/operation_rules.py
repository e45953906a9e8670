"""Rules for operations without parameters of their own, by their kind in the table of operations.

What only moves entries is applied to the labels as it is. What acts entry by entry keeps permutable
units; it keeps their scale if it is homogeneous, f(s x) = s f(x) for s > 0, and its degree says
which power of the scale the result has.

Sums, extrema, norms and softmax are the same in every order of what they take. Units that all go
into one result change places freely; units that go into several are blocks, one for each result
(`Walk.fold`), as in maxout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.symmetry.layer_rules import LinearMap, contract
from polymode.symmetry.units import PINNED, ZERO, Label, Value, apply_to, move, varied, varies
from polymode.symmetry.walk import Call, Walk

_TURNING = frozenset("t T mT transpose swapaxes swapdims permute movedim moveaxis".split())


def follow(walk: Walk, call: Call) -> Any:
    """Return the labelled result of an operation, or NotImplemented if nothing is known of it."""
    rule = _RULES.get(call.operation.kind) if call.operation else None
    return NotImplemented if rule is None else rule(walk, call)


def _on_one(rule: Callable[[Walk, Call, Value], Any]) -> Callable[[Walk, Call], Any]:
    """Return a rule for operations whose only labelled input is the first."""

    def of_call(walk: Walk, call: Call) -> Any:
        x = walk.adopt(call.args[0]) if call.args else None
        if not isinstance(x, Value) or len(call.values()) > 1:
            return NotImplemented
        return rule(walk, call, x)

    return of_call


def _elementwise(walk: Walk, call: Call, x: Value) -> Any:
    degree = call.operation.degree if call.operation else None
    if degree is None:
        return Value(call.data, walk.pin_scale(x).moves)
    if degree == 1:
        return Value(call.data, x.moves, x.scale, x.zero)
    moves = [np.where(label == ZERO, PINNED, label) for label in x.moves]
    return Value(call.data, moves, walk.scales.power(x.scale, degree))


def _shaped(walk: Walk, call: Call) -> Any:
    """What depends on the shape of its input only has no units."""
    return Value(call.data, zero="zeros" in call.name)


def _pooled(walk: Walk, call: Call, x: Value) -> Any:
    x = walk.pin_along(x, range(2, x.data.dim()))
    if not isinstance(call.data, Tensor):
        return NotImplemented
    return Value(call.data, x.moves, x.scale, x.zero)


def _moved(walk: Walk, call: Call) -> Any:
    first = call.args[0]
    if call.name == "getitem" and isinstance(first, (tuple, list)):
        return first[call.args[1]]
    if not isinstance(first, Value) or len(call.values()) > 1:  # places that are computed
        return NotImplemented
    if first.raw is not None and first.data.dim() == 2 and call.name in _TURNING:
        if call.data.shape == first.data.shape[::-1] and call.data.stride() != first.data.stride():
            return Value(call.data, raw=first.raw, turned=not first.turned)
    x = walk.adopt(first)
    moved = apply_to(x, lambda t: call.function(t, *call.args[1:], **call.kwargs))
    return moved[0] if isinstance(call.data, Tensor) else tuple(moved)


def _joined(walk: Walk, call: Call) -> Value:
    dim = call.get("dim", 1, 0)
    if call.name != "stack":
        return _cat(walk, list(call.args[0]), dim, call.data)
    dim %= call.data.dim()
    parts = [apply_to(walk.adopt(v), lambda t: t.unsqueeze(dim))[0] for v in call.args[0]]
    return _cat(walk, parts, dim, call.data)


def _cat(walk: Walk, values: list[Any], dim: int, data: Tensor) -> Value:
    values, dim = [walk.adopt(value) for value in values], dim % data.dim()
    joined_axes = {
        a for v in values for label in v.moves if not varies(label, dim) for a in varied(label)
    }
    for value in values:
        value.moves = [
            walk.regular(walk.moves, label, [a for a in varied(label) if a != dim])
            if varies(label, dim) and joined_axes & set(varied(label))
            else label
            for label in value.moves
        ]
    joined = [label for v in values for label in v.moves if not varies(label, dim)]
    moves: list[Label] = []
    for label in joined:
        if any(set(varied(label)) & set(varied(partner)) for partner in moves):
            continue
        moves.append(label)
        for value in values:
            partners = [
                partner for partner in value.moves if set(varied(partner)) & set(varied(label))
            ]
            for partner in partners:
                walk.moves.tie(label, partner)
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
    labels = [label for label in value.moves if varies(label, dim)]
    for label in labels[1:]:
        walk.moves.pin(label)
    if labels:
        return labels[0]
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
            inner = [place for place in places if not (place == fill).all()]
            new = np.expand_dims(inner[0], axis)
    return new


def _sum(walk: Walk, call: Call) -> Any:
    """Sum, difference, maximum or minimum of two values, or of one and a number."""
    x, y = call.args[:2]
    if not (isinstance(x, Value) and isinstance(y, Value)):
        value, number = (x, y) if isinstance(x, Value) else (y, x)
        value = walk.adopt(value)
        if number != 0 or not isinstance(number, (int, float)):
            value = walk.pin_scale(value)
        return Value(call.data, value.moves, value.scale, value.zero)
    x, y = walk.adopt(x, "bias"), walk.adopt(y, "bias")
    moves = walk.merge(call.token, x, y, call.data)
    return Value(call.data, moves, walk.add_scales(x, y, call.data), x.zero and y.zero)


def _product(walk: Walk, call: Call) -> Any:
    """Product or quotient of two values, or of one and a number."""
    assert call.operation is not None
    x, y = call.args[:2]
    sign = -1 if call.operation.kind == "quotient" else 1
    if not (isinstance(x, Value) and isinstance(y, Value)):
        value, number = (x, y) if isinstance(x, Value) else (y, x)
        value = walk.adopt(value)
        if not isinstance(number, (int, float)):
            value = walk.pin_scale(value)
        divides = sign < 0 and not isinstance(x, Value)
        scale = walk.scales.power(value.scale, -1) if divides else value.scale
        return Value(call.data, value.moves, scale, value.zero)
    x, y = walk.adopt(x, "gain"), walk.adopt(y, "gain")
    moves = walk.merge(call.token, x, y, call.data)
    scale = walk.multiply_scales(x, y, call.data, sign)
    return Value(call.data, moves, scale, x.zero or (y.zero and sign > 0))


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
    chosen, first, second = call.args
    if call.name == "masked_fill":
        chosen, first, second = first, second, chosen
    parts = [_constant(v) if isinstance(v, (int, float)) else v for v in (chosen, first, second)]
    if not all(isinstance(v, Value) for v in parts):
        return NotImplemented
    chosen, first, second = (walk.adopt(v, "bias") for v in parts)
    moves = walk.merge(call.token, first, second, call.data)
    result = Value(
        call.data, moves, walk.add_scales(first, second, call.data), first.zero and second.zero
    )
    moves = walk.merge(f"{call.token}/condition", result, chosen, call.data)
    return Value(call.data, moves, result.scale, result.zero)


def _glu(walk: Walk, call: Call, x: Value) -> Any:
    """One half of the channels times the sigmoid of the other."""
    axis = call.function.dim if isinstance(call.function, nn.GLU) else call.get("dim", 1, -1)
    half, gate = apply_to(x, lambda t: t.chunk(2, axis))
    gate = walk.pin_scale(gate)
    return Value(call.data, walk.merge(call.token, half, gate, call.data), half.scale, half.zero)


def _functional_linear(walk: Walk, call: Call) -> Any:
    x, weight = walk.adopt(call.args[0]), call.get("weight", 1, None)
    bias = call.get("bias", 2, None)
    raw = [v.raw if isinstance(v, Value) else None for v in (weight, bias)]
    if raw[0] is None or (bias is not None and raw[1] is None) or not isinstance(x, Value):
        return NotImplemented
    by = LinearMap(raw[0], raw[1], _stored_shape(weight), transposed=weight.turned)
    return contract(walk, call.token, x, call.data, -1, by)


def _reduced(walk: Walk, call: Call, x: Value) -> Any:
    """Mean, sum, extremum, norm or the like over axes."""
    place = 2 if call.name == "norm" else 1
    dims = call.get("dim", place, None)
    if call.name == "norm" and not isinstance(call.get("p", 1, 2), (int, float)):
        return NotImplemented
    if dims is not None and not _are_axes(dims):
        return NotImplemented
    degree = call.operation.degree if call.operation else None
    if degree is None:
        x = walk.pin_scale(x)
    ndim = x.data.dim()
    axes = list(range(ndim)) if dims is None else [d % ndim for d in np.atleast_1d(dims).tolist()]
    moves, scale = _together(walk, call.token, x, axes)
    scale = walk.scales.power(scale, 1 if degree is None else degree)
    parts = call.data if isinstance(call.data, tuple) else (call.data,)
    if parts[0].dim() != ndim:
        moves, scale = ([np.squeeze(m, tuple(axes)) for m in moves], np.squeeze(scale, tuple(axes)))
    value = Value(parts[0], moves, scale, x.zero)
    kind: Any = type(call.data)
    return value if parts is not call.data else kind(value, *map(Value, parts[1:]))


def _extremum(walk: Walk, call: Call) -> Any:
    """Largest or smallest of two, or along an axis; places of them are known to no rule."""
    if len(call.values()) == 2:
        return _sum(walk, call)
    return NotImplemented if call.uses_more_than_first else _on_one(_reduced)(walk, call)


def _ordered(walk: Walk, call: Call, x: Value) -> Any:
    """The largest entries, or all of them, in order along an axis."""
    if call.uses_more_than_first or x.data.dim() == 0:
        return NotImplemented
    default = 0 if call.name == "msort" else -1
    axis = call.get("dim", 2 if call.name == "topk" else 1, default)
    if type(axis) is not int:
        return NotImplemented
    moves, scale = _together(walk, call.token, x, [axis % x.data.dim()])
    if not isinstance(call.data, tuple):
        return Value(call.data, moves, scale, x.zero)
    kind: Any = type(call.data)
    return kind(Value(call.data[0], moves, scale, x.zero), Value(call.data[1]))


def _softmax(walk: Walk, call: Call, x: Value) -> Value:
    """Entries over their sum along an axis; whole rows of units change places."""
    axis: Any = call.get("dim", 1, None)
    if isinstance(call.function, nn.Module):
        axis = getattr(call.function, "dim", -3)  # Softmax2d has no such attribute
    axis = (-1 if axis is None else axis) % x.data.dim()
    x = walk.pin_scale(x)
    for number, label in enumerate(x.moves):
        if varies(label, axis) and varied(label) != (axis,):
            walk.fold(f"{call.token}/{number}", label, [axis])
    return Value(call.data, x.moves)


def _together(walk: Walk, token: str, x: Value, axes: Sequence[int]) -> tuple[list[Label], Label]:
    """Return labels without variation along axes that are taken together."""
    moves: list[Label] = []
    for number, label in enumerate(x.moves):
        if not any(varies(label, axis) for axis in axes):
            moves.append(label)
        elif any(axis not in axes for axis in varied(label)):
            moves.append(walk.fold(f"{token}/{number}", label, axes))
    shape = [1 if axis in axes else size for axis, size in enumerate(x.scale.shape)]
    if shape == list(x.scale.shape):
        return moves, x.scale
    scale = walk.scales.fresh(math.prod(shape)).reshape(shape)  # of the results, for all they take
    walk.scales.tie(np.where(x.scale == ZERO, ZERO, scale), x.scale)
    return moves, scale


def _are_axes(dims: Any) -> bool:
    """Whether it is an axis or several, not a tensor or a name."""
    several = dims if isinstance(dims, (tuple, list)) else [dims]
    return bool(several) and all(type(axis) is int for axis in several)


def _matmul(walk: Walk, call: Call) -> Any:
    x, y = call.args[:2]
    if not (isinstance(x, Value) and isinstance(y, Value)):
        return NotImplemented
    if y.raw is not None and y.data.dim() == 2 and x.raw is None:
        by = LinearMap(y.raw, None, _stored_shape(y), transposed=not y.turned)
        return contract(walk, call.token, x, call.data, -1, by)
    x, y = walk.adopt(x), walk.adopt(y)
    if x.data.dim() != y.data.dim() or x.data.dim() < 2:
        return NotImplemented
    return _matrix_product(walk, call.token, x, y, call.data)


def _matrix_product(walk: Walk, token: str, x: Value, y: Value, data: Tensor) -> Value:
    """Batched matrix product (..., n, k) (..., k, m): what is summed over is tied, by blocks."""
    dim = data.dim()
    summed = [
        walk.regular(walk.moves, label, [a for a in range(dim) if a != free])
        for value, summed_axis, free in ((x, dim - 1, dim - 2), (y, dim - 2, dim - 1))
        for label in value.moves
        if varies(label, summed_axis)
    ]
    sides = [np.swapaxes(s, -1, -2) if s.shape[-2] > 1 else s for s in summed]  # k last
    moves: list[Label] = []
    counts = [
        sum(varies(label, summed_axis) for label in v.moves)
        for v, summed_axis in ((x, dim - 1), (y, dim - 2))
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
    for value, factor, summed_axis in ((x, y, dim - 1), (y, x, dim - 2)):
        for label in value.moves:
            if varies(label, summed_axis):
                continue
            partner = [
                k for k, result in enumerate(moves) if set(varied(result)) & set(varied(label))
            ]
            for k in partner:
                moves[k] = walk.join(token, (moves[k], _thin(moves[k])), (label, _thin(label)), dim)
            if not partner:
                moves.append(label)
            batch = [axis for axis in varied(label) if axis < dim - 2]
            met = any(varies(result, axis) for axis in batch for result in factor.moves)
            if not met and any(factor.data.shape[axis] > 1 for axis in batch):
                walk.moves.pin(label)
    return Value(data, moves, _matrix_product_scale(walk, x, y, dim))


def _thin(label: Label) -> Value:
    """Return a value whose sizes are those of its label."""
    return Value(torch.empty(label.shape, device="meta"))


def _matrix_product_scale(walk: Walk, x: Value, y: Value, dim: int) -> Label:
    """Products that are added up have one scale."""
    first = np.expand_dims(x.scale, dim - 1)
    second = np.expand_dims(np.swapaxes(y.scale, -1, -2), dim - 2)
    scale = walk.scales.combine(first, second)  # (..., n, m, k)
    return walk.regular(walk.scales, scale, range(dim))[..., 0]


def _attention_scores(walk: Walk, call: Call) -> Any:
    """softmax(q k^T / sqrt(d)) v, with torch's function for it."""
    values = call.values()
    if len(values) != 3 or len({v.data.dim() for v in values}) != 1 or values[0].data.dim() < 3:
        return NotImplemented
    q, k, v = (walk.adopt(value) for value in values)
    if call.kwargs.get("is_causal", len(call.args) > 5 and call.args[5]):
        q, k, v = (walk.pin_along(value, [value.data.dim() - 2]) for value in (q, k, v))
    heads = q.data.shape[-3]
    k, v = (
        apply_to(u, lambda t: t.repeat_interleave(heads // t.shape[-3], -3))[0]
        if u.data.shape[-3] not in (1, heads)
        else u
        for u in (k, v)
    )
    (turned,) = apply_to(k, lambda t: t.transpose(-2, -1))
    scores = _matrix_product(walk, f"{call.token}/scores", q, turned, q.data @ turned.data)
    scores = walk.touch(f"{call.token}/scores", walk.pin_scale(scores))
    return _matrix_product(walk, call.token, scores, v, call.data)


def _stored_shape(weight: Value) -> tuple[int, ...]:
    """Return the shape of a parameter as it is stored, turned or not."""
    return tuple(weight.data.shape[::-1] if weight.turned else weight.data.shape)


_RULES: dict[str, Callable[[Walk, Call], Any]] = {
    "elementwise": _on_one(_elementwise),
    "random": _on_one(_elementwise),
    "sum": _sum,
    "product": _product,
    "quotient": _product,
    "comparison": _compared,
    "choice": _where,
    "moving": _moved,
    "join": _joined,
    "padding": _pad,
    "pooling": _on_one(_pooled),
    "reduction": _on_one(_reduced),
    "extremum": _extremum,
    "order": _on_one(_ordered),
    "softmax": _on_one(_softmax),
    "gating": _on_one(_glu),
    "matrix product": _matmul,
    "attention": _attention_scores,
    "linear": _functional_linear,
    "shape": _shaped,
}
