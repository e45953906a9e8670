"""What is collected while the graph of a network is walked: which entries of which tensors belong
to which units.

A network's function stays the same if units that are treated alike change places, together with
their weights, and if a unit's incoming weights are multiplied by s > 0 and its outgoing ones by
1/s. The walk gives every entry of every activation a unit, ties units where the graph adds them up,
and writes down in which tensors' axes they occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.fx.node import map_aggregate

from polymode.symmetry.units import (
    PINNED,
    ZERO,
    Label,
    Units,
    Value,
    aligned,
    compact,
    varied,
    varies,
)


@dataclass
class Slot:
    """A place of units in a tensor: `label` broadcasts to its shape, units follow one `axis`."""

    label: Label
    axis: int | None


@dataclass
class Factor:
    """What scales a tensor: s ** exponent by `label`; `eps` of a running variance, else None."""

    label: Label
    exponent: int
    eps: float | None = None


class Walk:
    """Collects units; see the module.

    Attributes:
        moves, scales: units that are permuted, and units that are scaled.
        slots, factors: by (tensor, part), the places of both.
        roles: tensor -> "weight", "gain", "bias" or "statistic", in the order of the graph.
        trail: (token, label): units that an operation treats alike have equal tokens.
        marks: (token, units (blocks, n)): units of different blocks are kept apart.
        unseen: operations that nothing is known about. nearly: what scales only up to eps.
    """

    def __init__(self, names: dict[str, str], ignore_eps: bool) -> None:
        self.names, self.ignore_eps = names, ignore_eps
        self.moves, self.scales = Units(), Units()
        self.slots: dict[tuple[str, str], Slot] = {}
        self.factors: dict[tuple[str, str], Factor] = {}
        self.roles: dict[str, str] = {}
        self.elements: dict[str, tuple[Label, Label]] = {}
        self.trail: list[tuple[str, Label]] = []
        self.marks: list[tuple[str, Label]] = []
        self.unseen: list[str] = []
        self.nearly: list[str] = []

    # ---------------------------------------------------------------- tensors of the network

    def place(
        self,
        name: str,
        role: str,
        moves: dict[str, tuple[Label, int]],
        scales: dict[str, tuple[Label, int]],
        eps: float | None = None,
    ) -> None:
        """Write down where units occur in a tensor; at a second use, tie them to the first."""
        name = self.names.get(name, name)
        self.roles.setdefault(name, role)
        for part, (label, axis) in moves.items():
            label = np.where(label == ZERO, PINNED, label)
            known = self.slots.get((name, part))
            if known is None:
                self.slots[name, part] = Slot(label, axis)
            elif known.axis == axis:
                self.moves.tie(known.label, label)
            else:
                self.moves.pin(known.label)
                self.moves.pin(label)
        for part, (label, exponent) in scales.items():
            label = np.where(label == ZERO, PINNED, label)
            first = self.factors.get((name, part))
            if first is None:
                self.factors[name, part] = Factor(label, exponent, eps)
            else:
                assert first.exponent == exponent
                self.scales.tie(first.label, label)
        self._require_one_view(name)

    def _require_one_view(self, name: str) -> None:
        """Pin the units of a tensor that is read in two ways (its entries, and as a matrix)."""
        parts = {part for key, part in self.slots if key == name}
        if "own" in parts and len(parts) > 1:
            for part in parts:
                self.moves.pin(self.slots[name, part].label)
        parts = {part for key, part in self.factors if key == name}
        if "own" in parts and "out" in parts:
            for part in parts:
                self.scales.pin(self.factors[name, part].label)

    def adopt(self, value: Any, role: str = "weight") -> Any:
        """Give every entry of a parameter units of its own; other values stay as they are."""
        if not isinstance(value, Value) or value.raw is None:
            return value
        name = self.names.get(value.raw, value.raw)
        shape = tuple(value.data.shape)
        if name not in self.elements:
            number = math.prod(shape)
            move, scale = (u.fresh(number).reshape(shape) for u in (self.moves, self.scales))
            self.elements[name] = move, scale
            self.place(name, role, {"own": (move, -1)}, {"own": (scale, 1)})
        move, scale = self.elements[name]
        return Value(value.data, [move] if move.size > 1 else [], scale, origin=name)

    # ---------------------------------------------------------------- units of a value

    def regular(self, units: Units, label: Label, keep: Sequence[int]) -> Label:
        """Tie units along all axes but those to keep, and return the label without them."""
        for axis in varied(label):
            if axis not in keep:
                first = np.take(label, [0], axis)
                units.tie(label, first)
                label = first
        return label

    def channel(self, value: Value, axis: int) -> tuple[Label, list[Label]]:
        """Return the units along an axis, which may vary along no other one, and other labels."""
        axis, size = axis % value.data.dim(), value.data.shape[axis]
        mine = [label for label in value.moves if varies(label, axis)]
        rest = [label for label in value.moves if not varies(label, axis)]
        for label in mine[1:]:
            self.moves.pin(label)
        if not mine:
            return np.full(size, ZERO if value.zero else PINNED), rest
        return self.regular(self.moves, mine[0], (axis,)).reshape(size), rest

    def scale_channel(self, value: Value, axis: int) -> Label:
        """Return the units of scaling along an axis."""
        axis = axis % value.data.dim()
        label = self.regular(self.scales, value.scale, (axis,))
        return np.broadcast_to(label.reshape(-1), (value.data.shape[axis],))

    def pin_along(self, value: Value, axes: Sequence[int]) -> Value:
        """Pin units that differ along these axes; return the value without them."""
        loose = [label for label in value.moves if any(varies(label, a) for a in axes)]
        for label in loose:
            self.moves.pin(label)
        kept = [label for label in value.moves if not any(label is each for each in loose)]
        scale = self.regular(
            self.scales, value.scale, [a for a in range(value.data.dim()) if a not in axes]
        )
        return Value(value.data, kept, scale, value.zero)

    def pin_scale(self, value: Value) -> Value:
        """Pin the scale: an operation that is not homogeneous follows."""
        self.scales.pin(value.scale)
        moves = [np.where(label == ZERO, PINNED, label) for label in value.moves]
        return Value(value.data, moves)

    def give_up(self, name: str, values: Sequence[Value]) -> None:
        """Pin everything that goes into an operation of which nothing is known."""
        self.unseen.append(name)
        for value in values:
            value = self.adopt(value)
            for label in value.moves:
                self.moves.pin(label)
            self.scales.pin(value.scale)

    def touch(self, token: str, value: Value) -> Value:
        """Note that an operation has these units as its result; keep labels that vary."""
        for number, label in enumerate(value.moves):
            self.trail.append((f"{token}/{number}", label))
        value.moves = [label for label in map(compact, value.moves) if label.size > 1]
        value.scale = compact(value.scale)
        return value

    def mark(self, token: str, blocks: Label) -> None:
        """Keep units of different blocks apart, (blocks, n)."""
        self.marks.append((token, blocks))

    # ---------------------------------------------------------------- two values, entry by entry

    def merge(self, token: str, x: Value, y: Value, data: Tensor) -> list[Label]:
        """Return labels of what x and y give entry by entry, the units of both tied."""
        ndim = data.dim()
        mine, theirs = ([aligned(label, ndim) for label in v.moves] for v in (x, y))
        results: list[Label] = []
        partners: set[int] = set()
        for label in mine:
            result = label
            for number, other in enumerate(theirs):
                if set(varied(label)) & set(varied(other)):
                    partners.add(number)
                    result = self.join(token, (result, x), (other, y), ndim)
            if result is label:
                self.pin_against(label, y, ndim)
            results.append(result)
        for number, other in enumerate(theirs):
            if number not in partners:
                self.pin_against(other, x, ndim)
                results.append(other)
        return results

    def pin_against(self, label: Label, other: Value, ndim: int) -> None:
        """Pin units that meet pinned entries."""
        sizes = (1,) * (ndim - other.data.dim()) + tuple(other.data.shape)
        if not other.zero and any(sizes[axis] > 1 for axis in varied(label)):
            self.moves.pin(label)

    def join(self, token: str, a: tuple[Label, Value], b: tuple[Label, Value], ndim: int) -> Label:
        """Tie labels that vary along a common axis, or keep the one in blocks of the other."""
        for (big, _), (small, value) in ((a, b), (b, a)):
            extra = set(varied(big)) - set(varied(small))
            sizes = (1,) * (ndim - value.data.dim()) + tuple(value.data.shape)
            if extra and set(varied(small)) < set(varied(big)):
                if all(sizes[axis] == 1 for axis in extra):
                    self.nest(token, small, big)
                    return big
        one, other = a[0], b[0]
        self.moves.tie(one, other)
        return np.where(one == ZERO, other, one)

    def nest(self, token: str, blocks: Label, inner: Label) -> None:
        """Keep units of `inner` in the blocks that the units of `blocks` stand for."""
        front = varied(blocks)
        order = [*front, *(axis for axis in range(inner.ndim) if axis not in front)]
        units = inner.transpose(order).reshape(blocks.size, -1)
        self.mark(token, units)
        self.mark(token, blocks.transpose(order).reshape(-1, 1))

    def add_scales(self, x: Value, y: Value, data: Tensor) -> Label:
        """Return the scale of a sum: both have the same."""
        one, other = (aligned(v.scale, data.dim()) for v in (x, y))
        if x.zero or y.zero:
            return other if x.zero else one
        self.scales.tie(one, other)
        return np.where(one == ZERO, other, one)

    def multiply_scales(self, x: Value, y: Value, data: Tensor) -> Label:
        """Return the scale of a product, of which one factor may be a parameter.

        A parameter a in y = a x scales by s_y / s_x, which is one number for all x that it meets.
        """
        if x.origin is not None:
            x, y = y, x
        one, other = (aligned(v.scale, data.dim()) for v in (x, y))
        if (self.scales.roots(one)[0] <= PINNED).all():
            return other
        if y.origin is None or x.origin is not None:
            self.scales.pin(other)
            return one
        inputs: dict[int, int] = {}
        pairs = np.stack(np.broadcast_arrays(other, one), -1).reshape(-1, 2)
        for element, unit in np.unique(pairs, axis=0).tolist():
            self.scales.tie(inputs.setdefault(element, unit), unit)
        own = self.elements[y.origin][1]
        label = np.array([inputs.get(e, PINNED) for e in own.reshape(-1).tolist()])
        self.roles[y.origin] = "gain" if self.roles[y.origin] == "bias" else self.roles[y.origin]
        self.place(y.origin, "gain", {}, {"in": (label.reshape(own.shape), -1)})
        return other


def meta(value: Any) -> Any:
    """Return what torch is to be called with: values by their tensors without values."""
    return each_in(value, lambda each: each.data if isinstance(each, Value) else each)


def each_in(structure: Any, function: Callable[[Any], Any]) -> Any:
    """Return tuples, lists and dictionaries with the function of each of their items."""
    return map_aggregate(structure, function)
