"""From the record of a walk to groups of units and scalings."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from polymode.symmetry.unit_groups import Group, Place, Rescaling, ScaleGroup, Symmetries
from polymode.symmetry.units import PINNED, Form, compact, varied
from polymode.symmetry.walk import Factor, Walk

Blocks = dict[tuple[str, int], tuple[str, int]]


def gather(walk: Walk, network: str, shared: list[str]) -> Symmetries:
    """Return the symmetries that the walk has found."""
    slots = _final_slots(walk)
    numbers = _numbers(label for label, _ in slots.values())
    records = _records(walk, slots, numbers)
    groups, blocks, missed = _groups(walk, slots, numbers, records)
    places = tuple(
        _place(name, part, numbers[label], axis, len(numbers))
        for (name, part), (label, axis) in slots.items()
    )
    rescalings, scale_groups, num_scales = _scalings(walk)
    return Symmetries(
        network, tuple(groups), blocks, scale_groups, places, rescalings, dict(walk.roles),
        int(numbers.max()) + 1, num_scales, tuple(dict.fromkeys([*walk.unseen, *missed])),
        tuple(shared),
        tuple(dict.fromkeys(walk.nearly)),
    )  # fmt: skip


def _final_slots(walk: Walk) -> dict[tuple[str, str], tuple[np.ndarray, int]]:
    """Return labels by final units, and their axes; entries that follow no one axis are in a row,
    by axis -1."""
    slots = {}
    for key, slot in walk.slots.items():
        label, axis = compact(walk.moves.roots(slot.label)), slot.axis
        if axis < 0:
            axes = varied(label)
            axis = (axes or (0,))[-1]
            if len(axes) > 1:
                label, axis = np.broadcast_to(label, slot.label.shape).reshape(-1), -1
        slots[key] = label, axis
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
    occurrences = [(f"{name}:{part}", label) for (name, part), (label, _) in slots.items()]
    for token, label in [*occurrences, *((t, walk.moves.roots(label)) for t, label in walk.trail)]:
        for unit, count in zip(*np.unique(label, return_counts=True), strict=True):
            if unit > PINNED:
                records[int(unit)].append((token, int(count)))
    return {unit: tuple(sorted(record)) for unit, record in records.items()}


def _groups(
    walk: Walk, slots: Any, numbers: np.ndarray, records: dict[int, tuple[Any, ...]]
) -> tuple[list[Group], dict[str, int], list[str]]:
    """Sort units into groups by their records and blocks; name what blocks are not looked into."""
    marks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    sizes: dict[str, int] = {}
    fixed: set[str] = set()
    for token, units in walk.marks:
        sizes[token] = len(units)
        roots = walk.moves.roots(units)
        if (roots <= PINNED).any():  # a block with what stays cannot change places
            fixed.add(token)
        for block, row in enumerate(roots):
            for unit in set(row[row > PINNED].tolist()):
                marks[unit].append((token, block))
    sets, missed = _sets_of_blocks(marks, sizes, fixed)
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
        unit_marks = sorted(set(marks.get(unit, [])))
        number, block = outer.get(unit, (None, 0))
        apart = tuple(unit_marks) if number is None else tuple(token for token, _ in unit_marks)
        members[records[unit], apart, number][block].append(unit)
    return *_named(members, sets, owners, numbers), missed


def _named(
    members: Any, sets: list[Any], owners: dict[int, tuple[str, str]], numbers: np.ndarray
) -> tuple[list[Group], dict[str, int]]:
    moving = {k for k, (_, size) in enumerate(sets) if _are_alike(members, k, size)}
    groups: list[Group] = []
    blocks: dict[str, int] = {}
    uses: dict[str, int] = defaultdict(int)
    labels: dict[int, str] = {}
    for (_, _, number), rows in members.items():
        owner = owners[next(iter(rows.values()))[0]][0]
        name = owner.rpartition(".")[0] or owner
        if number in moving:
            labels.setdefault(number, f"{name} blocks")
            blocks[labels[number]] = sets[number][1]
            parts = [np.array([rows[b] for b in sorted(rows)])]
        else:
            parts = [np.array([row]) for row in rows.values()]
        for units in parts:
            if units.size > len(units) or number in moving:
                uses[name] += 1
                unique = name if uses[name] == 1 else f"{name} #{uses[name]}"
                groups.append(
                    Group(unique, numbers[units], labels.get(number) if number in moving else None)
                )
    return groups, blocks


def _are_alike(members: Any, number: int, size: int) -> bool:
    """Whether the blocks of a set have groups of the same kinds and sizes."""
    rows = [row for (_, _, k), row in members.items() if k == number]
    return bool(rows) and all(
        len(row) == size and len({len(units) for units in row.values()}) == 1 for row in rows
    )


def _sets_of_blocks(
    marks: dict[int, list[tuple[str, int]]], sizes: dict[str, int], fixed: set[str]
) -> tuple[list[tuple[dict[tuple[str, int], int], int]], list[str]]:
    """Return sets of blocks that change places together: (operation, block) -> block of the set.

    Blocks of blocks, and blocks that share units, as heads that read the same keys do, are not
    among them, but named.
    """
    parent = {(token, b): (token, b) for token, size in sizes.items() for b in range(size)}

    def root(block: tuple[str, int]) -> tuple[str, int]:
        while parent[block] != block:
            block = parent[block]
        return block

    for unit_marks in marks.values():
        for block in unit_marks[1:]:
            first, second = sorted((root(unit_marks[0]), root(block)))
            parent[second] = first
    of_token = {token: [root((token, b)) for b in range(size)] for token, size in sizes.items()}
    sets: dict[frozenset[Any], list[str]] = defaultdict(list)
    for token, roots in of_token.items():
        sets[frozenset(roots)].append(token)
    good, missed = [], []
    for roots_of_set, tokens in sets.items():
        size = len(roots_of_set)
        alone = all(not (roots_of_set & set(of_token[t])) for t in sizes if t not in tokens)
        free = not fixed & set(tokens)
        if size > 1 and alone and free and all(sizes[token] == size for token in tokens):
            order = {r: k for k, r in enumerate(of_token[tokens[0]])}
            good.append(
                ({(t, b): order[of_token[t][b]] for t in tokens for b in range(size)}, size)
            )
        elif free and size > 1:
            missed += [f"{token} (exchange of {sizes[token]} blocks)" for token in tokens]
    return good, missed


def _place(name: str, part: str, label: np.ndarray, axis: int, size: int) -> Place:
    """Return a place with its tables."""
    moved = np.moveaxis(label, axis, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    number = np.zeros_like(rows)
    tables: dict[int, list[int]] = {}
    for k, row in enumerate(rows):
        places_of: dict[int, list[int]] = defaultdict(list)
        for place, unit in enumerate(row.tolist()):
            if unit:
                number[k, place] = len(places_of[unit])
                places_of[unit].append(place)
        tables |= places_of
    number = np.moveaxis(number.reshape(moved.shape), -1, axis)
    table = np.zeros((len(tables), max((len(p) for p in tables.values()), default=1)), int)
    local = np.zeros(size + 1, int)
    for k, (unit, places) in enumerate(tables.items()):
        local[unit], table[k, : len(places)] = k, places
    return Place(name, part, axis, label, number, local, table)


def _scalings(walk: Walk) -> tuple[tuple[Rescaling, ...], tuple[ScaleGroup, ...], int]:
    """Number the scalings that are free, and sort them by the tensors that they multiply first."""
    forms = {
        key: {n: walk.scales.form(n) for n in np.unique(factor.label).tolist()}
        for key, factor in walk.factors.items()
    }
    variables = sorted({v for table in forms.values() for form in table.values() for v, _ in form})
    numbers = {variable: k + 1 for k, variable in enumerate(variables)}
    first: dict[int, str] = {}
    rescalings, reads = [], set()
    counts: dict[int, int] = defaultdict(int)
    for key, factor in walk.factors.items():
        parts = _rescalings(key, factor, forms[key], numbers)
        rescalings += parts
        if walk.roles[key[0]] not in ("weight", "gain"):
            continue
        written: set[int] = set()
        for part in parts:
            exponents = np.broadcast_to(part.exponents, part.label.shape)
            reads |= set(part.label[exponents < 0].tolist())
            written |= set(part.label[part.label > 0].tolist()) if key[1] != "in" else set()
        first |= {unit: key[0] for unit in written if unit not in first}
        for unit in written:
            counts[unit] += 1
    groups: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for unit in range(1, len(numbers) + 1):
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
    return tuple(rescalings), scale_groups, len(numbers) + 1


def _rescalings(
    key: tuple[str, str], factor: Factor, forms: dict[int, Form], numbers: dict[int, int]
) -> list[Rescaling]:
    """Return one scaling of a tensor for each variable that its forms have at most."""
    rescalings = []
    for k in range(max(1, *(len(form) for form in forms.values()))):
        table = {n: form[k] if len(form) > k else (0, 0) for n, form in forms.items()}
        label = np.array(
            [numbers.get(table[n][0], PINNED) for n in factor.label.ravel().tolist()], int
        )
        powers = np.array(
            [float(table[n][1] * factor.exponent) for n in factor.label.ravel().tolist()]
        )
        shape = factor.label.shape
        powers = np.where(label > PINNED, powers, 1.0)
        rescalings.append(
            Rescaling(key[0], key[1], label.reshape(shape), powers.reshape(shape), factor.eps)
        )
    return rescalings
