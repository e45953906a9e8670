"""Balancing sweeps for geometric programmes over scalings; see `cost.py` for the mathematics.

`M` modes, `R` and `C` units that a tensor writes and reads, `V` scalings, `L` layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Term:
    """Masses (M, R, C) of a tensor that scale by exp(2 (row_sign u[row] + column_sign u[column])).

    `constant` is the mass (M,) that no scaling changes.
    """

    name: str
    matrix: Tensor
    row: Tensor
    row_sign: Tensor
    column: Tensor
    column_sign: Tensor
    constant: Tensor

    def row_factor(self, u: Tensor) -> Tensor:
        return torch.exp(2 * self.row_sign * u[:, self.row])

    def column_factor(self, u: Tensor) -> Tensor:
        return torch.exp(2 * self.column_sign * u[:, self.column])

    def sums(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return masses by row (M, R) and by column (M, C)."""
        p, q = self.row_factor(u), self.column_factor(u)
        rows = p * torch.bmm(self.matrix, q.unsqueeze(2)).squeeze(2)
        columns = q * torch.bmm(p.unsqueeze(1), self.matrix).squeeze(1)
        return rows, columns


@dataclass(frozen=True, eq=False)
class Solution:
    """Logarithms of scalings u (M, V), residuals and sweeps (M,)."""

    u: Tensor
    residual: Tensor
    sweeps: Tensor


