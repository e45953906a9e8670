"""The order of units in a canonical form, which no permutation of the network changes.

Units are sorted by a key. Units whose keys agree to rounding are compared by their other incoming
weights, then, place by place, by the norm and by the sorted values of their weights: all of these
stay if other units, which are not sorted yet, change places. Units that agree in all of it and have
equal weights everywhere are twins, whose order makes no difference. If they have not, all of their
orders are tried, the sorting goes on with each, and the network with the largest weights in
lexicographic order is taken.

`M` modes, `g` blocks, `n` units of a block, `K` weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, permutations, product

import numpy as np
import torch
from torch import Tensor

from polymode.symmetry.apply import identity, permuted
from polymode.symmetry.unit_groups import Group, Place, Symmetries
from polymode.tracing.modules import Tensors

KEYS = ("first", "norm", "mean")
MOST_CASES = 720


class Features:
    """The weights of each unit, by place: indices into a tensor, (g, n, K)."""

    def __init__(self, symmetries: Symmetries, tensors: Tensors) -> None:
        self._shapes = {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}
        self.roles = symmetries.roles
        self._cache: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self.places: dict[str, list[Place]] = defaultdict(list)
        for group in symmetries.groups:
            unit = group.units[0, 0]
            self.places[group.name] = [p for p in symmetries.places if (p.label == unit).any()]

    def writer(self, group: Group) -> Place:
        """Return the first place of weights that write the units."""
        places = self.places[group.name]
        good = [p for p in places if p.part != "in" and self.roles[p.name] in ("weight", "gain")]
        return (good or places)[0]

    def index(self, place: Place, group: Group) -> Tensor:
        if id(place) not in self._cache:
            shape = self._shapes[place.name] if place.axis >= 0 else place.label.shape
            flat = np.broadcast_to(place.label, shape).reshape(-1)
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


@dataclass(frozen=True, eq=False)
class Step:
    """Units of a group that are sorted within their blocks, or blocks as a whole."""

    groups: tuple[Group, ...]
    blocks: str | None = None


class Sorting:
    """Sorts stacked networks step by step; see the module."""

    def __init__(self, symmetries: Symmetries, tensors: Tensors, key: str, rounding: float) -> None:
        self.symmetries, self.key, self.rounding = symmetries, key, rounding
        self.features = Features(symmetries, tensors)
        self.steps = tuple(self._steps())

    def _steps(self) -> Iterator[Step]:
        """Yield groups in turn, and blocks behind the last of their groups."""
        left = {
            name: [group for group in self.symmetries.groups if group.blocks == name]
            for name in self.symmetries.blocks
        }
        for group in self.symmetries.groups:
            yield Step((group,))
            if group.blocks is not None and group is left[group.blocks][0]:
                yield Step(tuple(left[group.blocks]), group.blocks)

    def moved(self, tensors: Tensors, step: Step, order: Tensor) -> Tensors:
        """Return tensors after a step with `order`: (M, g, n) of units, (M, 1, g) of blocks."""
        if step.blocks is not None:
            acting = block_order(self.symmetries, step.blocks, order[:, 0])
            return permuted(tensors, self.symmetries, acting)
        (group,) = step.groups
        acting, units = identity(self.symmetries, len(order)), torch.from_numpy(group.units)
        acting[:, units.reshape(-1)] = units.expand(order.shape).gather(2, order).flatten(1)
        return permuted(tensors, self.symmetries, acting, self.features.places[group.name])

    def order(self, tensors: Tensors, step: Step) -> tuple[Tensor, set[int]]:
        """Return the order of all members, and those of which it is not settled."""
        keys = self._keys(tensors, step)
        order = torch.argsort(-keys, dim=2, stable=True)
        unsettled = set()
        for member, block in self._ties(keys, order):
            rows, classes = self._by_columns(tensors, step, keys, member, block)
            order[member, block] = torch.from_numpy(rows)
            if classes:
                unsettled.add(member)
        return order, unsettled

    def search(self, network: Tensors) -> tuple[Tensors, bool]:
        """Return the canonical order of one network, and whether all cases were tried."""
        cases = [0]
        best = self._best(network, 0, cases)
        return best, cases[0] <= MOST_CASES

    def _best(self, network: Tensors, start: int, cases: list[int]) -> Tensors:
        """Sort from a step on; return the largest of the networks that ties leave open."""
        for number in range(start, len(self.steps)):
            step = self.steps[number]
            choices = list(self._choices(network, step, cases))
            if len(choices) > 1:
                ends = [
                    self._best(self.moved(network, step, o), number + 1, cases) for o in choices
                ]
                return max(ends, key=self._rank)
            network = self.moved(network, step, choices[0])
        return network

    def _choices(self, network: Tensors, step: Step, cases: list[int]) -> Iterator[Tensor]:
        """Yield the orders of one network that a step leaves open."""
        keys = self._keys(network, step)
        order = torch.argsort(-keys, dim=2, stable=True)
        open_classes: list[tuple[int, list[int]]] = []
        for _, block in self._ties(keys, order):
            rows, classes = self._by_columns(network, step, keys, 0, block)
            order[0, block] = torch.from_numpy(rows)
            open_classes += [(block, places) for places in classes]
        for choice in product(*(permutations(places) for _, places in open_classes)):
            case = order.clone()
            for (block, places), chosen in zip(open_classes, choice, strict=True):
                case[0, block, places] = order[0, block, list(chosen)]
            cases[0] += len(open_classes) > 0
            yield case
            if cases[0] > MOST_CASES:
                return

    def _rank(self, network: Tensors) -> tuple[float, ...]:
        """Return weights to rounding, for comparison."""
        names = dict.fromkeys(place.name for place in self.symmetries.places)
        flat = torch.cat([network[name].flatten() for name in names])
        step = self.rounding * flat.abs().max().clamp(min=1e-300)
        return tuple(torch.round(flat / step).tolist())

    def _keys(self, tensors: Tensors, step: Step) -> Tensor:
        """Return what units are sorted by, (M, g, n), or blocks by their first unit, (M, 1, g)."""
        group = step.groups[0]
        keys = self._unit_keys(tensors, group)
        return keys if step.blocks is None else keys[:, :, 0].unsqueeze(1)

    def _unit_keys(self, tensors: Tensors, group: Group) -> Tensor:
        features, writer = self.features, self.features.writer(group)
        if self.key == "first":
            return tensors[writer.name].flatten(1)[:, features.index(writer, group)[..., 0]]
        if self.key == "mean":
            return features.rows(tensors, writer, group).mean(-1)
        places = [p for p in features.places[group.name] if features.roles[p.name] != "statistic"]
        mass = sum((features.rows(tensors, place, group) ** 2).sum(-1) for place in places)
        assert isinstance(mass, Tensor)
        return mass.sqrt()

    def _ties(self, keys: Tensor, order: Tensor) -> list[list[int]]:
        """Return the (member, block) whose sorted keys agree somewhere up to rounding."""
        ranked = keys.gather(2, order)
        if ranked.shape[2] < 2:
            return []
        size = keys.abs().amax((1, 2), keepdim=True)
        close = (ranked[..., :-1] - ranked[..., 1:]) <= self.rounding * size
        return close.any(2).nonzero().tolist()

    def _by_columns(
        self, tensors: Tensors, step: Step, keys: Tensor, member: int, block: int
    ) -> tuple[np.ndarray, list[list[int]]]:
        """Return the order by all that ties are broken by, and classes of places, by position in
        this order, that are left open."""
        network = {name: tensor[member : member + 1] for name, tensor in tensors.items()}
        columns, weights = self._columns(network, step, keys[member : member + 1])
        compared = _rounded(columns[block], self.rounding)
        order = np.lexsort(tuple(-compared.T[::-1]))
        exact = _rounded(weights[block], self.rounding)
        classes = []
        ranks = enumerate(order)
        for _, rows in groupby(ranks, key=lambda item: compared[item[1]].tobytes()):
            places = list(rows)
            if len({exact[row].tobytes() for _, row in places}) > 1:
                classes.append([position for position, _ in places])
        return order, classes

    def _columns(self, network: Tensors, step: Step, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return what breaks ties, most important first, (g, n, columns), and all weights."""
        columns, weights = [keys.unsqueeze(-1)], []
        for group in step.groups:
            first = self.features.writer(step.groups[0])
            for place in sorted(self.features.places[group.name], key=lambda p: p is not first):
                rows = self.features.rows(network, place, group)
                if step.blocks is not None:  # one row per block; only its first group is sorted yet
                    rows = rows.flatten(2).unsqueeze(1)
                columns += [rows] if place is first and group is step.groups[0] else []
                columns += [rows.norm(dim=-1, keepdim=True), rows.sort(-1, descending=True).values]
                weights.append(rows)
        return torch.cat(columns, -1)[0], torch.cat(weights, -1)[0]


def _rounded(columns: Tensor, rounding: float) -> np.ndarray:
    """Return columns (n, columns) as whole multiples of rounding, 0 without a sign."""
    size = columns.abs().amax(0).clamp(min=1e-300)
    rounded = torch.round(columns / (size * rounding)) if rounding > 0 else columns
    return (rounded + 0.0).numpy()


def block_order(symmetries: Symmetries, blocks: str | None, outer: Tensor) -> Tensor:
    """Return the order (M, U) that permutes the blocks of a set by `outer` (M, g)."""
    order = identity(symmetries, len(outer))
    for group in symmetries.groups:
        if group.blocks == blocks:
            units = torch.from_numpy(group.units)
            order[:, units.reshape(-1)] = units[outer].flatten(1)
    return order
