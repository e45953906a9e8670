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
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.symmetry.act import identity
from polymode.symmetry.apply import Element
from polymode.symmetry.balance import Programme, Term
from polymode.symmetry.groups import Rescaling, Symmetries
from polymode.symmetry.networks import (
    Networks,
    in_parts,
    require_finite,
    stack_of,
    symmetries_of,
    tensors_of,
)
from polymode.tracing.modules import Tensors


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
    found = symmetries_of(networks, stack, symmetries)
    tensors = {n: t for n, t in tensors_of(stack).items() if _counts(found.roles.get(n), biases)}
    tensors = {n: t for n, t in tensors.items() if n not in stack.buffers}
    if not tensors:
        raise ValueError("the network has no weights whose mass could be measured")
    require_finite(tensors)
    parts = [_part(work, found, tolerance, most_sweeps) for _, work in in_parts(tensors)]
    joined = {
        name: torch.cat([part[name] for part in parts])
        for name in ("mass", "minimum", "residual", "sweeps", "vanishing", "scales")
    }
    profile = {name: torch.cat([part["profile"][name] for part in parts]) for name in tensors}
    degenerate = tuple(n for n in tensors if any((part["gone"][n] > 0).any() for part in parts))
    acting = Element(identity(found, len(stack)), joined.pop("scales"))
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
    for each in symmetries.rescalings:
        if each.name in tensors and each.label.any():
            acting[each.name].append(each)
    return [_term(name, tensors[name], labels) for name, labels in acting.items()]


def _term(name: str, tensor: Tensor, labels: list[Rescaling]) -> Term:
    """Sum squares over entries that have the same scalings."""
    shape, modes = tuple(tensor.shape[1:]), len(tensor)
    parts = list(dict.fromkeys(each.part for each in labels))
    assert len(parts) <= 2, f"{name} has scalings of {len(parts)} kinds"
    (rows, row), (columns, column) = (
        _side([each for each in labels if each.part == part], shape) for part in (*parts, "")[:2]
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
        for each in labels
        for part in (each.label, np.where(each.label > 0, each.exponents, 0.0))
    ]
    forms, place = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return forms.reshape(len(forms), -1, 2), place.reshape(-1)


def _cancel(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whether the scalings of a row and of a column cancel, (R, C); so do none on either side."""

    def form(side: np.ndarray, sign: int) -> tuple[tuple[float, float], ...]:
        return tuple(sorted((unit, sign * power) for unit, power in side.tolist() if unit))

    numbers: dict[tuple[tuple[float, float], ...], int] = {}
    row = [numbers.setdefault(form(each, 1), len(numbers)) for each in rows]
    column = [numbers.setdefault(form(each, -1), len(numbers)) for each in columns]
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
    found = symmetries
    costs = []
    for networks in checkpoints:
        found = found or symmetries_of(networks, stack_of(networks), None)
        costs.append(representation_cost(networks, found, biases=biases))
    if not costs:
        raise ValueError("`checkpoints` of cost_curve must hold at least one moment, got none")
    return CostCurve(
        *(torch.stack([getattr(c, n) for c in costs]) for n in ("mass", "minimum", "excess"))
    )
