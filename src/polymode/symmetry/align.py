"""Networks brought as close as possible to a reference by permuting their units.

Weight matching maximises the inner product of all weights with those of the reference,

    max over permutations P of  <theta_ref, P theta>,

which is the same as minimising the distance ‖theta_ref - P theta‖. With all groups of units but one
held fixed it is a linear assignment, solved exactly (SciPy); groups are visited in turn until
nothing changes. The start matches layer after layer by what comes in, with biases and without, and
the better end is taken; so the result is never worse than such a matching. Blocks (heads, groups
of convolutions) are matched by an assignment of assignments, taken where it raises the inner
product.

Source: S. K. Ainsworth, J. Hayase, S. Srinivasa, "Git Re-Basin: merging models modulo permutation
symmetries", ICLR 2023, section 3.2. `M` modes, `g` blocks, `n` units of a block.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.stack.stack import Stack
from polymode.symmetry.apply import identity, permuted, scaled
from polymode.symmetry.canonical import unit_scales
from polymode.symmetry.sorting import Features
from polymode.symmetry.stacked_tensors import (
    IN_CACHE,
    Networks,
    in_parts,
    require_finite,
    stack_of,
    symmetries_of,
    tensors_of,
    write,
)
from polymode.symmetry.unit_groups import Group, Place, Symmetries
from polymode.tracing.modules import Tensors

MOST_SWEEPS = 100  # every change raises a bounded number, so this is a safeguard


def align(
    networks: Networks,
    reference: Networks | int = 0,
    symmetries: Symmetries | None = None,
    *,
    scale: bool = True,
) -> Stack:
    """Return the networks with their units in the order of a reference's; functions stay.

    Args:
        networks: a stack, a posterior (all its samples, mode by mode), a module or a list of these.
        reference: one network, or the number of one of `networks`.
        symmetries: from `find`; found here if left out.
        scale: whether scalings are removed first, as in `canonical`, of the reference too.

    Returns:
        a stack with memory of its own, in the precision of the networks; the work is in float64.
    """
    check_call(align, locals())
    stack = stack_of(networks)
    symmetries = symmetries_of(networks, stack, symmetries)
    tensors = tensors_of(stack)
    require_finite(tensors)
    target = _reference(reference, stack)
    if scale:
        target = scaled(target, symmetries, unit_scales(target, symmetries))
    result = stack.clone()
    for part, work in in_parts(tensors, IN_CACHE):
        if scale:
            work = scaled(work, symmetries, unit_scales(work, symmetries))
        write(result, part, _Matching(symmetries, target).run(work))
    return result


def _reference(reference: Networks | int, stack: Stack) -> Tensors:
    if isinstance(reference, int):
        if not -len(stack) <= reference < len(stack):
            raise ValueError(
                f"`reference` of align must be below {len(stack)}, the number of networks, got"
                f" {reference}"
            )
        chosen = stack[[reference % len(stack)]]
    else:
        chosen = stack_of(reference)
        if len(chosen) != 1:
            raise ValueError(
                f"`reference` of align must be one network, got {len(chosen)}; take stack[:1]"
            )
    tensors, expected = tensors_of(chosen), tensors_of(stack)
    if {n: t.shape[1:] for n, t in tensors.items()} != {
        n: t.shape[1:] for n, t in expected.items()
    }:
        raise ValueError("`reference` of align must have the architecture of the networks")
    require_finite(tensors)
    return {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}


def _assignment(gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the assignment of the largest sum."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(gain, maximize=True)  # type: ignore[no-any-return]


class _Matching:
    """Coordinate ascent of the inner product with a reference."""

    def __init__(self, symmetries: Symmetries, reference: Tensors) -> None:
        self.symmetries, self.reference = symmetries, reference
        self.features = Features(symmetries, reference)
        moved = {p.name for p in symmetries.places if symmetries.roles[p.name] != "statistic"}
        self.names = sorted(moved)

    def run(self, tensors: Tensors) -> Tensors:
        """Return the tensors (M, ...) after matching, by the better of two starts."""
        ends = [self._climb(self._start(tensors, biases)) for biases in (True, False)]
        return self._better(*ends)

    def _start(self, tensors: Tensors, biases: bool) -> Tensors:
        """Match layer after layer by what writes its units: all of it, or the first weights."""
        for group in self.symmetries.groups:
            places = [p for p in self._places(group) if p.part != "in"]
            places = places if biases and places else [self.features.writer(group)]
            tensors = self._match(tensors, group, places)
            if group.blocks is not None and group is self._first(group.blocks):
                tensors = self._match_blocks(tensors, group.blocks)
        return tensors

    def _climb(self, tensors: Tensors) -> Tensors:
        """Match groups in turn until no member gains by it."""
        active = torch.arange(len(next(iter(tensors.values()))))
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        for _ in range(MOST_SWEEPS):
            part = {name: tensor[active] for name, tensor in tensors.items()}
            before = self.inner_product(part)
            part = self._sweep(part)
            for name, tensor in part.items():
                tensors[name][active] = tensor
            after = self.inner_product(part)
            active = active[after > before + 1e-12 * before.abs()]
            if not len(active):
                break
        return tensors

    def _first(self, blocks: str) -> Group:
        return next(group for group in self.symmetries.groups if group.blocks == blocks)

    def inner_product(self, tensors: Tensors) -> Tensor:
        """Return <theta_ref, theta> of each member, (M,)."""
        parts = [(tensors[n] * self.reference[n]).flatten(1).sum(1) for n in self.names]
        return torch.stack(parts).sum(0)

    def _sweep(self, tensors: Tensors) -> Tensors:
        for group in self.symmetries.groups:
            tensors = self._match(tensors, group, self._places(group))
        for blocks in self.symmetries.blocks:
            tensors = self._match_blocks(tensors, blocks)
        return tensors

    def _places(self, group: Group) -> list[Place]:
        return [p for p in self.features.places[group.name] if p.name in self.names]

    def _similarity(self, tensors: Tensors, group: Group, places: list[Place]) -> Tensor:
        """Return inner products of the weights of units, (M, g, n) of the reference by (g, n)."""
        total: Tensor | None = None
        for place in places:
            rows = self.features.rows(tensors, place, group).flatten(1, 2)
            ref = self.features.rows(self.reference, place, group)[0].flatten(0, 1)
            products = torch.matmul(ref, rows.transpose(1, 2))
            total = products if total is None else total + products
        assert total is not None
        g, n = group.units.shape
        return total.reshape(-1, g, n, g, n)

    def _match(self, tensors: Tensors, group: Group, places: list[Place]) -> Tensors:
        """Match the units of one group, block by block."""
        similar = self._similarity(tensors, group, places).numpy()
        order, units = identity(self.symmetries, len(similar)), group.units
        changed = False
        for mode, matrix in enumerate(similar):
            for block in range(group.num_blocks):
                columns = _assignment(matrix[block, :, block])[1]
                changed |= bool((columns != np.arange(len(columns))).any())
                order[mode, units[block]] = torch.from_numpy(units[block, columns])
        if not changed:
            return tensors
        acted = permuted(tensors, self.symmetries, order, self.features.places[group.name])
        names = [place.name for place in places]
        if len(set(names)) == len(names):
            return acted
        return self._better(tensors, acted)  # units on both sides of one tensor: not linear

    def _match_blocks(self, tensors: Tensors, blocks: str) -> Tensors:
        """Match whole blocks, each with the best order inside; take what is better."""
        groups = [group for group in self.symmetries.groups if group.blocks == blocks]
        size = self.symmetries.blocks[blocks]
        similar = [self._similarity(tensors, g, self._places(g)).numpy() for g in groups]
        modes = len(similar[0])
        order = identity(self.symmetries, modes)
        for mode in range(modes):
            gain = np.zeros((size, size))
            inner = np.empty((len(groups), size, size), object)
            for k, a, b in np.ndindex(inner.shape):
                matrix = similar[k][mode, a, :, b]
                rows, columns = _assignment(matrix)
                gain[a, b] += matrix[rows, columns].sum()
                inner[k, a, b] = columns
            outer = _assignment(gain)[1]
            for k, group in enumerate(groups):
                for a, b in enumerate(outer):
                    order[mode, group.units[a]] = torch.from_numpy(group.units[b][inner[k, a, b]])
        return self._better(tensors, permuted(tensors, self.symmetries, order))

    def _better(self, tensors: Tensors, acted: Tensors) -> Tensors:
        """Return, member by member, the tensors with the higher inner product."""
        keep = self.inner_product(acted) > self.inner_product(tensors)
        return {
            name: torch.where(keep.reshape(-1, *[1] * (tensor.dim() - 1)), acted[name], tensor)
            for name, tensor in tensors.items()
        }
