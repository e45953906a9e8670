r"""Paired comparison of two methods over the seeds that they share.

With differences :math:`d_1 \dots d_n` of the seeds, mean :math:`\bar d` and standard error
:math:`s/\sqrt n` (ddof 1), the statistic :math:`t = \bar d \sqrt n / s` has a Student distribution
with n − 1 degrees of freedom if the differences are normal around zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95


class Difference(NamedTuple):
    """Mean difference over `n` shared seeds, its 95 % t-interval and two-sided p-value."""

    mean: float
    standard_error: float | None
    n: int
    low: float | None
    high: float | None
    p_value: float | None = None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero; False while there is no interval."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


def paired(gaps: Sequence[float]) -> Difference | None:
    """Return the mean of the differences per seed with its t-test; None without any.

    Traps: two or three seeds give wide intervals, as they should; differences that are all equal
    give an interval of length 0, and a p-value of 0 or 1.

    >>> gap = paired([0.2, 0.1, 0.3])
    >>> round(gap.mean, 3), round(gap.p_value, 4)
    (0.2, 0.0742)
    """
    if not gaps:
        return None
    mean, error = mean_and_error(gaps)
    n = len(gaps)
    if error is None:
        return Difference(mean, None, n, None, None)
    from scipy.special import stdtr, stdtrit

    reach = float(stdtrit(n - 1, 0.5 + LEVEL / 2)) * error
    if error > 0:
        p_value = 2 * float(stdtr(n - 1, -abs(mean) / error))
    else:
        p_value = float(mean == 0)
    return Difference(mean, error, n, mean - reach, mean + reach, p_value)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error with ddof 1, None for one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1) / len(values))


def not_rejected(p_values: Mapping[str, float], level: float = LEVEL) -> set[str]:
    """Return the names whose hypothesis is not rejected after Holm's step-down correction.

    Sorted p-values are compared with :math:`(1 - level)/m, (1 - level)/(m - 1), \\dots`; from the
    first larger one on, none is rejected. The probability of any false rejection is at most
    1 − level, however many hypotheses there are.

    Reference: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian
    Journal of Statistics 6 (1979).

    >>> sorted(not_rejected({"a": 0.001, "b": 0.03, "c": 0.04}))
    ['b', 'c']
    """
    ranked = sorted(p_values, key=lambda name: p_values[name])
    for place, name in enumerate(ranked):
        if p_values[name] > (1 - level) / (len(ranked) - place):
            return set(ranked[place:])
    return set()
