r"""Standard errors over examples where these have several observations each.

Pixels of a picture are not independent: ten thousand of them say less than ten thousand pictures.
With contributions :math:`e_{gi}` of the observations i of example g, n observations of G examples
in all, and their mean :math:`m`,

.. math:: \mathrm{s.e.}^2 = \frac{G}{G - 1} \frac1{n^2} \sum_g \Big(\sum_i (e_{gi} - m)\Big)^2,

to first order in 1/G the error of a ratio of two sums over examples: of contributions, and of their
numbers. With one observation each it is the usual one.

Reference: W. G. Cochran, Sampling techniques, 3rd ed., Wiley 1977, section 9A (clusters of unequal
size).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.metrics.paired import LEVEL, Difference
from polymode.metrics.score import Score


def clustered(score: Score, examples: Tensor) -> Score:
    """Return the score with its standard error over examples instead of observations.

    None where it is not known: for a single example, and for metrics that are no mean of
    contributions, whose errors count observations as if they were independent.

    Args:
        score: of n observations.
        examples: (n,) number of the example that each belongs to.
    """
    if score.each is None:
        return score._replace(standard_error=None)
    return score._replace(standard_error=_error(score.each, examples))


def paired_by_example(first: Score, second: Score, examples: Tensor) -> Difference:
    """Return the mean difference of two scores of the same observations, with its interval.

    Differences are taken observation by observation, errors over examples: a t-interval with G − 1
    degrees of freedom.

    Args:
        first, second: means of contributions to the same observations in the same order.
        examples: (n,) number of the example that each belongs to.
    """
    if first.each is None or second.each is None or len(first.each) != len(second.each):
        raise ValueError(
            "only scores that are means over the same observations can be paired, got"
            f" {first} and {second}"
        )
    from scipy.special import stdtr, stdtrit

    gaps = first.each.detach().double() - second.each.detach().double()
    mean, number = gaps.mean().item(), len(examples.unique())
    error = _error(gaps, examples)
    if error is None:
        return Difference(mean, None, number, None, None)
    reach = float(stdtrit(number - 1, 0.5 + LEVEL / 2)) * error
    p_value = 2 * float(stdtr(number - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Difference(mean, error, number, mean - reach, mean + reach, p_value)


def _error(contributions: Tensor, examples: Tensor) -> float | None:
    """Return the standard error of a mean of contributions (n,) over clusters."""
    values = contributions.detach().double()
    _, places = examples.to(values.device).unique(return_inverse=True)
    number = int(places.max()) + 1
    if number < 2 or not torch.isfinite(values).all():
        return None
    sums = values.new_zeros(number).index_add_(0, places, values - values.mean())
    return math.sqrt(number / (number - 1) * sums.square().sum().item()) / len(values)
