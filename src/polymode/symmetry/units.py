"""Numbered units, and which of them are one and the same.

While a network's graph is walked, every hidden unit has a number. Unit 0 is pinned: it neither
moves nor scales. `ZERO` stands for an activation that is always 0, which suits every unit. A
*label* is an array of such numbers that broadcasts to the shape of a tensor and says which unit
each entry belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

PINNED, ZERO = 0, -1
Label = np.ndarray


class Units:
    """Sets of units that were tied.

    A set is known by its smallest number, so that a set with the pinned unit is pinned.
    """

    def __init__(self) -> None:
        self._parent = [PINNED]

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, number: int) -> Label:
        """Return the numbers of new units."""
        first = len(self._parent)
        self._parent += range(first, first + number)
        return np.arange(first, first + number)

    def root(self, unit: int) -> int:
        """Return the first unit of the set."""
        path = []
        while self._parent[unit] != unit:
            path.append(unit)
            unit = self._parent[unit]
        for each in path:  # short paths next time
            self._parent[each] = unit
        return unit

    def tie(self, a: Any, b: Any) -> None:
        """Tie units elementwise; zeros are left out."""
        pairs = np.stack(np.broadcast_arrays(np.asarray(a), np.asarray(b)), -1).reshape(-1, 2)
        pairs = pairs[(pairs != ZERO).all(1)]
        for one, other in np.unique(pairs, axis=0).tolist():
            root, root2 = self.root(one), self.root(other)
            self._parent[max(root, root2)] = min(root, root2)

    def pin(self, units: Any) -> None:
        """Tie units to the pinned one."""
        self.tie(units, PINNED)

    def roots(self, label: Label) -> Label:
        """Return the first units of a label's; zeros stay."""
        unique, places = np.unique(label, return_inverse=True)
        found = [u if u == ZERO else self.root(u) for u in unique.tolist()]
        return np.array(found, int)[places.reshape(label.shape)]


@dataclass
class Value:
    """A tensor of the graph: its shape, and labels of its entries.

    Attributes:
        data: a tensor without values (torch's "meta" device).
        moves: labels of units that may be permuted, one for each independent kind of unit; axes
            along which none of them varies are pinned.
        scale: the one label of scalings, by the numbers of forms (`scales.py`).
        zero: whether all entries are 0.
        raw: name of the parameter that it is, as long as nothing was done with it but, for a
            matrix, that it was turned.
        turned: whether it is the transpose of that parameter.
        origin: name of the parameter that its units stand for, one unit per entry.
    """

    data: Tensor
    moves: list[Label] = field(default_factory=list)
    scale: Label = field(default_factory=lambda: np.zeros((), int))
    zero: bool = False
    raw: str | None = None
    turned: bool = False
    origin: str | None = None

    def __post_init__(self) -> None:
        if self.scale.ndim != self.data.dim():
            self.scale = self.scale.reshape(
                (1,) * (self.data.dim() - self.scale.ndim) + self.scale.shape
            )


def varies(label: Label, axis: int) -> bool:
    """Whether a label differs between places along an axis."""
    return label.shape[axis] > 1


def varied(label: Label) -> tuple[int, ...]:
    """Return the axes along which a label differs."""
    return tuple(axis for axis in range(label.ndim) if label.shape[axis] > 1)


def compact(label: Label) -> Label:
    """Return the label with length 1 along axes where it does not differ."""
    for axis in range(label.ndim):
        if label.shape[axis] > 1:
            first = np.take(label, [0], axis)
            if (label == first).all():
                label = first
    return label


def aligned(label: Label, ndim: int) -> Label:
    """Return the label with so many axes, new ones in front."""
    return label.reshape((1,) * (ndim - label.ndim) + label.shape)


def move(label: Label, data: Tensor, function: Callable[[Tensor], Any]) -> list[Label]:
    """Apply a function that only moves entries to a label; return labels of its results."""
    whole = torch.from_numpy(np.ascontiguousarray(label)).expand(data.shape)
    moved = function(whole)
    results = moved if isinstance(moved, (tuple, list)) else (moved,)
    return [compact(each.numpy()) for each in results]


def apply_to(x: Value, function: Callable[[Any], Any]) -> list[Value]:
    """Apply a function that only moves entries to a value; return its results."""
    results = function(x.data)
    results = results if isinstance(results, (tuple, list)) else (results,)
    moves = [move(label, x.data, function) for label in x.moves]
    scale = move(x.scale, x.data, function)
    return [
        Value(data, [label[k] for label in moves], scale[k], x.zero, origin=x.origin)
        for k, data in enumerate(results)
    ]
