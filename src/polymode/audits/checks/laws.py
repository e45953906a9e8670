"""Laws of counts behind the checks; all are exact where counts are small.

Sums of independent draws with probabilities of their own (Poisson-binomial), signs of pairs that
disagree (McNemar), and places of a value in two sets that are drawn alike (hypergeometric).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom, hypergeom, norm

EXACT = 2000.0  # variance of a count up to which its law is exact


def sum_law(rates: np.ndarray) -> np.ndarray:
    """Return the law of a sum of independent draws of probabilities `rates`: P(0), P(1), …

    It ends 12 standard deviations above the mean, or at the largest possible sum.

    >>> sum_law(np.array([0.5, 0.5])).tolist()
    [0.25, 0.5, 0.25]
    """
    rates = np.sort(np.clip(rates, 0.0, 1.0))[::-1]
    mean, variance = float(rates.sum()), float((rates * (1 - rates)).sum())
    law = np.zeros(min(len(rates), int(mean + 12 * math.sqrt(variance)) + 20) + 1)
    law[0] = 1.0
    for rate in rates:
        law[1:] = law[1:] * (1 - rate) + law[:-1] * rate
        law[0] *= 1 - rate
    return law


def excess_test(rates: np.ndarray, count: int) -> float:
    """Return P(sum ≥ count) for independent draws of probabilities `rates`.

    >>> excess_test(np.array([0.5, 0.5]), 2)
    0.25
    """
    rates = np.clip(rates, 0.0, 1.0)
    variance = float((rates * (1 - rates)).sum())
    if variance > EXACT:
        return float(norm.sf((count - 0.5 - float(rates.sum())) / math.sqrt(variance)))
    return min(1.0, float(sum_law(rates)[count:].sum()))


def excess_bound(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the logarithm of a Chernoff bound of P(sum ≥ count), given the sum's expectation.

    log P ≤ count − total − count · log(count / total) above the expectation, 0 below it.
    """
    total = np.maximum(total, 1e-300)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = count - total - count * np.log(count / total)
    return np.where(count > total, bound, 0.0)


def loss_test(losses: int, gains: int) -> float:
    """Return the p-value of "no more losses than gains" (McNemar, exact, one-sided).

    Of `losses + gains` pairs that disagree, each is a loss with probability ½.

    >>> loss_test(3, 0), loss_test(0, 3)
    (0.125, 1.0)
    """
    return float(binom.sf(losses - 1, losses + gains, 0.5))


def absence_test(count: int, here: int, there: int) -> float:
    """Return the probability that all of `count` examples of both sets are in this one.

    Under it, the examples of two sets of sizes `here` and `there` were divided at random.

    >>> absence_test(2, 2, 2) == 1 / 6
    True
    """
    return float(hypergeom.pmf(count, here + there, count, here))
