"""Rules for products of matrices, of which both may be activations, and for attention's scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.symmetry.call import Call
from polymode.symmetry.layers import contract
from polymode.symmetry.units import Label, Value, apply_to, varied, varies
from polymode.symmetry.walk import Walk


def matmul(walk: Walk, call: Call) -> Any:
    x, y = call.args[:2]
    if not (isinstance(x, Value) and isinstance(y, Value)):
        return NotImplemented
    if y.raw is not None and y.data.dim() == 2 and x.raw is None:
        return contract(
            walk, call.token, x, call.data, axis=-1, weight=y.raw, bias=None,
            shape=stored_shape(y), transposed=not y.turned,
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
    """Products that are added up have one scale."""
    one = np.expand_dims(x.scale, dim - 1)
    other = np.expand_dims(np.swapaxes(y.scale, -1, -2), dim - 2)
    scale = walk.scales.combine(one, other)  # (..., n, m, k)
    return walk.regular(walk.scales, scale, range(dim))[..., 0]


def attention_scores(walk: Walk, call: Call) -> Any:
    """softmax(q k^T / sqrt(d)) v, with torch's function for it."""
    values = list(call.values())
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
    scores = product(walk, f"{call.token}/scores", q, turned, q.data @ turned.data)
    scores = walk.touch(f"{call.token}/scores", walk.pin_scale(scores))
    return product(walk, call.token, scores, v, call.data)


def stored_shape(weight: Value) -> tuple[int, ...]:
    """Return the shape of a parameter as it is stored, turned or not."""
    return tuple(weight.data.shape[::-1] if weight.turned else weight.data.shape)