class Programme:
    """min over u of the sum of all masses, u[:, 0] = 0.

    Args:
        terms: the masses.
        blocks: scalings of each layer; layers whose units meet in a term are taken one by one.
        num_modes: M. size: V.

    Attributes:
        lost: for each term, the mass (M,) that goes to 0 for free.
    """

    def __init__(
        self, terms: list[Term], blocks: list[np.ndarray], num_modes: int, size: int
    ) -> None:
        self.num_modes, self.size = num_modes, size
        self.terms, self.lost = self._without_vanishing(terms)
        self.blocks = [torch.from_numpy(part) for block in blocks for part in self._apart(block)]
        self._of_block = [self._touching(block) for block in self.blocks]

    # ---------------------------------------------------------------- set up

    def _without_vanishing(self, terms: list[Term]) -> tuple[list[Term], list[Tensor]]:
        """Remove masses around scalings that only ever grow or only ever shrink what they touch."""
        terms = list(terms)
        if not terms:
            return [], []
        lost = [torch.zeros(len(term.matrix), dtype=torch.float64) for term in terms]
        u = torch.zeros(len(terms[0].matrix), self.size, dtype=torch.float64)
        while True:
            grow, shrink = self._in_and_out(terms, u)
            loose = (grow > 0) != (shrink > 0)
            loose[:, 0] = False
            if not loose.any():
                return terms, lost
            for k, term in enumerate(terms):
                out = loose[:, term.row].unsqueeze(2) | loose[:, term.column].unsqueeze(1)
                lost[k] = lost[k] + (term.matrix * out).sum((1, 2))
                matrix = torch.where(out, 0.0, term.matrix)
                terms[k] = Term(**{**vars(term), "matrix": matrix})

    def _in_and_out(self, terms: list[Term], u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the masses (M, V) that grow and that shrink with each scaling."""
        both = torch.zeros(2, len(u), self.size, dtype=torch.float64)
        for term in terms:
            rows, columns = term.sums(u)
            for sums, units, sign in (
                (rows, term.row, term.row_sign),
                (columns, term.column, term.column_sign),
            ):
                both[0].index_add_(1, units, sums * (sign > 0))
                both[1].index_add_(1, units, sums * (sign < 0))
        return both[0], both[1]

    def _apart(self, block: np.ndarray) -> list[np.ndarray]:
        """Return the block, or its scalings one by one if two of them meet in a term."""
        mine = torch.from_numpy(np.isin(np.arange(self.size), block))
        for term in self.terms:
            meet = mine[term.row][:, None] & mine[term.column][None] & (term.matrix > 0).any(0)
            if meet.any():
                return [block[k : k + 1] for k in range(len(block))]
        return [block]

    def _touching(self, block: Tensor) -> list[Term]:
        inside = torch.zeros(self.size, dtype=torch.bool)
        inside[block] = True
        return [t for t in self.terms if inside[t.row].any() or inside[t.column].any()]

    # ---------------------------------------------------------------- solution

    def masses(self, u: Tensor) -> list[Tensor]:
        """Return the mass (M,) of each term."""
        return [term.sums(u)[0].sum(1) for term in self.terms]

    def total(self, u: Tensor) -> Tensor:
        zero = torch.zeros(len(u), dtype=torch.float64)
        return sum(self.masses(u), zero) + sum((t.constant for t in self.terms), zero)

    def residual(self, u: Tensor) -> Tensor:
        """Return max |incoming - outgoing| / mass, (M,)."""
        grow, shrink = self._in_and_out(self.terms, u)
        gap = (grow - shrink)[:, 1:].abs()
        worst = gap.amax(1) if gap.shape[1] else gap.new_zeros(len(u))
        return worst / self.total(u).clamp(min=torch.finfo(torch.float64).tiny)

    def solve(self, tolerance: float, most_sweeps: int) -> Solution:
        """Sweep until every member's residual is at most the tolerance."""
        modes = self.num_modes
        u = torch.zeros(modes, self.size, dtype=torch.float64)
        residual, sweeps = self.residual(u), torch.zeros(modes, dtype=torch.long)
        active = (residual > tolerance).nonzero().flatten()
        part = self if len(active) == modes else self._members(active)
        while len(active) and int(sweeps.max()) < most_sweeps:
            mine = u[active]
            part._sweep(mine)
            mine = part._one_factor_per_layer(mine)
            u[active], residual[active] = mine, part.residual(mine)
            sweeps[active] += 1
            left = residual[active] > tolerance
            if left.sum() < len(active):
                active = active[left]
                part = self._members(active)
        return Solution(u, residual, sweeps)

    def _members(self, which: Tensor) -> Programme:
        """Return the programme of some members."""
        part = object.__new__(Programme)
        part.num_modes, part.size = len(which), self.size
        part.blocks, part.lost = self.blocks, self.lost
        part.terms = [
            Term(**{**vars(t), "matrix": t.matrix[which], "constant": t.constant[which]})
            for t in self.terms
        ]
        part._of_block = [part._touching(block) for block in part.blocks]
        return part

    def _sweep(self, u: Tensor) -> None:
        """Set the scalings of each layer to their exact minimum, layer after layer, in place."""
        for block, terms in zip(self.blocks, self._of_block, strict=True):
            grow, shrink = (side[:, block] for side in self._in_and_out(terms, u))
            step = 0.25 * torch.log(shrink / grow)
            u[:, block] += torch.where((grow > 0) & (shrink > 0), step, 0.0)

    def _one_factor_per_layer(self, u: Tensor) -> Tensor:
        """Return u after a Newton step in one common factor per layer, where that is better."""
        layers = len(self.blocks)
        if layers < 2 or layers > 200:
            return u
        layer = torch.full((self.size,), layers)
        for k, block in enumerate(self.blocks):
            layer[block] = k
        gradient = u.new_zeros(len(u), layers + 1)
        hessian = u.new_zeros(len(u), layers + 1, layers + 1)
        for term in self.terms:
            masses = (
                term.matrix * term.row_factor(u).unsqueeze(2) * term.column_factor(u).unsqueeze(1)
            )
            rows, columns = layer[term.row], layer[term.column]
            r, c = term.row_sign, term.column_sign
            by_row, by_column = masses.sum(2), masses.sum(1)
            gradient.index_add_(1, rows, 2 * r * by_row).index_add_(1, columns, 2 * c * by_column)
            flat = hessian.view(len(u), -1)
            flat.index_add_(1, rows * (layers + 2), 4 * r * r * by_row)
            flat.index_add_(1, columns * (layers + 2), 4 * c * c * by_column)
            cross = (4 * r[:, None] * c[None] * masses).flatten(1)
            a, b = (
                side.reshape(-1) for side in torch.broadcast_tensors(rows[:, None], columns[None])
            )
            flat.index_add_(1, a * (layers + 1) + b, cross).index_add_(
                1, b * (layers + 1) + a, cross
            )
        inner, slope = hessian[:, :layers, :layers], gradient[:, :layers]
        ridge = 1e-12 * inner.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)
        inner = inner + ridge[:, None, None] * torch.eye(layers, dtype=u.dtype)
        step = torch.zeros(len(u), layers + 1, dtype=u.dtype)
        step[:, :layers] = -torch.linalg.solve_ex(inner, slope)[0]
        moved = u + step[:, layer].clamp(-5, 5)
        moved[:, 0] = 0
        better = self.total(moved) < self.total(u)
        return torch.where(better[:, None], moved, u)
