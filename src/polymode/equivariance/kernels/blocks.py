"""Kernels of many inputs, block by block: each block fits into the processor's cache.

A pooled convolutional kernel holds (H W)² numbers per pair and tensor, so all pairs at once would
take terabytes. A block of few pairs is carried through all layers, then the next; of symmetric
kernels one half is computed. Variances of single inputs come first and serve all blocks.

Shapes: `N`, `N'` inputs, `P` pairs of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from polymode.core.memory import require_free
from polymode.equivariance.kernels.covariance import (
    Covariance,
    Recorded,
    Replayed,
    all_pairs,
    input_covariance,
    paired_covariance,
    same_pixels,
)

if TYPE_CHECKING:
    from polymode.equivariance.kernels.serial import Serial

BLOCK = {
    "vector": 2**18,
    "diagonal": 2**17,
    "full": 2**20,
}  # numbers of a tensor, tuned by measurement
LIVE = 6  # tensors of a block that are in memory at once


class Kernels(NamedTuple):
    """NNGP and NTK, (N, N') each; `ntk` is empty where it was not wanted."""

    nngp: Tensor
    ntk: Tensor


def evaluate(kernel: Serial, x: Tensor, y: Tensor | None, ntk: bool, dtype: torch.dtype) -> Kernels:
    """Return the kernels of all pairs, see `Serial.__call__`."""
    x, form = _checked(kernel, x, "x", dtype)
    symmetric = y is None
    other = x if y is None else _checked(kernel, y, "y", dtype)[0]
    _require_alike(x, other)
    _require_memory(x, other, form, ntk)
    with torch.no_grad():
        first = variances(kernel, x, form)
        second = first if symmetric else variances(kernel, other, form)
        nngp = x.new_empty(len(x), len(other))
        tangent = torch.empty_like(nngp if ntk else nngp[:0])
        for rows, columns in _blocks(x, other, form, symmetric):
            ours, theirs = (
                [each[..., part] for each in found]
                for part, found in ((rows, first), (columns, second))
            )
            left, right = x[rows], other[columns]
            pairs = (None, None) if form == "vector" else all_pairs(len(left), len(right))
            known = Replayed(ours, theirs, *pairs)
            start = input_covariance(left, right, form)
            found = _through(kernel, Covariance(start, form, known, wants_ntk=ntk))
            for whole, block in ((nngp, found.nngp), (tangent, found.ntk)):
                if block is None:
                    continue
                block = block.view(len(left), len(right))
                whole[rows, columns] = block
                if symmetric:
                    whole[columns, rows] = block.mT
    return Kernels(nngp, tangent)


def evaluate_pairs(kernel: Serial, x: Tensor, y: Tensor, ntk: bool, dtype: torch.dtype) -> Kernels:
    """Return the kernels of the pairs (x[n], y[n]), see `Serial.pairs`."""
    x, form = _checked(kernel, x, "x", dtype)
    y, _ = _checked(kernel, y, "y", dtype)
    _require_alike(x, y)
    if len(x) != len(y):
        raise ValueError(f"pairs need as many rows of x as of y, got {len(x)} and {len(y)}")
    found: list[Covariance] = []
    with torch.no_grad():
        for part in _pieces(x, form):
            left, right = x[part], y[part]
            first, second = (variances(kernel, each, form) for each in (left, right))
            index = torch.arange(len(left))
            start = paired_covariance(left, right, form)
            known = Replayed(first, second, index, index)
            found.append(_through(kernel, Covariance(start, form, known, wants_ntk=ntk)))
    nngp = torch.cat([each.nngp for each in found])
    return Kernels(nngp, torch.cat([nngp[:0] if each.ntk is None else each.ntk for each in found]))


def variances(kernel: Serial, x: Tensor, form: str) -> list[Tensor]:
    """Return the variances of each input wherever a layer asks for them, (..., N) each."""
    found: list[list[Tensor]] = []
    for part in _pieces(x, form):
        record = Recorded()
        start = paired_covariance(x[part], x[part], form)
        _through(kernel, Covariance(start, form, record, wants_ntk=False))
        found.append(record.found)
    return [torch.cat(each, -1) for each in zip(*found, strict=True)]


def _through(kernel: Serial, covariance: Covariance) -> Covariance:
    """Carry the covariances through all layers; what no later layer needs is dropped."""
    for number, layer in enumerate(kernel.parts):
        if covariance.form == "full" and _form(kernel, number) != "full":
            covariance.nngp = same_pixels(covariance.nngp)
            if covariance.ntk is not None:
                covariance.ntk = same_pixels(covariance.ntk)
            covariance.form = "diagonal"
        covariance.where = f"layer {number}, {layer!r},"
        layer.act(covariance)
    if covariance.form != "vector":
        raise ValueError(
            "the network ends with pixels: put Flatten() or GlobalAvgPool() before its last layer"
        )
    if covariance.ntk is None and covariance.wants_ntk:
        covariance.ntk = torch.zeros_like(covariance.nngp)
    return covariance


def _form(kernel: Serial, number: int) -> str:
    """Return the form that layers from `number` on need."""
    form = "vector"
    for layer in reversed(kernel.parts[number:]):
        form = layer.needs(form)
    return form


def _checked(kernel: Serial, x: Tensor, name: str, dtype: torch.dtype) -> tuple[Tensor, str]:
    """Return finite inputs with their form."""
    if x.ndim not in (2, 4) or len(x) == 0:
        raise ValueError(
            f"`{name}` must be (N, d) or (N, C, H, W) with N ≥ 1, got {tuple(x.shape)}"
        )
    x = x.detach().to(dtype)
    if not bool(x.isfinite().all()):
        raise ValueError(f"`{name}` has {int((~x.isfinite()).sum())} values that are not finite")
    if x.ndim == 2:
        return x, "vector"
    form = _form(kernel, 0)
    return x, "diagonal" if form == "vector" else form


def _require_alike(x: Tensor, y: Tensor) -> None:
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"`x` and `y` must have the same shape but for N, got {tuple(x.shape)} and"
            f" {tuple(y.shape)}"
        )


