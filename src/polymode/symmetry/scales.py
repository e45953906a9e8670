"""Scalings of activations as linear forms: what a unit's scale is in terms of free ones.

A scale is positive, and products multiply scales, so logarithms of scales are sums: that of
relu(a) * b is u_a + u_b, that of a square is 2 u. Sums of activations need equal scales, which is a
linear equation between two forms; it is solved at once for one of its variables, and that one is
replaced from then on. What is left are the degrees of freedom. Scales of single entries of a
parameter are replaced first, then the youngest, so that what is left are scales of units.

Every form has a number, so that labels (`units.py`) can hold them. Form 0 is the number 0, the
logarithm of a scale that is held at 1; `ZERO` stands for an activation that is always 0, which
suits every scale.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np

from polymode.symmetry.units import PINNED, ZERO, Label

Form = tuple[tuple[int, Fraction], ...]  # variables and their coefficients, in order


class Scales:
    """Linear forms in the logarithms of scales, and the equations between them."""

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
        for one, other in _pairs(a, b):
            if ZERO not in (one, other) and one != other:
                self._solve(_sum(self.form(one), self.form(other), Fraction(-1)))

    def pin(self, label: Any) -> None:
        """Require scales of 1."""
        self.tie(label, PINNED)

    def combine(self, a: Any, b: Any, sign: int = 1) -> Label:
        """Return the label of products a b, or of quotients a / b with sign -1."""
        one, other = np.broadcast_arrays(np.asarray(a), np.asarray(b))
        pairs = np.stack([one, other], -1).reshape(-1, 2)
        unique, places = np.unique(pairs, axis=0, return_inverse=True)
        numbers = [
            ZERO
            if ZERO in pair
            else self._number(_sum(self.form(pair[0]), self.form(pair[1]), Fraction(sign)))
            for pair in unique.tolist()
        ]
        return np.array(numbers, int)[places.reshape(one.shape)]

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
            variable, coefficient = max(form, key=lambda each: (each[0] in self._of_entries, each))
            rest = (each for each in form if each[0] != variable)
            self._solved[variable] = tuple((v, -c / coefficient) for v, c in rest)

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
    return [(one, other) for one, other in np.unique(pairs, axis=0).tolist()]
