"""Rules for operations that take many entries together: sums, extrema, norms, sorting, softmax.

They are the same in every order of what they take. Units that all go into one result change places
freely; units that go into several are blocks, one for each result (`Walk.fold`), as in maxout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from polymode.symmetry.call import Call
from polymode.symmetry.units import ZERO, Label, Value, varied, varies
from polymode.symmetry.walk import Walk

# how often the scale of what is taken is in the scale of the result
DEGREES = {"mean": 1, "sum": 1, "amax": 1, "amin": 1, "std": 1, "norm": 1, "var": 2}
INHOMOGENEOUS = {"logsumexp"}
EXTREMA = {"max", "min"}
SORTING = {"topk", "sort", "msort"}


def reduced(walk: Walk, call: Call, x: Value) -> Any:
    """Mean, sum, extremum, norm or the like over axes."""
    place = 2 if call.name == "norm" else 1
    dims = call.get("dim", place, None)
    if call.name == "norm" and not isinstance(call.get("p", 1, 2), (int, float)):
        return NotImplemented
    if dims is not None and not _are_axes(dims):
        return NotImplemented
    if call.name in INHOMOGENEOUS:
        x = walk.pin_scale(x)
    ndim = x.data.dim()
    axes = list(range(ndim)) if dims is None else [d % ndim for d in np.atleast_1d(dims).tolist()]
    moves, scale = _together(walk, call.token, x, axes)
    scale = walk.scales.power(scale, DEGREES.get(call.name, 1))
    parts = call.data if isinstance(call.data, tuple) else (call.data,)
    if parts[0].dim() != ndim:
        moves, scale = ([np.squeeze(m, tuple(axes)) for m in moves], np.squeeze(scale, tuple(axes)))
    value = Value(parts[0], moves, scale, x.zero)
    kind: Any = type(call.data)
    return value if parts is not call.data else kind(value, *map(Value, parts[1:]))


def extremum(walk: Walk, call: Call, x: Value) -> Any:
    """Largest or smallest entries along an axis; places of them are known to no rule."""
    if call.uses_more_than_first:
        return NotImplemented
    return reduced(walk, call, x)


def ordered(walk: Walk, call: Call, x: Value) -> Any:
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


def softmax(walk: Walk, call: Call, x: Value) -> Value:
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
