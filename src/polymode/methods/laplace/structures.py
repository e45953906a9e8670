"""The sums over the data that make each structure of curvature, from records of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from polymode.curvature.blocks import (
    ROWS,
    Block,
    Dense,
    Diagonal,
    Kronecker,
    LowRank,
    eigen,
    index_of,
    jacobian,
)
from polymode.curvature.records import Record
from polymode.curvature.tangent import Tangent
from polymode.tracing.modules import Tensors

Parts = Iterator[Iterator[tuple[str, Record]]]
"""For each part of the data the records of each parameter, one after another."""

_OVERSAMPLING = 10  # further directions that make the leading ones converge faster


def kron(parts: Parts, tangent: Tangent, reduce: bool) -> tuple[Block, ...]:
    """Return Kronecker factors of matrices and biases, and diagonals of the rest."""
    moving: Tensors = {}  # by the first of the parameters that the same gradients come back to
    fixed: Tensors = {}
    diagonals: Tensors = {}
    about: dict[str, tuple[str, bool]] = {}  # that first one, and the layout
    number = 0
    for part in parts:
        sources: dict[tuple[int, ...], str] = {}
        for name, record in part:
            if tangent.survey.kinds[name] not in ("matrix", "bias"):
                _add(diagonals, name, record.squares())
                continue
            source = sources.setdefault(_memory(record.moving), name)
            if source == name:
                _add(moving, name, record.moving_factor(reduce))
            _add(fixed, name, record.fixed_factor(reduce))
            about[name] = source, record.fixed_first
            number += record.moving.shape[2] if name == next(iter(about)) else 0
    bases = {name: eigen(total) for name, total in moving.items()}
    blocks: list[Block] = []
    for name in tangent.wanted:
        if name in about:
            source, fixed_first = about[name]
            block = Kronecker.of(name, bases[source], fixed[name] / number, fixed_first)
            blocks.append(block.to(tangent.params[name].dtype))
        else:
            blocks.append(_diagonal(name, diagonals, tangent))
    return tuple(blocks)


def _memory(moving: Tensor) -> tuple[int, ...]:
    """Return where a tensor lies: a weight and a bias of one call share their gradients."""
    return moving.data_ptr(), *moving.shape


def diag(parts: Parts, tangent: Tangent) -> tuple[Block, ...]:
    """Return the diagonal of every parameter."""
    totals: Tensors = {}
    for part in parts:
        for name, record in part:
            _add(totals, name, record.squares())
    return tuple(_diagonal(name, totals, tangent) for name in tangent.wanted)


def full(parts: Parts, tangent: Tangent) -> tuple[Block, ...]:
    """Return one block of all parameters."""
    return subnetwork(parts, tangent, None)


def subnetwork(parts: Parts, tangent: Tangent, chosen: Tensor | None) -> tuple[Block, ...]:
    """Return one block of some numbers of the parameters."""
    lengths = {name: tangent.params[name].numel() for name in tangent.wanted}
    index = None if chosen is None else index_of(chosen, list(lengths.values()))
    size = sum(lengths.values()) if chosen is None else len(chosen)
    dtype = next(iter(tangent.params.values())).dtype
    total = torch.zeros(size, size, dtype=torch.float64)
    for part in parts:
        records = _complete(dict(part), tangent)
        number, batch = next(iter(records.values())).moving.shape[0:3:2]
        step = max(1, ROWS // (number * size))
        for start in range(0, batch, step):
            rows = jacobian(records, tangent.wanted, index, slice(start, start + step))
            flat = rows.flatten(0, 1)
            total += flat.mT @ flat
    return (Dense.of(lengths, total, chosen, dtype=dtype),)


def last_layer(parts: Parts, tangent: Tangent) -> tuple[Block, ...]:
    """Return one block of the last layer, Σ_n (Σ_r g gᵀ) ⊗ (a, 1)(a, 1)ᵀ.

    Both are symmetric: one product of their upper halves serves all examples.
    """
    weight = tangent.wanted[0]
    if weight in tangent.survey.shared or tangent.survey.kinds[weight] != "matrix":
        return full(parts, tangent)
    lengths = {name: tangent.params[name].numel() for name in tangent.wanted}
    total: Tensor | None = None
    for part in parts:
        record = dict(part)[weight]
        inputs = record.fixed[0, :, 0]
        if len(lengths) == 2:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], 1)
        g = record.moving[:, 0, :, 0].transpose(0, 1)  # (B, R, O)
        total = _halves(g.mT @ g).mT @ _halves(inputs.unsqueeze(-1) * inputs.unsqueeze(-2)) + (
            0.0 if total is None else total
        )
    assert total is not None
    outputs, width = tangent.params[weight].shape
    matrix = _from_halves(total, outputs, width + len(lengths) - 1)
    order = _weight_then_bias(outputs, width, len(lengths) == 2)
    matrix = matrix[order][:, order]
    dtype = tangent.params[weight].dtype
    return (Dense.of(lengths, matrix.double(), one_layer=True, dtype=dtype),)


def _halves(symmetric: Tensor) -> Tensor:
    """Return the upper halves of matrices (B, n, n) as rows."""
    size = symmetric.shape[-1]
    a, b = torch.triu_indices(size, size)
    return symmetric[:, a, b]


def _from_halves(total: Tensor, outputs: int, width: int) -> Tensor:
    """Return (O, I, O, I) as a matrix, from the upper halves of both pairs of axes."""
    places = []
    for size in (outputs, width):
        a, b = torch.triu_indices(size, size)
        place = torch.empty(size, size, dtype=torch.long)
        place[a, b] = place[b, a] = torch.arange(len(a))
        places.append(place)
    whole = total[places[0]][:, :, places[1]]  # (O, O, I, I)
    return whole.transpose(1, 2).reshape(outputs * width, outputs * width)


def _weight_then_bias(outputs: int, width: int, bias: bool) -> Tensor:
    """Return where the numbers of (weight, bias) are in rows (weight, bias) of each output."""
    places = torch.arange(outputs * (width + bias)).view(outputs, width + bias)
    return torch.cat([places[:, :width].flatten(), places[:, width:].flatten()])


def low_rank(
    passes: Callable[[], Parts], tangent: Tangent, rank: int, number: int, stream: torch.Generator
) -> tuple[Block, ...]:
    """Return the leading eigenvectors by subspace iteration, one pass over the data per step
    (Halko et al., SIAM Review 2011, algorithm 4.4), then the eigenvalues on their span."""
    lengths = [tangent.params[name].numel() for name in tangent.wanted]
    like = next(iter(tangent.params.values()))
    columns = min(rank + _OVERSAMPLING, sum(lengths))
    start = torch.randn(sum(lengths), columns, generator=stream, dtype=torch.float64)
    basis = torch.linalg.qr(start.to(like))[0]
    for _ in range(number - 1):
        basis = torch.linalg.qr(_times(passes(), tangent, basis, lengths))[0]
    image = _times(passes(), tangent, basis, lengths)
    values, vectors = torch.linalg.eigh((basis.mT @ image).double())
    kept = min(rank, columns)
    values, vectors = values[-kept:].clamp_min(0).to(like), vectors[:, -kept:].to(like)
    rows = (basis @ vectors).mT.split(lengths, 1)
    directions = {name: part.contiguous() for name, part in zip(tangent.wanted, rows, strict=True)}
    return (LowRank(directions, values),)


def _times(parts: Parts, tangent: Tangent, columns: Tensor, lengths: list[int]) -> Tensor:
    """Return C times some columns (P, K)."""
    rows = dict(zip(tangent.wanted, columns.mT.split(lengths, 1), strict=True))
    total = {name: torch.zeros_like(part) for name, part in rows.items()}
    for part in parts:
        records = dict(part)
        along: Any = sum(record.along(rows[name]) for name, record in records.items())
        for name, record in records.items():
            total[name] += record.against(along)
    return torch.cat(list(total.values()), 1).mT


def _add(totals: Tensors, name: str, more: Tensor) -> None:
    """Add in float64: many small batches add up."""
    totals[name] = more.double() if name not in totals else totals[name] + more


def _diagonal(name: str, totals: Tensors, tangent: Tangent) -> Diagonal:
    parameter = tangent.params[name]
    zeros = torch.zeros(parameter.numel(), dtype=torch.float64)  # of what outputs do not depend on
    return Diagonal(name, totals.get(name, zeros).to(parameter))


def _complete(records: dict[str, Record], tangent: Tangent) -> dict[str, Record]:
    """Return the records with zeros for parameters that outputs do not depend on."""
    like = next(iter(records.values()))
    number, _, batch = like.moving.shape[:3]
    for name in tangent.wanted:
        if name not in records:
            moving = like.moving.new_zeros(number, 1, batch, 1, tangent.params[name].numel())
            records[name] = Record(moving, moving.new_ones(1, batch, 1, 1), 1)
    return records


SUMS: dict[str, Callable[..., tuple[Block, ...]]] = {
    "kron": kron,
    "diag": diag,
    "full": full,
    "last_layer": last_layer,
    "subnetwork": subnetwork,
}
