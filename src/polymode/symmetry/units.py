"""Numbered units, and which of them are one and the same.

While a network's graph is walked, every hidden unit has a number. Unit 0 is pinned: it neither
moves nor scales. `ZERO` stands for an activation that is always 0, which suits every unit. A
*label* is an array of such numbers that broadcasts to the shape of a tensor and says which unit
each entry belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
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
        for node in path:  # short paths next time
            self._parent[node] = unit
        return unit

    def tie(self, a: Any, b: Any) -> None:
        """Tie units elementwise; zeros are left out."""
        pairs = np.stack(np.broadcast_arrays(np.asarray(a), np.asarray(b)), -1).reshape(-1, 2)
        pairs = pairs[(pairs != ZERO).all(1)]
        for first, second in np.unique(pairs, axis=0).tolist():
            root, root2 = self.root(first), self.root(second)
            self._parent[max(root, root2)] = min(root, root2)

    def pin(self, units: Any) -> None:
        """Tie units to the pinned one."""
        self.tie(units, PINNED)

    def roots(self, label: Label) -> Label:
        """Return the first units of a label's; zeros stay."""
        unique, places = np.unique(label, return_inverse=True)
        roots = [u if u == ZERO else self.root(u) for u in unique.tolist()]
        return np.array(roots, int)[places.reshape(label.shape)]


@dataclass
class Value:
    """A tensor of the graph: its shape, and labels of its entries.

    Attributes:
        data: a tensor without values (torch's "meta" device).
        moves: labels of units that may be permuted, one for each independent kind of unit; axes
            along which none of them varies are pinned.
        scale: the one label of scalings, by the numbers of forms (`Scales`).
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
    full = torch.from_numpy(np.ascontiguousarray(label)).expand(data.shape)
    moved = function(full)
    results = moved if isinstance(moved, (tuple, list)) else (moved,)
    return [compact(result.numpy()) for result in results]


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


Form = tuple[tuple[int, Fraction], ...]  # variables and their coefficients, in order


class Scales:
    """Scales of activations as linear forms in the logarithms of free ones.

    A scale is positive, and products multiply scales, so logarithms add up: relu(a) * b has the
    form u_a + u_b, a square has 2 u. Sums of activations need equal scales, a linear equation
    between two forms. It is solved at once for one of its variables, which is replaced from then
    on; what is left are the degrees of freedom. Scales of single entries of a parameter are
    replaced first, then the youngest, so that what is left are scales of units.

    Every form has a number, so that labels can hold them. Form 0 is the number 0, the logarithm of
    a scale that is held at 1.
    """

    def __init__(self) -> None:
        self._forms: list[Form] = [()]
        self._numbers: dict[Form, int] = {(): PINNED}
        self._solved: dict[int, Form] = {}
        self._variables = 0
        self._of_entries: set[int] = set()

    def fresh(self, number: int, *, of_entries: bool = False) -> Label:
        """Return the forms of new variables, of units or of entries of a parameter."""
        first = self._variables + 1
        self._variables += number
        if of_entries:
            self._of_entries |= set(range(first, first + number))
        return np.array(
            [self._number(((v, Fraction(1)),)) for v in range(first, first + number)], int
        )

    def form(self, number: int) -> Form:
        """Return a form in variables that are still free."""
        return self._reduced(self._forms[number])

    def tie(self, a: Any, b: Any) -> None:
        """Require equal scales, entry by entry; zeros are left out."""
        for first, second in _pairs(a, b):
            if ZERO not in (first, second) and first != second:
                self._solve(_sum(self.form(first), self.form(second), Fraction(-1)))

    def pin(self, label: Any) -> None:
        """Require scales of 1."""
        self.tie(label, PINNED)

    def combine(self, a: Any, b: Any, sign: int = 1) -> Label:
        """Return the label of products a b, or of quotients a / b with sign -1."""
        first, second = np.broadcast_arrays(np.asarray(a), np.asarray(b))
        pairs = np.stack([first, second], -1).reshape(-1, 2)
        unique, places = np.unique(pairs, axis=0, return_inverse=True)
        numbers = [
            ZERO
            if ZERO in pair
            else self._number(_sum(self.form(pair[0]), self.form(pair[1]), Fraction(sign)))
            for pair in unique.tolist()
        ]
        return np.array(numbers, int)[places.reshape(first.shape)]

    def power(self, label: Label, exponent: float) -> Label:
        """Return the label of powers."""
        factor = Fraction(exponent).limit_denominator(1000)
        numbers = {
            n: n if n == ZERO else self._number(_sum((), self.form(n), factor))
            for n in np.unique(label).tolist()
        }
        return np.array([numbers[n] for n in label.ravel().tolist()], int).reshape(label.shape)

    def is_pinned(self, label: Label) -> bool:
        """Whether all scales are held at 1, or are of zeros."""
        return all(n == ZERO or not self.form(n) for n in np.unique(label).tolist())

    def _number(self, form: Form) -> int:
        if form not in self._numbers:
            self._numbers[form] = len(self._forms)
            self._forms.append(form)
        return self._numbers[form]

    def _solve(self, form: Form) -> None:
        """Make a form 0 by replacing one of its variables."""
        if form:
            variable, coefficient = max(form, key=lambda part: (part[0] in self._of_entries, part))
            remaining = (part for part in form if part[0] != variable)
            self._solved[variable] = tuple((v, -c / coefficient) for v, c in remaining)

    def _reduced(self, form: Form) -> Form:
        """Replace variables that were solved for."""
        if not any(variable in self._solved for variable, _ in form):
            return form
        total: Form = ()
        for variable, coefficient in form:
            if variable in self._solved:
                self._solved[variable] = value = self._reduced(self._solved[variable])
                total = _sum(total, value, coefficient)
            else:
                total = _sum(total, ((variable, Fraction(1)),), coefficient)
        return total


def _sum(a: Form, b: Form, factor: Fraction) -> Form:
    """Return a + factor b."""
    total: dict[int, Fraction] = defaultdict(Fraction, a)
    for variable, coefficient in b:
        total[variable] += factor * coefficient
    return tuple(sorted((v, c) for v, c in total.items() if c))


def _pairs(a: Any, b: Any) -> list[tuple[int, int]]:
    """Return all different pairs of entries."""
    pairs = np.stack(np.broadcast_arrays(np.asarray(a), np.asarray(b)), -1).reshape(-1, 2)
    return [(first, second) for first, second in np.unique(pairs, axis=0).tolist()]
