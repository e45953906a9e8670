"""Balancing sweeps for geometric programmes over scalings; see `cost.py` for the mathematics.

`M` modes, `R` and `C` units that a tensor writes and reads, `V` scalings, `L` layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Sums = tuple[Tensor, Tensor, Tensor]
FEW = 64  # scalings that are all in one Newton step
MOST_TOGETHER = 200  # factors of a Newton step


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

    def by_row(self, u: Tensor) -> Tensor:
        """Return masses by row, (M, R)."""
        factor = self.column_factor(u).unsqueeze(2)
        return self.row_factor(u) * torch.bmm(self.matrix, factor).squeeze(2)

    def by_column(self, u: Tensor) -> Tensor:
        """Return masses by column, (M, C)."""
        factor = self.row_factor(u).unsqueeze(1)
        return self.column_factor(u) * torch.bmm(factor, self.matrix).squeeze(1)

    def side(self, u: Tensor, rows: bool) -> Sums:
        """Return masses by row or by column, with their units and signs."""
        if rows:
            return self.by_row(u), self.row, self.row_sign
        return self.by_column(u), self.column, self.column_sign


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
            grow, shrink = self._in_and_out(_all_sums(terms, u), len(u))
            loose = (grow > 0) != (shrink > 0)
            loose[:, 0] = False
            if not loose.any():
                return terms, lost
            for k, term in enumerate(terms):
                out = loose[:, term.row].unsqueeze(2) | loose[:, term.column].unsqueeze(1)
                lost[k] = lost[k] + (term.matrix * out).sum((1, 2))
                matrix = torch.where(out, 0.0, term.matrix)
                terms[k] = Term(**{**vars(term), "matrix": matrix})

    def _in_and_out(self, sums: list[Sums], modes: int) -> tuple[Tensor, Tensor]:
        """Return the masses (M, V) that grow and that shrink with each scaling."""
        both = torch.zeros(2, modes, self.size, dtype=torch.float64)
        for mass, units, sign in sums:
            both[0].index_add_(1, units, mass * (sign > 0))
            both[1].index_add_(1, units, mass * (sign < 0))
        return both[0], both[1]

    def _apart(self, block: np.ndarray) -> list[np.ndarray]:
        """Return the block, or its scalings one by one if two of them meet in a term."""
        mine = torch.from_numpy(np.isin(np.arange(self.size), block))
        for term in self.terms:
            meet = mine[term.row][:, None] & mine[term.column][None] & (term.matrix > 0).any(0)
            if meet.any():
                return [block[k : k + 1] for k in range(len(block))]
        return [block]

    def _touching(self, block: Tensor) -> list[tuple[Term, bool]]:
        """Return the terms that a block is in, each with whether it is in its rows."""
        inside = torch.zeros(self.size, dtype=torch.bool)
        inside[block] = True
        sides = [(t, True) for t in self.terms if inside[t.row].any()]
        return sides + [(t, False) for t in self.terms if inside[t.column].any()]

    # ---------------------------------------------------------------- solution

    def masses(self, u: Tensor) -> list[Tensor]:
        """Return the mass (M,) of each term."""
        return [term.by_row(u).sum(1) for term in self.terms]

    def solve(self, tolerance: float, most_sweeps: int) -> Solution:
        """Sweep until every member's residual is at most the tolerance."""
        modes = self.num_modes
        u = torch.zeros(modes, self.size, dtype=torch.float64)
        residual, sweeps = torch.zeros(modes, dtype=torch.float64), torch.zeros(modes).long()
        active, part = torch.arange(modes), self
        while len(active) and self.terms:
            mine = u[active]
            sums = _all_sums(part.terms, mine)
            residual[active] = part._residual(sums)
            left = (residual[active] > tolerance) & (sweeps[active] < most_sweeps)
            if not left.all():
                active, mine = active[left], mine[left]
                part = self._members(active)
                sums = [(mass[left], units, sign) for mass, units, sign in sums]
            if len(active):
                if sweeps[active[0]] > 0:
                    mine = part._together(mine, sums)
                part._sweep(mine)
                u[active] = mine
                sweeps[active] += 1
        return Solution(u, residual, sweeps)

    def _residual(self, sums: list[Sums]) -> Tensor:
        """Return max |incoming - outgoing| / mass, (M,)."""
        modes = len(sums[0][0])
        grow, shrink = self._in_and_out(sums, modes)
        worst = (grow - shrink)[:, 1:].abs().amax(1) if self.size > 1 else torch.zeros(modes)
        total = sum((t.constant for t in self.terms), torch.zeros(modes))
        total = sum((mass.sum(1) for mass, _, _ in sums[::2]), total)
        return worst / total.clamp(min=torch.finfo(torch.float64).tiny)

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
        for block, sides in zip(self.blocks, self._of_block, strict=True):
            sums = [
                (t.by_row(u), t.row, t.row_sign)
                if row
                else (t.by_column(u), t.column, t.column_sign)
                for t, row in sides
            ]
            grow, shrink = (side[:, block] for side in self._in_and_out(sums, len(u)))
            step = 0.25 * torch.log(shrink / grow)
            u[:, block] += torch.where((grow > 0) & (shrink > 0), step, 0.0)

    def _together(self, u: Tensor, sums: list[Sums]) -> Tensor:
        """Return u after a Newton step in one factor per layer, or per scaling if these are few;
        where it does not lower the mass, u stays."""
        layer, count = self._layers()
        if not 1 < count <= MOST_TOGETHER:
            return u
        gradient = u.new_zeros(len(u), count + 1)
        hessian = u.new_zeros(len(u), (count + 1) ** 2)
        for mass, units, sign in sums:
            place = layer[units]
            gradient.index_add_(1, place, 2 * sign * mass)
            hessian.index_add_(1, place * (count + 2), 4 * sign * sign * mass)
        for k, term in enumerate(self.terms):
            rows, columns, mass = self._cross(term, layer, u, sums[2 * k][0])
            hessian.index_add_(1, rows * (count + 1) + columns, mass)
            hessian.index_add_(1, columns * (count + 1) + rows, mass)
        inner = hessian.reshape(-1, count + 1, count + 1)[:, :count, :count]
        ridge = 1e-12 * inner.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)
        inner = inner + ridge[:, None, None] * torch.eye(count, dtype=u.dtype)
        step = torch.zeros(len(u), count + 1, dtype=u.dtype)
        step[:, :count] = -torch.linalg.solve_ex(inner, gradient[:, :count])[0]
        moved = u + step.clamp(-5, 5)[:, layer]
        before = sum(mass.sum(1) for mass, _, _ in sums[::2])
        after = sum(self.masses(moved), torch.zeros(len(u)))
        return torch.where((after < before)[:, None], moved, u)

    def _layers(self) -> tuple[Tensor, int]:
        """Return which factor of a Newton step each scaling has, the last for none; how many."""
        if self.size <= FEW:
            return torch.arange(self.size) - 1 + self.size * (
                torch.arange(self.size) == 0
            ), self.size - 1
        layer = torch.full((self.size,), len(self.blocks))
        for k, block in enumerate(self.blocks):
            layer[block] = k
        return layer, len(self.blocks)

    def _cross(self, term: Term, layer: Tensor, u: Tensor, by_row: Tensor) -> Sums:
        """Return rows, columns and values of the second derivatives between two factors."""
        rows, columns = layer[term.row], layer[term.column]
        r, c = term.row_sign, term.column_sign
        if len(columns.unique()) == 1 and len(c.unique()) == 1:
            return rows, columns[:1].expand(len(rows)), 4 * r * c[0] * by_row
        masses = term.matrix * term.row_factor(u).unsqueeze(2) * term.column_factor(u).unsqueeze(1)
        sides = torch.broadcast_tensors(rows[:, None], columns[None])
        values = (4 * r[:, None] * c[None] * masses).flatten(1)
        return sides[0].reshape(-1), sides[1].reshape(-1), values


def _all_sums(terms: list[Term], u: Tensor) -> list[Sums]:
    """Return masses by row and by column of each term in turn, with units and signs."""
    sums: list[Sums] = []
    for term in terms:
        sums += [term.side(u, True), term.side(u, False)]
    return sums
