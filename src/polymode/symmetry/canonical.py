"""One network for all that symmetries make of it: scaled, then sorted.

Scaling: units are visited in the order of the graph. A unit's scale is such that the first weights
that write it have norm 1, after division by the scales of what they read; a gain of a normalisation
becomes 1 or -1. Units that a residual sum ties have one scale, set by the first layer that writes
them. A unit whose weights are all 0 takes the next layer that writes it, then its bias, then the
weights that read it; if all are 0 it stays.

Sorting: in the same order, groups are sorted in descending order of a key: the first incoming
weight, as in the paper; the norm of all weights of the unit; or the mean of the incoming ones. Keys
that agree to rounding are ties, and are broken by the other incoming weights, then by norms.
Blocks (heads, groups of convolutions) are sorted inside, then by their first unit.

The paper leaves channels of residual streams unsorted; here they are sorted like all others.

Source: O. Laurent, E. Aldea, G. Franchi, "A symmetry-aware exploration of Bayesian neural network
posteriors", ICLR 2024. `M` modes, `V` scalings, `g` blocks, `n` units of a block, `K` weights.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.modules import Tensors
from polymode.core.registry import suggest
from polymode.core.stack import Stack
from polymode.symmetry.act import factors, identity, permuted, scaled
from polymode.symmetry.groups import Group, Place, Rescaling, Symmetries
from polymode.symmetry.networks import (
    IN_CACHE,
    Networks,
    in_parts,
    require_finite,
    stack_of,
    symmetries_of,
    tensors_of,
    write,
)

KEYS = ("first", "norm", "mean")


def canonical(
    networks: Networks,
    symmetries: Symmetries | None = None,
    *,
    scale: bool = True,
    sort: str | None = "first",
) -> Stack:
    """Return the networks in canonical form; their functions stay.

    Args:
        networks: a stack, a posterior (all its samples, mode by mode), a module or a list of these.
        symmetries: from `find`; found here if left out.
        scale: whether scalings are removed.
        sort: "first", "norm", "mean", or None to leave the order as it is.

    Returns:
        a stack with memory of its own, in the precision of the networks; the work is in float64.
    """
    check_call(canonical, locals())
    if sort is not None and sort not in KEYS:
        raise ValueError(
            f"`sort` of canonical must be None or one of {', '.join(KEYS)}, got {sort!r}."
            + suggest(str(sort), KEYS)
        )
    stack = stack_of(networks)
    found = symmetries_of(networks, stack, symmetries)
    tensors = tensors_of(stack)
    require_finite(tensors)
    result, rounding = stack.clone(), 64 * torch.finfo(stack.dtype).eps
    for part, work in in_parts(tensors, IN_CACHE):
        if scale:
            work = scaled(work, found, unit_scales(work, found))
        if sort is not None:
            work = _sorted(work, found, sort, rounding)
        write(result, part, work)
    return result


# -------------------------------------------------------------------- scaling


def unit_scales(tensors: Tensors, symmetries: Symmetries) -> Tensor:
    """Return scales (M, V) that give incoming weights norm 1; see the module."""
    modes = len(next(iter(tensors.values())))
    scales = torch.ones(modes, symmetries.num_scales, dtype=torch.float64)
    known = torch.zeros_like(scales, dtype=torch.bool)
    known[:, 0] = True
    acting: dict[str, list[Rescaling]] = defaultdict(list)
    for each in symmetries.rescalings:
        acting[each.name].append(each)
    for sign, roles in ((1, ("weight", "gain")), (1, ("bias",)), (-1, ("weight", "gain", "bias"))):
        for name, role in symmetries.roles.items():
            for each in acting[name] if role in roles else ():
                others = [other for other in acting[name] if other is not each]
                _determine(tensors[name], each, others, sign, scales, known)
    return scales


def _determine(
    tensor: Tensor,
    each: Rescaling,
    others: list[Rescaling],
    sign: int,
    scales: Tensor,
    known: Tensor,
) -> None:
    """Set scales that are not known yet by the mass of one tensor, of what is known of it."""
    label = torch.from_numpy(each.label.reshape(-1))
    chosen = torch.from_numpy(
        np.broadcast_to(each.exponents == sign, each.label.shape).reshape(-1).copy()
    )
    if known[:, label[chosen]].all():
        return
    mass = tensor * tensor
    for other in others:
        factor = factors(scales, other.label, other.exponents) ** 2
        factor = factor * known[:, torch.from_numpy(other.label.reshape(-1))]
        mass.mul_(factor.reshape(-1, *other.label.shape))
    axes = [a + 1 for a in range(each.label.ndim) if each.label.shape[a] == 1]
    mass = (mass.sum(axes) if axes else mass).reshape(len(tensor), -1)
    total = torch.zeros_like(scales)
    total.index_add_(1, label[chosen], mass[:, chosen])
    new = ~known & (total > torch.finfo(torch.float64).tiny)
    scales[new] = total[new] ** (-0.5 * sign)
    known |= new


# -------------------------------------------------------------------- sorting


class Features:
    """The weights of each unit, by place: indices into a tensor, (g, n, K)."""

    def __init__(self, symmetries: Symmetries, tensors: Tensors) -> None:
        self._shapes = {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}
        self._roles = symmetries.roles
        self._cache: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.places: dict[str, list[Place]] = defaultdict(list)
        for group in symmetries.groups:
            unit = group.units[0, 0]
            self.places[group.name] = [p for p in symmetries.places if (p.label == unit).any()]

    def writer(self, group: Group) -> Place:
        """Return the first place of weights that write the units."""
        mine = self.places[group.name]
        good = [p for p in mine if p.part != "in" and self._roles[p.name] in ("weight", "gain")]
        return (good or mine)[0]

    def index(self, place: Place, group: Group) -> Tensor:
        if id(place) not in self._cache:
            flat = np.broadcast_to(place.label, self._shapes[place.name]).reshape(-1)
            order = np.argsort(flat, kind="stable")
            units, starts = np.unique(flat[order], return_index=True)
            self._cache[id(place)] = order, units, starts
        order, units, starts = self._cache[id(place)]
        ends = np.append(starts[1:], len(order))
        where = np.searchsorted(units, group.units)
        count = int(ends[where.flat[0]] - starts[where.flat[0]])
        return torch.from_numpy(order[starts[where][..., None] + np.arange(count)])

    def rows(self, tensors: Tensors, place: Place, group: Group) -> Tensor:
        """Return the weights of the units at a place, (M, g, n, K)."""
        return tensors[place.name].flatten(1)[:, self.index(place, group)]


def _sorted(tensors: Tensors, symmetries: Symmetries, key: str, rounding: float) -> Tensors:
    features, done = Features(symmetries, tensors), set()
    modes = len(next(iter(tensors.values())))
    for group in symmetries.groups:
        order = identity(symmetries, modes)
        units = torch.from_numpy(group.units)
        keys = _keys(tensors, features, group, key)
        inner = torch.argsort(-keys, dim=2, stable=True)
        for mode, block in _ties(keys, inner, rounding):
            columns = _columns(tensors, features, group, keys, mode)[block]
            inner[mode, block] = _lexicographic(columns, rounding)
        order[:, units.reshape(-1)] = units.expand(modes, *units.shape).gather(2, inner).flatten(1)
        tensors = permuted(tensors, symmetries, order, features.places[group.name])
        if group.blocks is not None and group.blocks not in done:
            done.add(group.blocks)
            tensors = _sort_blocks(tensors, symmetries, features, group, key, rounding)
    return tensors


def _sort_blocks(
    tensors: Tensors,
    symmetries: Symmetries,
    features: Features,
    first: Group,
    key: str,
    rounding: float,
) -> Tensors:
    """Sort blocks by the units of their first group, which are sorted already."""
    keys = _keys(tensors, features, first, key)[:, :, 0].unsqueeze(1)  # (M, 1, g)
    outer = torch.argsort(-keys, dim=2, stable=True)
    for mode, _ in _ties(keys, outer, rounding):
        columns = _columns(tensors, features, first, _keys(tensors, features, first, key), mode)
        outer[mode, 0] = _lexicographic(columns.flatten(1), rounding)
    return permuted(tensors, symmetries, block_order(symmetries, first.blocks, outer[:, 0]))


def block_order(symmetries: Symmetries, blocks: str | None, outer: Tensor) -> Tensor:
    """Return the order (M, U) that permutes the blocks of a set by `outer` (M, g)."""
    order = identity(symmetries, len(outer))
    for group in symmetries.groups:
        if group.blocks == blocks:
            units = torch.from_numpy(group.units)
            order[:, units.reshape(-1)] = units[outer].flatten(1)
    return order


def _keys(tensors: Tensors, features: Features, group: Group, key: str) -> Tensor:
    """Return what units are sorted by, (M, g, n)."""
    writer = features.writer(group)
    if key == "first":
        return tensors[writer.name].flatten(1)[:, features.index(writer, group)[..., 0]]
    if key == "mean":
        return features.rows(tensors, writer, group).mean(-1)
    places = [p for p in features.places[group.name] if features._roles[p.name] != "statistic"]
    mass = sum((features.rows(tensors, place, group) ** 2).sum(-1) for place in places)
    assert isinstance(mass, Tensor)
    return mass.sqrt()


def _ties(keys: Tensor, order: Tensor, rounding: float) -> list[list[int]]:
    """Return the (member, block) whose sorted keys agree somewhere up to rounding."""
    ranked = keys.gather(2, order)
    if ranked.shape[2] < 2:
        return []
    size = keys.abs().amax((1, 2), keepdim=True)
    close = (ranked[..., :-1] - ranked[..., 1:]) <= rounding * size
    return close.any(2).nonzero().tolist()


def _columns(tensors: Tensors, features: Features, group: Group, keys: Tensor, mode: int) -> Tensor:
    """Return all that ties of one member are broken by, most important first, (g, n, columns)."""
    one = {p.name: tensors[p.name][mode : mode + 1] for p in features.places[group.name]}
    writer = features.writer(group)
    rows = features.rows(one, writer, group)
    norms = [
        features.rows(one, place, group).norm(dim=-1, keepdim=True)
        for place in features.places[group.name]
        if place is not writer
    ]
    return torch.cat([keys[mode : mode + 1].unsqueeze(-1), rows, *norms], -1)[0]


def _lexicographic(columns: Tensor, rounding: float) -> Tensor:
    """Return the descending order of rows (n, columns), compared up to rounding."""
    size = columns.abs().amax(0).clamp(min=1e-300)
    rounded = torch.round(columns / (size * rounding)) if rounding > 0 else columns
    return torch.from_numpy(np.lexsort(tuple(-rounded.numpy().T[::-1])))