def _numbers(x: Tensor, form: str) -> int:
    """Numbers of a tensor per pair of inputs."""
    pixels = math.prod(x.shape[2:])
    return {"vector": 1, "diagonal": pixels, "full": pixels**2}[form]


def _side(x: Tensor, form: str) -> int:
    """Inputs on each side of a block, at least 1."""
    return max(1, math.isqrt(BLOCK[form] // _numbers(x, form)))


def _pieces(x: Tensor, form: str) -> Iterator[slice]:
    """Yield parts of the inputs of which all self-covariances are held at once."""
    size = max(1, BLOCK[form] // _numbers(x, form))
    for start in range(0, len(x), size):
        yield slice(start, min(start + size, len(x)))


def _blocks(x: Tensor, y: Tensor, form: str, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of blocks; of a symmetric matrix those on and above the diagonal."""
    if form == "vector":  # whole rows: long ones make quick products
        height, width = max(1, BLOCK[form] // len(y)), len(y)
    else:
        height = width = _side(x, form)
    for top in range(0, len(x), height):
        rows = slice(top, min(top + height, len(x)))
        for left in range(top if symmetric else 0, len(y), width):
            yield rows, slice(left, min(left + width, len(y)))


def _require_memory(x: Tensor, y: Tensor, form: str, ntk: bool) -> None:
    whole = (1 + ntk) * len(x) * len(y)
    side = _side(x, form)
    pairs = min(side, len(x)) * min(side, len(y)) if form != "vector" else 0
    block = LIVE * max(pairs * _numbers(x, form), min(BLOCK["vector"], whole))
    many = (whole + block) * x.element_size()
    sides = "x".join(map(str, x.shape[2:]))
    each = f", {_numbers(x, form):,} numbers per pair of {sides} pixels" if sides else ""
    require_free(
        many,
        f"kernels of {len(x):,} × {len(y):,} inputs{each}",
        "Take fewer inputs, smaller images, ntk=False, or Flatten() instead of pooling.",
        x.device,
    )
