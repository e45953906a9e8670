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
    Scales,
    Units,
    Value,
    aligned,
    compact,
    varied,
    varies,
)
from polymode.tracing.operations import Operation


@dataclass
class Slot:
    """A place of units in a tensor: `label` broadcasts to its shape, units follow one `axis`; with
    -1, every entry has a unit of its own."""

    label: Label
    axis: int


@dataclass
class Factor:
    """What scales a tensor: s ** exponent by the forms of `label`; `eps` of a running variance,
    else None."""

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
        by_axes: parameters that have a unit for each place along each axis, not for each entry.
    """

    def __init__(
        self, names: dict[str, str], ignore_eps: bool, by_axes: frozenset[str] = frozenset()
    ) -> None:
        self.names, self.ignore_eps, self.by_axes = names, ignore_eps, by_axes
        self.moves, self.scales = Units(), Scales()
        self.slots: dict[tuple[str, str], Slot] = {}
        self.factors: dict[tuple[str, str], Factor] = {}
        self.roles: dict[str, str] = {}
        self.elements: dict[str, tuple[list[Label], Label]] = {}
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
            self._place_units(name, part, np.where(label == ZERO, PINNED, label), axis)
        factors = {
            part: Factor(np.where(label == ZERO, PINNED, label), exponent, eps)
            for part, (label, exponent) in scales.items()
        }
        self._place_scales(name, factors)

    def _place_units(self, name: str, part: str, label: Label, axis: int) -> None:
        """Place units along one axis of a tensor; they are one with others along this axis."""
        slots = {p: slot for (n, p), slot in self.slots.items() if n == name}
        if slots and ("own" in slots) != (part == "own"):  # read entry by entry, and as a matrix
            for placed in [label, *(slot.label for slot in slots.values())]:
                self.moves.pin(placed)
            return
        same = [p for p, slot in slots.items() if slot.axis == axis]
        if not same:
            self.slots[name, part if part not in slots else f"{part}{axis}"] = Slot(label, axis)
            return
        first = slots[same[0]].label
        if part in same or set(varied(first)) | set(varied(label)) <= {axis}:
            self.moves.tie(slots[part].label if part in same else first, label)
        else:
            self.moves.pin(first)
            self.moves.pin(label)

    def _place_scales(self, name: str, new: dict[str, Factor]) -> None:
        """Place the scales of a tensor; at a second use the product of all of them is the same."""
        old = {p: factor for (n, p), factor in self.factors.items() if n == name}
        if not old:
            self.factors |= {(name, part): factor for part, factor in new.items()}
        elif set(old) == set(new) == {"out", "in"}:
            moved = [self.scales.combine(old[p].label, new[p].label, -1) for p in ("out", "in")]
            if all(len(varied(label)) <= 1 for label in moved):  # o - o' = i - i' for all pairs
                for label in moved:
                    self.scales.tie(label, label.flat[0])
                self.scales.tie(moved[0].flat[0], moved[1].flat[0])
            else:
                for part in old:
                    self.scales.tie(old[part].label, new[part].label)
        elif set(old) == set(new):
            for part in old:
                self.scales.tie(old[part].label, new[part].label)
        elif new:
            self.scales.tie(self._total(old), self._total(new))

    def _total(self, factors: dict[str, Factor]) -> Label:
        """Return the product of all scales of a tensor, entry by entry."""
        total = np.zeros((), int)
        for factor in factors.values():
            total = self.scales.combine(total, factor.label, factor.exponent)
        return total

    def adopt(self, value: Any, role: str = "weight") -> Any:
        """Give every entry of a parameter units of its own; other values stay as they are."""
        if not isinstance(value, Value) or value.raw is None:
            return value
        name = self.names.get(value.raw, value.raw)
        if name not in self.elements:
            shape = tuple(value.data.shape[::-1] if value.turned else value.data.shape)
            self.elements[name] = self._entries(name, role, shape)
        moves, scale = self.elements[name]
        if value.turned:
            moves, scale = [label.T for label in moves], scale.T
        return Value(value.data, moves, scale, origin=name)

    def _entries(self, name: str, role: str, shape: tuple[int, ...]) -> tuple[list[Label], Label]:
        """Make the units and scales of a parameter, by entry or by axis, and place them."""
        number, long = math.prod(shape), [axis for axis, size in enumerate(shape) if size > 1]
        moves: dict[str, tuple[Label, int]] = {}
        if name in self.by_axes:
            for axis in long:
                size = [n if a == axis else 1 for a, n in enumerate(shape)]
                moves[f"axis{axis}"] = self.moves.fresh(shape[axis]).reshape(size), axis
        elif number > 1:
            moves["own"] = self.moves.fresh(number).reshape(shape), -1
        scale = self.scales.fresh(number, of_entries=True).reshape(shape)
        self.place(name, role, moves, {"own": (scale, 1)})
        return [label for label, _ in moves.values()], scale

    # ---------------------------------------------------------------- units of a value

    def regular(self, units: Units | Scales, label: Label, keep: Sequence[int]) -> Label:
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
        along = [label for label in value.moves if varies(label, axis)]
        further = [label for label in value.moves if not varies(label, axis)]
        for label in along[1:]:
            self.moves.pin(label)
        if not along:
            return np.full(size, ZERO if value.zero else PINNED), further
        return self.regular(self.moves, along[0], (axis,)).reshape(size), further

    def scale_channel(self, value: Value, axis: int) -> Label:
        """Return the units of scaling along an axis."""
        axis = axis % value.data.dim()
        label = self.regular(self.scales, value.scale, (axis,))
        return np.broadcast_to(label.reshape(-1), (value.data.shape[axis],))

    def pin_along(self, value: Value, axes: Sequence[int]) -> Value:
        """Hold places along these axes; units that differ along others too move with all of them.

        After a pixel shuffle, for example, a channel has four units, which stay in their places.
        """
        free = [a for a in range(value.data.dim()) if a not in axes]
        moves = []
        for label in value.moves:
            if any(varies(label, a) for a in free):
                moves.append(self.regular(self.moves, label, free))
            else:
                self.moves.pin(label)
        return Value(value.data, moves, self.regular(self.scales, value.scale, free), value.zero)

    def fold(self, token: str, label: Label, axes: Sequence[int]) -> Label:
        """Return units for what a symmetric function of all places along `axes` makes of a label.

        The units that such a function takes are a block: they change places within it, and with
        those of another block as a whole.
        """
        shape = [1 if axis in axes else size for axis, size in enumerate(label.shape)]
        blocks = self.moves.fresh(math.prod(shape)).reshape(shape)
        self.nest(token, blocks, label)
        return blocks

    def pin_scale(self, value: Value) -> Value:
        """Pin the scale: an operation that is not homogeneous follows."""
        self.scales.pin(value.scale)
        moves = [np.where(label == ZERO, PINNED, label) for label in value.moves]
        return Value(value.data, moves)

    def give_up(self, name: str, values: Sequence[Value]) -> None:
        """Pin everything that goes into an unknown operation."""
        self.unseen.append(name)
        for value in values:
            value = self.adopt(value)
            for label in value.moves:
                self.moves.pin(label)
            self.scales.pin(value.scale)

    def written(self) -> set[tuple[str, str]]:
        """Return what has places or scales so far, by tensor and part."""
        return {*self.slots, *self.factors}

    def pin_since(self, before: set[tuple[str, str]]) -> None:
        """Pin all that was placed since."""
        for key in self.written() - before:
            if key in self.slots:
                self.moves.pin(self.slots[key].label)
            if key in self.factors:
                self.scales.pin(self.factors[key].label)

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
        x_labels, y_labels = ([aligned(label, ndim) for label in v.moves] for v in (x, y))
        results: list[Label] = []
        partners: set[int] = set()
        for label in x_labels:
            result = label
            for number, y_label in enumerate(y_labels):
                if set(varied(label)) & set(varied(y_label)):
                    partners.add(number)
                    result = self.join(token, (result, x), (y_label, y), ndim)
            if result is label:
                self.pin_against(label, y, ndim)
            results.append(result)
        for number, y_label in enumerate(y_labels):
            if number not in partners:
                self.pin_against(y_label, x, ndim)
                results.append(y_label)
        return results

    def pin_against(self, label: Label, value: Value, ndim: int) -> None:
        """Pin units that meet pinned entries."""
        sizes = (1,) * (ndim - value.data.dim()) + tuple(value.data.shape)
        if not value.zero and any(sizes[axis] > 1 for axis in varied(label)):
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
        first, second = a[0], b[0]
        self.moves.tie(first, second)
        return np.where(first == ZERO, second, first)

    def nest(self, token: str, blocks: Label, inner: Label) -> None:
        """Keep units of `inner` in the blocks that the units of `blocks` stand for."""
        front = varied(blocks)
        order = [*front, *(axis for axis in range(inner.ndim) if axis not in front)]
        units = inner.transpose(order).reshape(blocks.size, -1)
        self.mark(token, units)
        self.mark(token, blocks.transpose(order).reshape(-1, 1))

    def add_scales(self, x: Value, y: Value, data: Tensor) -> Label:
        """Return the scale of a sum: both have the same."""
        first, second = (aligned(v.scale, data.dim()) for v in (x, y))
        if x.zero or y.zero:
            return second if x.zero else first
        self.scales.tie(first, second)
        return np.where(first == ZERO, second, first)

    def multiply_scales(self, x: Value, y: Value, data: Tensor, sign: int = 1) -> Label:
        """Return the scale of a product, or of a quotient with sign -1."""
        first, second = (aligned(v.scale, data.dim()) for v in (x, y))
        for value in (x, y):
            if value.origin is not None and self.roles[value.origin] == "bias":
                self.roles[value.origin] = "gain"
        return self.scales.combine(first, second, sign)


@dataclass
class Call:
    """One operation of the graph: what is called, labelled inputs, the unlabelled result.

    Attributes:
        name: under which it is reported. token: of the node.
        operation: what the table knows of it.
        uses_more_than_first: whether the graph reads another part of a result than its first.
    """

    name: str
    token: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    data: Any
    uses_more_than_first: bool = True
    operation: Operation | None = None

    def values(self) -> list[Value]:
        """Return all labelled inputs."""
        values: list[Value] = []
        each_in(
            (self.args, self.kwargs), lambda v: values.append(v) if isinstance(v, Value) else None
        )
        return values

    def get(self, name: str, place: int, default: Any) -> Any:
        """Return an argument by name or place."""
        return self.kwargs.get(name, self.args[place] if len(self.args) > place else default)


def meta(value: Any) -> Any:
    """Return arguments for torch, with labelled values replaced by their meta tensors."""
    return each_in(value, lambda item: item.data if isinstance(item, Value) else item)


def each_in(structure: Any, function: Callable[[Any], Any]) -> Any:
    """Return tuples, lists and dictionaries with the function of each of their items."""
    return map_aggregate(structure, function)
