"""From the record of a walk to groups of units and scalings."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from polymode.symmetry.groups import Group, Place, Rescaling, ScaleGroup, Symmetries
from polymode.symmetry.units import PINNED, compact, varied
from polymode.symmetry.walk import Walk

Blocks = dict[tuple[str, int], tuple[str, int]]


def gather(walk: Walk, network: str, shared: list[str]) -> Symmetries:
    """Return the symmetries that the walk has found."""
    slots = _final_slots(walk)
    numbers = _numbers(label for label, _ in slots.values())
    records = _records(walk, slots, numbers)
    groups, blocks = _groups(walk, slots, numbers, records)
    places = tuple(
        _place(name, part, numbers[label], axis, len(numbers))
        for (name, part), (label, axis) in slots.items()
    )
    rescalings, scale_groups, num_scales = _scalings(walk)
    return Symmetries(
        network, tuple(groups), blocks, scale_groups, places, rescalings, dict(walk.roles),
        int(numbers.max()) + 1, num_scales, tuple(dict.fromkeys(walk.unseen)), tuple(shared),
        tuple(dict.fromkeys(walk.nearly)),
    )  # fmt: skip


def _final_slots(walk: Walk) -> dict[tuple[str, str], tuple[np.ndarray, int]]:
    """Return labels by final units, and their axes; pin units whose places follow no one axis."""
    while True:
        slots, pinned = {}, False
        for key, slot in walk.slots.items():
            label = compact(walk.moves.roots(slot.label)[0])
            axes = varied(label)
            axis = slot.axis if slot.axis is None or slot.axis >= 0 else (axes or (0,))[-1]
            own = slot.axis is not None and slot.axis < 0
            if own and len(axes) > 1:
                walk.moves.pin(label)
                pinned = True
            slots[key] = label, int(axis or 0)
        if not pinned:
            return slots


def _numbers(labels: Any) -> np.ndarray:
    """Return an array from units to numbers without gaps, 0 for the pinned one."""
    units = sorted({int(u) for label in labels for u in np.unique(label)} - {PINNED})
    numbers = np.zeros((units[-1] if units else 0) + 1, int)
    numbers[units] = np.arange(1, len(units) + 1)
    return numbers


def _records(walk: Walk, slots: Any, numbers: np.ndarray) -> dict[int, tuple[Any, ...]]:
    """Return, for each unit, where and how often it occurs."""
    records: dict[int, list[tuple[str, int]]] = defaultdict(list)
    seen = [(f"{name}:{part}", label) for (name, part), (label, _) in slots.items()]
    for token, label in [*seen, *((t, walk.moves.roots(label)[0]) for t, label in walk.trail)]:
        for unit, count in zip(*np.unique(label, return_counts=True), strict=True):
            if unit > PINNED:
                records[int(unit)].append((token, int(count)))
    return {unit: tuple(sorted(record)) for unit, record in records.items()}


def _groups(
    walk: Walk, slots: Any, numbers: np.ndarray, records: dict[int, tuple[Any, ...]]
) -> tuple[list[Group], dict[str, int]]:
    """Sort units into groups by their records and blocks."""
    marks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for token, units in walk.marks:
        sizes[token] = len(units)
        for block, row in enumerate(walk.moves.roots(units)[0]):
            for unit in set(row[row > PINNED].tolist()):
                marks[unit].append((token, block))
    sets = _sets_of_blocks(marks, sizes)
    owners = {
        u: slot for slot, (label, _) in reversed(slots.items()) for u in np.unique(label).tolist()
    }
    outer: dict[int, tuple[int | None, int]] = {}  # unit -> set of blocks, block
    for which, (blocks, _) in enumerate(sets):
        outer |= {u: (which, blocks[m[0]]) for u, m in marks.items() if m[0] in blocks}
    members: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for unit in sorted(owners):
        if unit <= PINNED:
            continue
        mine = sorted(set(marks.get(unit, [])))
        number, block = outer.get(unit, (None, 0))
        apart = tuple(mine) if number is None else tuple(token for token, _ in mine)
        members[records[unit], apart, number][block].append(unit)
    return _named(members, sets, owners, numbers)


def _named(
    members: Any, sets: list[Any], owners: dict[int, tuple[str, str]], numbers: np.ndarray
) -> tuple[list[Group], dict[str, int]]:
    whole = {k for k, (_, size) in enumerate(sets) if _are_alike(members, k, size)}
    groups: list[Group] = []
    blocks: dict[str, int] = {}
    taken: dict[str, int] = defaultdict(int)
    labels: dict[int, str] = {}
    for (_, _, number), rows in members.items():
        owner = owners[next(iter(rows.values()))[0]][0]
        name = owner.rpartition(".")[0] or owner
        if number in whole:
            labels.setdefault(number, f"{name} blocks")
            blocks[labels[number]] = sets[number][1]
            parts = [np.array([rows[b] for b in sorted(rows)])]
        else:
            parts = [np.array([row]) for row in rows.values()]
        for units in parts:
            if units.size > len(units) or number in whole:
                taken[name] += 1
                unique = name if taken[name] == 1 else f"{name} #{taken[name]}"
                groups.append(
                    Group(unique, numbers[units], labels.get(number) if number in whole else None)
                )
    return groups, blocks


def _are_alike(members: Any, number: int, size: int) -> bool:
    """Whether the blocks of a set have groups of the same kinds and sizes."""
    rows = [row for (_, _, k), row in members.items() if k == number]
    return bool(rows) and all(
        len(row) == size and len({len(units) for units in row.values()}) == 1 for row in rows
    )


def _sets_of_blocks(
    marks: dict[int, list[tuple[str, int]]], sizes: dict[str, int]
) -> list[tuple[dict[tuple[str, int], int], int]]:
    """Return sets of blocks that change places together: (operation, block) -> block of the set."""
    parent = {(token, b): (token, b) for token, size in sizes.items() for b in range(size)}

    def root(block: tuple[str, int]) -> tuple[str, int]:
        while parent[block] != block:
            block = parent[block]
        return block

    for mine in marks.values():
        for other in mine[1:]:
            first, second = sorted((root(mine[0]), root(other)))
            parent[second] = first
    of_token = {token: [root((token, b)) for b in range(size)] for token, size in sizes.items()}
    sets: dict[frozenset[Any], list[str]] = defaultdict(list)
    for token, roots in of_token.items():
        sets[frozenset(roots)].append(token)
    good = []
    for roots_of_set, tokens in sets.items():
        size = len(roots_of_set)
        alone = all(not (roots_of_set & set(of_token[t])) for t in sizes if t not in tokens)
        if size > 1 and alone and all(sizes[token] == size for token in tokens):
            order = {r: k for k, r in enumerate(of_token[tokens[0]])}
            good.append(
                ({(t, b): order[of_token[t][b]] for t in tokens for b in range(size)}, size)
            )
    return good


def _place(name: str, part: str, label: np.ndarray, axis: int, size: int) -> Place:
    """Return a place with its tables."""
    moved = np.moveaxis(label, axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    number = np.zeros_like(rows)
    tables: dict[int, list[int]] = {}
    for k, row in enumerate(rows):
        found: dict[int, list[int]] = defaultdict(list)
        for place, unit in enumerate(row.tolist()):
            number[k, place] = len(found[unit])
            found[unit].append(place)
        tables |= {unit: places for unit, places in found.items() if unit}
    number = np.moveaxis(number.reshape(moved.shape), -1, axis)
    table = np.zeros((len(tables), max((len(p) for p in tables.values()), default=1)), int)
    local = np.zeros(size + 1, int)
    for k, (unit, places) in enumerate(tables.items()):
        local[unit], table[k, : len(places)] = k, places
    return Place(name, part, axis, label, number, local, table)


def _scalings(walk: Walk) -> tuple[tuple[Rescaling, ...], tuple[ScaleGroup, ...], int]:
    """Number the scalings, and sort them by the tensors that they multiply first."""
    final = {key: walk.scales.roots(f.label) for key, f in walk.factors.items()}
    numbers = _numbers(label for label, _ in final.values())
    first: dict[int, str] = {}
    rescalings, reads = [], set()
    counts: dict[int, int] = defaultdict(int)
    for (key, (label, signs)), factor in zip(final.items(), walk.factors.values(), strict=True):
        label, signs = numbers[label], signs * factor.exponent
        rescalings.append(Rescaling(key[0], label, signs, factor.eps))
        if walk.roles[key[0]] in ("weight", "gain"):
            units = set(np.unique(label).tolist()) - {PINNED}
            first |= {u: key[0] for u in units if u not in first and key[1] != "in"}
            reads |= set(np.unique(label[signs < 0]).tolist())
            for unit in units if key[1] != "in" else ():
                counts[unit] += 1
    groups: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for unit in range(1, int(numbers.max()) + 1):
        groups[first.get(unit, "others"), unit not in reads].append(unit)
    scale_groups = tuple(
        ScaleGroup(
            name.rpartition(".")[0] or name,
            np.array(units),
            free,
            any(counts[u] > 1 for u in units),
        )
        for (name, free), units in groups.items()
    )
    return tuple(rescalings), scale_groups, int(numbers.max()) + 1
