r"""Representation cost: the least mass of weights that scalings can give a network.

.. math:: m^* = \min_\Lambda \lVert T_s(\omega, \Lambda) \rVert^2
          = \min_u \sum_k c_k \exp(2 a_k \cdot u), \qquad u = \log \lambda,

a geometric programme. c_k is the squared mass of weights between two units (summed over kernel
positions), a_k has +1 for the unit that the weights write and -1 for the one that they read. It is
convex in u, so a point where the gradient is 0 is a minimum. In one u_i alone, the mass is
A exp(2 u_i) + B exp(-2 u_i) + C with A the incoming and B the outgoing mass, so that

.. math:: \exp(4 \Delta u_i) = B_i / A_i

is its exact minimum. Units of one layer meet in no term, so a whole layer is set at once; sweeps
over layers are exact block-coordinate descent. Between sweeps, one common factor per layer (or all
scalings, if these are few) is set by a Newton step, which makes deep networks as fast as shallow
ones. It is kept only if it lowers the mass. Certificate: max_i |A_i - B_i| / mass, which is 0 at
the minimum; the error of the mass is of the order of its square.

Degeneracy: weights before a BatchNorm can shrink to 0 for free, and so can the weights around a
unit that nothing reads or nothing writes. There the minimum is an infimum: those weights vanish,
their mass is given apart, and what is left is minimised.

Source: O. Laurent, E. Aldea, G. Franchi, "A symmetry-aware exploration of Bayesian neural network
posteriors", ICLR 2024, who solve it by CVXPY; the sweeps are those of matrix balancing
(E. E. Osborne, 1960). `M` modes, `R` and `C` units that a tensor writes and reads, `V` scalings.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.symmetry.apply import Element, identity
from polymode.symmetry.stacked_tensors import (
    Networks,
    in_parts,
    require_finite,
    stack_of,
    symmetries_of,
    tensors_of,
)
from polymode.symmetry.unit_groups import Rescaling, Symmetries
from polymode.tracing.modules import Tensors

Sums = tuple[Tensor, Tensor, Tensor]
FEW = 64  # scalings that are all in one Newton step
MOST_TOGETHER = 200  # factors of a Newton step


@dataclass(frozen=True, eq=False)
class Term:
    """Masses (M, R, C) of a tensor that scale by exp(2 (r + c)).

    r is the sum of `row_power` u[`row`], (R, K), over the K scalings that a row has at most, where
    number 0 is none; c likewise, (C, K'). `constant` is the mass (M,) that no scaling changes.
    """

    name: str
    matrix: Tensor
    row: Tensor
    row_power: Tensor
    column: Tensor
    column_power: Tensor
    constant: Tensor

    def row_factor(self, u: Tensor) -> Tensor:
        return torch.exp(2 * (self.row_power * u[:, self.row]).sum(-1))

    def column_factor(self, u: Tensor) -> Tensor:
        return torch.exp(2 * (self.column_power * u[:, self.column]).sum(-1))

    def by_row(self, u: Tensor) -> Tensor:
        """Return masses by row, (M, R)."""
        factor = self.column_factor(u).unsqueeze(2)
        return self.row_factor(u) * torch.bmm(self.matrix, factor).squeeze(2)

    def by_column(self, u: Tensor) -> Tensor:
        """Return masses by column, (M, C)."""
        factor = self.row_factor(u).unsqueeze(1)
        return self.column_factor(u) * torch.bmm(factor, self.matrix).squeeze(1)

    def side(self, u: Tensor, rows: bool) -> Sums:
        """Return masses by row or by column, with their scalings and powers."""
        if rows:
            return self.by_row(u), self.row, self.row_power
        return self.by_column(u), self.column, self.column_power


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
        self._most = self._largest_powers()

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
                rows, columns = (loose[:, side].any(-1) for side in (term.row, term.column))
                out = rows.unsqueeze(2) | columns.unsqueeze(1)
                lost[k] = lost[k] + (term.matrix * out).sum((1, 2))
                matrix = torch.where(out, 0.0, term.matrix)
                terms[k] = Term(**{**vars(term), "matrix": matrix})

    def _in_and_out(self, sums: list[Sums], modes: int) -> tuple[Tensor, Tensor]:
        """Return the masses (M, V) that grow and that shrink with each scaling, times powers."""
        totals = torch.zeros(2, modes, self.size, dtype=torch.float64)
        for mass, units, powers in sums:
            for unit, power in zip(units.unbind(1), powers.unbind(1), strict=True):
                totals[0].index_add_(1, unit, mass * power.clamp(min=0))
                totals[1].index_add_(1, unit, mass * (-power).clamp(min=0))
        return totals[0], totals[1]

    def _largest_powers(self) -> Tensor:
        """Return the largest power (V,) of each scaling in any mass, at least 1."""
        largest = torch.ones(self.size, dtype=torch.float64)
        for term in self.terms:
            total = torch.zeros_like(largest)
            for units, powers in ((term.row, term.row_power), (term.column, term.column_power)):
                side = torch.zeros_like(largest)
                side.scatter_reduce_(0, units.reshape(-1), powers.abs().reshape(-1), "amax")
                total += side
            opposed = self._is_opposed(term)
            largest = torch.where(opposed, largest, largest.maximum(total))
        return largest

    def _is_opposed(self, term: Term) -> Tensor:
        """Whether a scaling (V,) of powers ±1 only grows rows and only shrinks columns, or the
        other way round, so that its powers do not add up."""
        sides = []
        for units, powers in ((term.row, term.row_power), (term.column, term.column_power)):
            for sign in (1, -1):
                has = torch.zeros(self.size, dtype=torch.bool)
                has[units[powers * sign > 0]] = True
                sides.append(has)
            big = torch.zeros(self.size, dtype=torch.bool)
            big[units[powers.abs() > 1]] = True
            sides.append(big)
        up, down, big, up_column, down_column, big_column = sides
        return ~(up & up_column) & ~(down & down_column) & ~big & ~big_column

    def _apart(self, block: np.ndarray) -> list[np.ndarray]:
        """Return the block, or its scalings one by one if two of them meet in a term."""
        inside = torch.from_numpy(np.isin(np.arange(self.size), block))
        for term in self.terms:
            rows, columns = inside[term.row], inside[term.column]
            meet = rows.any(1)[:, None] & columns.any(1) & (term.matrix > 0).any(0)
            if meet.any() or (rows.sum(1) > 1).any() or (columns.sum(1) > 1).any():
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
            u_active = u[active]
            sums = _all_sums(part.terms, u_active)
            residual[active] = part._residual(sums)
            left = (residual[active] > tolerance) & (sweeps[active] < most_sweeps)
            if not left.all():
                active, u_active = active[left], u_active[left]
                part = self._members(active)
                sums = [(mass[left], units, powers) for mass, units, powers in sums]
            if len(active):
                if sweeps[active[0]] > 0:
                    u_active = part._together(u_active, sums)
                part._sweep(u_active)
                u[active] = u_active
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
        part.blocks, part.lost, part._most = self.blocks, self.lost, self._most
        part.terms = [
            Term(**{**vars(t), "matrix": t.matrix[which], "constant": t.constant[which]})
            for t in self.terms
        ]
        part._of_block = [part._touching(block) for block in part.blocks]
        return part

    def _sweep(self, u: Tensor) -> None:
        """Lower the mass by the scalings of each layer, layer after layer, in place.

        With powers of 1 alone, mass = A exp(2 d) + B exp(-2 d) + C is at its minimum. With powers
        a <= p, it is at most A/p exp(2 p d) + B/p exp(-2 p d) + C, where A and B are weighted by
        a (convexity); the minimum of that bound lowers the mass, and at d = 0 it touches it.
        """
        for block, sides in zip(self.blocks, self._of_block, strict=True):
            sums = [term.side(u, row) for term, row in sides]
            grow, shrink = (side[:, block] for side in self._in_and_out(sums, len(u)))
            step = torch.log(shrink / grow) / (4 * self._most[block])
            u[:, block] += torch.where((grow > 0) & (shrink > 0), step, 0.0)

    def _together(self, u: Tensor, sums: list[Sums]) -> Tensor:
        """Return u after a Newton step in one factor per layer, or per scaling if these are few;
        where it does not lower the mass, u stays."""
        layer, count = self._layers()
        if not 1 < count <= MOST_TOGETHER:
            return u
        gradient = u.new_zeros(len(u), count + 1)
        hessian = u.new_zeros(len(u), (count + 1) ** 2)
        for mass, units, powers in sums:
            place = layer[units]
            for k, power in enumerate(powers.unbind(1)):
                gradient.index_add_(1, place[:, k], 2 * power * mass)
                for j, second in enumerate(powers.unbind(1)):
                    cell = place[:, k] * (count + 1) + place[:, j]
                    hessian.index_add_(1, cell, 4 * power * second * mass)
        for number, term in enumerate(self.terms):
            for rows, columns, mass in self._cross(term, layer, u, sums[2 * number][0]):
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

    def _cross(self, term: Term, layer: Tensor, u: Tensor, by_row: Tensor) -> Iterator[Sums]:
        """Yield rows, columns and values of the second derivatives between two factors."""
        rows, columns = layer[term.row], layer[term.column]
        r, c = term.row_power, term.column_power
        alike = len(columns.unique(dim=0)) == 1 and len(c.unique(dim=0)) == 1
        if not alike:
            factors = term.row_factor(u).unsqueeze(2) * term.column_factor(u).unsqueeze(1)
            masses = term.matrix * factors
        for k, j in product(range(r.shape[1]), range(c.shape[1])):
            if alike:
                yield rows[:, k], columns[:1, j].expand(len(rows)), 4 * r[:, k] * c[0, j] * by_row
            else:
                sides = torch.broadcast_tensors(rows[:, k, None], columns[None, :, j])
                values = (4 * r[:, k, None] * c[None, :, j] * masses).flatten(1)
                yield sides[0].reshape(-1), sides[1].reshape(-1), values


def _all_sums(terms: list[Term], u: Tensor) -> list[Sums]:
    """Return masses by row and by column of each term in turn, with scalings and powers."""
    sums: list[Sums] = []
    for term in terms:
        sums += [term.side(u, True), term.side(u, False)]
    return sums


@dataclass(frozen=True, eq=False)
class RepresentationCost:
    """What `representation_cost` finds, for each of M networks.

    Attributes:
        mass: squared norm of the weights as they are, (M,).
        minimum: m*, (M,); an infimum where something vanishes.
        residual: certificate, max |incoming - outgoing mass| of a unit over the mass, (M,); 0 at
            the minimum over the scalings that were found.
        sweeps: of the balancing, (M,). vanishing: mass that goes to 0 for free, (M,).
        degenerate: tensors that this mass belongs to, the same for all networks where a
            normalisation causes it.
        profile: tensor -> mass before and at the minimum, (M, 2).
        element: what takes the networks there, for `apply`; vanishing weights stay as they are.
    """

    mass: Tensor
    minimum: Tensor
    residual: Tensor
    sweeps: Tensor
    vanishing: Tensor
    degenerate: tuple[str, ...]
    profile: dict[str, Tensor]
    element: Element

    @property
    def excess(self) -> Tensor:
        """Mass over the minimum, as a fraction of it, (M,); what vanishes is left out, and where
        all vanishes nothing is in excess."""
        left = (self.mass - self.vanishing) / self.minimum - 1
        return torch.where(self.minimum > 0, left, 0.0)

    def __repr__(self) -> str:
        about = f", {len(self.degenerate)} tensors vanish" if self.degenerate else ""
        return (
            f"RepresentationCost({len(self.mass)} networks: mass {self.mass.mean():.4g}, minimum"
            f" {self.minimum.mean():.4g}, excess {100 * self.excess.mean():.3g} % (means),"
            f" residual at most {self.residual.max():.1g}{about})"
        )


def representation_cost(
    networks: Networks,
    symmetries: Symmetries | None = None,
    *,
    biases: bool = False,
    tolerance: float = 1e-12,
    most_sweeps: int = 2000,
) -> RepresentationCost:
    """Return the least mass that scalings can give each network.

    Args:
        networks: a stack, a posterior (all its samples, mode by mode), a module or a list of these.
        symmetries: from `find`; found here if left out.
        biases: whether what is added (biases, positions) counts; it does not in the paper.
        tolerance: residual at which sweeps end, > 0.
        most_sweeps: sweeps at most; `residual` says what they reached.
    """
    check_call(representation_cost, locals())
    if not tolerance > 0:
        raise ValueError(f"`tolerance` of representation_cost must be > 0, got {tolerance}")
    if most_sweeps < 1:
        raise ValueError(f"`most_sweeps` of representation_cost must be >= 1, got {most_sweeps}")
    stack = stack_of(networks)
    symmetries = symmetries_of(networks, stack, symmetries)
    tensors = {
        n: t for n, t in tensors_of(stack).items() if _counts(symmetries.roles.get(n), biases)
    }
    tensors = {n: t for n, t in tensors.items() if n not in stack.buffers}
    if not tensors:
        raise ValueError("the network has no weights whose mass could be measured")
    require_finite(tensors)
    parts = [_part(work, symmetries, tolerance, most_sweeps) for _, work in in_parts(tensors)]
    joined = {
        name: torch.cat([part[name] for part in parts])
        for name in ("mass", "minimum", "residual", "sweeps", "vanishing", "scales")
    }
    profile = {name: torch.cat([part["profile"][name] for part in parts]) for name in tensors}
    degenerate = tuple(n for n in tensors if any((part["gone"][n] > 0).any() for part in parts))
    acting = Element(identity(symmetries, len(stack)), joined.pop("scales"))
    return RepresentationCost(**joined, degenerate=degenerate, profile=profile, element=acting)


def _counts(role: str | None, biases: bool) -> bool:
    return role != "statistic" and (biases or role != "bias")


def _part(tensors: Tensors, symmetries: Symmetries, tolerance: float, most: int) -> dict:
    terms = _terms(tensors, symmetries)
    blocks = [group.variables for group in symmetries.scale_groups]
    modes = len(next(iter(tensors.values())))
    programme = Programme(terms, blocks, modes, symmetries.num_scales)
    solution = programme.solve(tolerance, most)
    before = {n: (t**2).reshape(len(t), -1).sum(1) for n, t in tensors.items()}
    after = dict(before)
    gone = {n: torch.zeros_like(m) for n, m in before.items()}
    for term, mass, lost in zip(terms, programme.masses(solution.u), programme.lost, strict=True):
        after[term.name] = term.constant + mass
        gone[term.name] = lost
    vanishing = sum(gone.values(), torch.zeros_like(solution.residual))
    return {
        "mass": sum(before.values(), torch.zeros_like(vanishing)),
        "minimum": sum(after.values(), torch.zeros_like(vanishing)),
        "residual": solution.residual,
        "sweeps": solution.sweeps,
        "vanishing": vanishing,
        "scales": solution.u.exp(),
        "profile": {n: torch.stack([before[n], after[n]], 1) for n in before},
        "gone": gone,
    }


def _terms(tensors: Tensors, symmetries: Symmetries) -> list[Term]:
    """Return the masses of all tensors that scale, as matrices between units."""
    acting: dict[str, list[Rescaling]] = defaultdict(list)
    for rescaling in symmetries.rescalings:
        if rescaling.name in tensors and rescaling.label.any():
            acting[rescaling.name].append(rescaling)
    return [_term(name, tensors[name], labels) for name, labels in acting.items()]


def _term(name: str, tensor: Tensor, labels: list[Rescaling]) -> Term:
    """Sum squares over entries that have the same scalings."""
    shape, modes = tuple(tensor.shape[1:]), len(tensor)
    parts = list(dict.fromkeys(rescaling.part for rescaling in labels))
    assert len(parts) <= 2, f"{name} has scalings of {len(parts)} kinds"
    (rows, row), (columns, column) = (
        _side([rescaling for rescaling in labels if rescaling.part == part], shape)
        for part in (*parts, "")[:2]
    )
    size = len(rows) * len(columns)
    cells = torch.from_numpy(row * len(columns) + column)
    squares = (tensor**2).reshape(modes, -1)
    if len(cells) != size or (cells != torch.arange(size)).any():
        squares = squares.new_zeros(modes, size).index_add_(1, cells, squares)
    matrix = squares.reshape(modes, len(rows), len(columns))
    mask = torch.from_numpy(_cancel(rows, columns))
    constant = (matrix * mask).sum((1, 2))
    matrix = torch.where(mask, 0.0, matrix)
    row_unit, row_power = (torch.from_numpy(rows[..., k].copy()) for k in (0, 1))
    column_unit, column_power = (torch.from_numpy(columns[..., k].copy()) for k in (0, 1))
    units = row_unit.long(), column_unit.long()
    return Term(name, matrix, units[0], row_power, units[1], column_power, constant)


def _side(labels: list[Rescaling], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return different forms (R, K, 2) of scalings and their powers, and the one of each entry."""
    if not labels:
        return np.zeros((1, 1, 2)), np.zeros(math.prod(shape), int)
    columns = [
        np.broadcast_to(part, shape).reshape(-1)
        for rescaling in labels
        for part in (rescaling.label, np.where(rescaling.label > 0, rescaling.exponents, 0.0))
    ]
    forms, place = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return forms.reshape(len(forms), -1, 2), place.reshape(-1)


def _cancel(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whether the scalings of a row and of a column cancel, (R, C); so do none on either side."""

    def form(side: np.ndarray, sign: int) -> tuple[tuple[float, float], ...]:
        return tuple(sorted((unit, sign * power) for unit, power in side.tolist() if unit))

    numbers: dict[tuple[tuple[float, float], ...], int] = {}
    row = [numbers.setdefault(form(powers_of, 1), len(numbers)) for powers_of in rows]
    column = [numbers.setdefault(form(powers_of, -1), len(numbers)) for powers_of in columns]
    return np.array(row)[:, None] == np.array(column)


@dataclass(frozen=True, eq=False)
class CostCurve:
    """Mass and least mass along training, (T, M)."""

    mass: Tensor
    minimum: Tensor
    excess: Tensor


def cost_curve(
    checkpoints: Iterable[Networks], symmetries: Symmetries | None = None, *, biases: bool = False
) -> CostCurve:
    """Return the representation cost of networks at T moments of their training."""
    check_call(cost_curve, locals())
    symmetries = symmetries
    costs = []
    for networks in checkpoints:
        symmetries = symmetries or symmetries_of(networks, stack_of(networks), None)
        costs.append(representation_cost(networks, symmetries, biases=biases))
    if not costs:
        raise ValueError("`checkpoints` of cost_curve must hold at least one moment, got none")
    return CostCurve(
        *(torch.stack([getattr(c, n) for c in costs]) for n in ("mass", "minimum", "excess"))
    )
