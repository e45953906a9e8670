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
    """Sets of units that were tied; within a set each is the first one or, by sign -1, its inverse.

    A set is known by its smallest number, so that a set with the pinned unit is pinned.
    """

    def __init__(self) -> None:
        self._parent, self._sign = [PINNED], [1]

    def __len__(self) -> int:
        return len(self._parent)

    def fresh(self, number: int) -> Label:
        """Return the numbers of new units."""
        first = len(self._parent)
        self._parent += range(first, first + number)
        self._sign += [1] * number
        return np.arange(first, first + number)

    def root(self, unit: int) -> tuple[int, int]:
        """Return the first unit of the set, and the sign relative to it."""
        sign, path = 1, []
        while self._parent[unit] != unit:
            path.append(unit)
            unit = self._parent[unit]
        for each in reversed(path):  # from the root outwards: short paths next time
            sign *= self._sign[each]
            self._parent[each], self._sign[each] = unit, sign
        return unit, sign

    def tie(self, a: Any, b: Any, sign: int = 1) -> None:
        """Tie units elementwise: a = b, or a = 1/b with sign -1; zeros are left out."""
        pairs = np.stack(np.broadcast_arrays(np.asarray(a), np.asarray(b)), -1).reshape(-1, 2)
        pairs = pairs[(pairs != ZERO).all(1)]
        for one, other in np.unique(pairs, axis=0).tolist():
            (root, mine), (root2, theirs) = self.root(one), self.root(other)
            if root == root2:
                if mine * theirs != sign and root != PINNED:
                    self._parent[root] = PINNED  # s = 1/s
                continue
            root, root2 = min(root, root2), max(root, root2)
            self._parent[root2], self._sign[root2] = root, sign * mine * theirs

    def pin(self, units: Any) -> None:
        """Tie units to the pinned one."""
        self.tie(units, PINNED)

    def roots(self, label: Label) -> tuple[Label, Label]:
        """Return the first units of a label's, and the signs; zeros stay."""
        unique, places = np.unique(label, return_inverse=True)
        found = [(u, 1) if u == ZERO else self.root(u) for u in unique.tolist()]
        roots, signs = (
            np.array(part)[places.reshape(label.shape)] for part in zip(*found, strict=True)
        )
        return roots, np.where(roots <= PINNED, 1, signs)


@dataclass
class Value:
    """A tensor of the graph: its shape, and labels of its entries.

    Attributes:
        data: a tensor without values (torch's "meta" device).
        moves: labels of units that may be permuted, one for each independent kind of unit; axes
            along which none of them varies are pinned.
        scale: the one label of scalings.
        zero: whether all entries are 0.
        raw: name of the parameter or buffer that it is, as long as nothing was done with it.
        origin: name of the parameter that its units stand for, one unit per entry.
    """

    data: Tensor
    moves: list[Label] = field(default_factory=list)
    scale: Label = field(default_factory=lambda: np.zeros((), int))
    zero: bool = False
    raw: str | None = None
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
