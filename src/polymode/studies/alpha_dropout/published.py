"""Numbers of the paper: negative log-likelihood and RMSE on UCI regressions, mean ± standard error.

Source: Y. Li, Y. Gal, ICML 2017, tables 1 and 2 of the appendix; 20 standard splits. The HMC column
is quoted there from another paper. Numbers on MNIST are only in figures. Two cautions: naval's
−2.80 is what a constant prediction with the targets' own standard deviation scores, so it shows no
learning; and energy's 0.74 with an RMSE of 1.11 is better than any noise of one size could be.
"""

from __future__ import annotations

from typing import NamedTuple


class Value(NamedTuple):
    """A mean and its standard error, None where none is printed."""

    mean: float
    error: float | None = None


ALPHAS = (0.0, 0.5, 1.0)


def name_of(alpha: float) -> str:
    """Return the arm that has this α.

    >>> name_of(0.0), name_of(0.5)
    ('α = 0', 'α = 0.5')
    """
    return f"α = {alpha:g}"


NLL = {
    "boston": (Value(2.42, 0.05), Value(2.38, 0.06), Value(2.50, 0.10)),
    "concrete": (Value(2.98, 0.02), Value(2.88, 0.02), Value(2.96, 0.03)),
    "energy": (Value(1.75, 0.01), Value(0.74, 0.02), Value(0.81, 0.02)),
    "kin8nm": (Value(-0.83, 0.00), Value(-1.03, 0.00), Value(-1.10, 0.00)),
    "naval": (Value(-2.80, 0.00), Value(-2.80, 0.00), Value(-2.80, 0.00)),
    "power": (Value(2.79, 0.01), Value(2.78, 0.01), Value(2.76, 0.00)),
    "wine": (Value(0.92, 0.01), Value(0.92, 0.01), Value(0.95, 0.02)),
    "yacht": (Value(1.38, 0.01), Value(1.08, 0.04), Value(1.15, 0.06)),
}
"""By data set, at the three values of α."""

RMSE = {
    "boston": (Value(2.85, 0.19), Value(2.97, 0.19), Value(3.04, 0.17)),
    "concrete": (Value(4.92, 0.13), Value(4.62, 0.12), Value(4.76, 0.15)),
    "energy": (Value(1.02, 0.03), Value(1.11, 0.02), Value(1.10, 0.02)),
    "kin8nm": (Value(0.09, 0.00), Value(0.09, 0.00), Value(0.08, 0.00)),
    "naval": (Value(0.01, 0.00), Value(0.01, 0.00), Value(0.01, 0.00)),
    "power": (Value(4.04, 0.04), Value(4.01, 0.04), Value(3.98, 0.04)),
    "wine": (Value(0.61, 0.01), Value(0.62, 0.01), Value(0.63, 0.01)),
    "yacht": (Value(0.76, 0.05), Value(0.85, 0.06), Value(0.88, 0.06)),
}

HMC_NLL = {
    "boston": Value(2.27, 0.03), "concrete": Value(2.72, 0.02), "energy": Value(0.93, 0.01),
    "kin8nm": Value(-1.35, 0.00), "naval": Value(-7.31, 0.00), "power": Value(2.70, 0.00),
    "wine": Value(0.91, 0.02), "yacht": Value(1.62, 0.01),
}  # fmt: skip

HMC_RMSE = {
    "boston": Value(2.76, 0.20), "concrete": Value(4.12, 0.14), "yacht": Value(0.56, 0.05),
}  # fmt: skip
"""Of the sets on which we have chains of our own."""

TRIVIAL_NAVAL = -2.80
"""NLL of a constant Gaussian with mean and standard deviation (0.01472) of naval's targets."""

TARGETS = ("boston", "concrete", "power", "kin8nm", "wine", "yacht")
"""Data sets on which α = 0.5 is held against the paper; energy and naval have cautions, above."""
