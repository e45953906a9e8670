r"""Proper scores taken apart: uncertainty of the labels - resolution + reliability.

Examples are put into groups g of like forecasts. With the mean forecast :math:`\bar f_g`, the class
frequencies :math:`o_g` and those of all examples :math:`\bar o`, the score of the forecasts
:math:`\bar f_g` is

.. math:: \underbrace{e(\bar o)}_{uncertainty}
          - \underbrace{\sum_g \frac{n_g}{N} d(o_g, \bar o)}_{resolution}
          + \underbrace{\sum_g \frac{n_g}{N} d(o_g, \bar f_g)}_{reliability},

with :math:`e(o) = 1 - \sum_k o_k^2`, :math:`d(o, f) = \sum_k (o_k - f_k)^2` for the Brier score and
the entropy and the Kullback-Leibler divergence for the log score. What the score of the forecasts
themselves has beyond that is `within`: forecasts of a group differ. Groups have the same top class,
and confidences next to each other: 1 to 5 groups of equally many examples per class, at least 20
each where a class has that many.

Frequencies of few examples differ from the forecast by chance alone, which makes reliability and
resolution too large by the same amount, on average; for the Brier score that is known,
:math:`\sum_g \frac{n_g}{N} \frac{1 - \sum_k o_{gk}^2}{n_g - 1}`, and subtracted. For the log score
no unbiased correction exists. `N` examples, `C` classes, `G` groups.

Reference: A. H. Murphy, A new vector partition of the probability score, J. Appl. Meteorol. 12
(1973); J. Bröcker, Reliability, sufficiency, and the decomposition of proper scores, Q. J. R.
Meteorol. Soc. 135 (2009); C. A. T. Ferro, T. E. Fricker, A bias-corrected decomposition of the
Brier score, Q. J. R. Meteorol. Soc. 138 (2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import check_call
from polymode.metrics.classification import IMPOSSIBLE, brier, classes_and_labels, nll
from polymode.metrics.score import CLASSIFICATION, Score, mean_score, register
from polymode.prediction import Prediction

_MOST_GROUPS = 5  # of a predicted class
_LEAST_EXAMPLES = 20  # of a group, where its class has so many

_part_of_brier = partial(register, CLASSIFICATION, unit="probability²", family="quality")
_part_of_log = partial(register, CLASSIFICATION, unit="nats/example", family="quality")


class Decomposition(NamedTuple):
    """A score's parts: score = uncertainty - resolution + reliability + within.

    Attributes:
        reliability, resolution: scores with standard errors, over fixed groups.
        uncertainty: of the labels, the same for all forecasts.
        within: what differences within groups add; may be negative.
    """

    reliability: Score
    resolution: Score
    uncertainty: float
    within: float


class _Groups(NamedTuple):
    forecast: Tensor  # (N, C)
    labels: Tensor  # (N,)
    place: Tensor  # (N,) number of the group
    sizes: Tensor  # (G,)
    mean: Tensor  # (G, C) mean forecast
    frequency: Tensor  # (G, C)


def decompose_brier(prediction: Prediction, targets: Tensor, debias: bool = True) -> Decomposition:
    """Return the parts of the Brier score, debiased unless `debias` is False.

    The sum of the parts is `brier` exactly, with the correction or without it: what is taken from
    resolution and uncertainty comes back, up to `within`.
    """
    check_call(decompose_brier, locals())
    groups = _grouped(prediction, targets, "decompose_brier")
    overall = _overall(groups)
    reliability = _mean_divergence(groups, groups.mean, _square, True)
    resolution = _mean_divergence(groups, overall.expand_as(groups.mean), _square, False)
    uncertainty = 1.0 - overall.square().sum().item()
    if debias:
        number = len(groups.labels)
        noise = 1.0 - groups.frequency.square().sum(1)
        chance = (groups.sizes * noise / (groups.sizes - 1).clamp(min=1)).sum().item() / number
        of_all = uncertainty / max(1, number - 1)
        reliability = _less(reliability, chance)
        resolution = _less(resolution, chance - of_all)
        uncertainty += of_all
    total = uncertainty - resolution.value + reliability.value
    return Decomposition(
        reliability, resolution, uncertainty, brier(prediction, targets).value - total
    )


def decompose_log(prediction: Prediction, targets: Tensor) -> Decomposition:
    """Return the parts of the log score in nats; by chance alone both are too large.

    A class to which a group gives probability 0 counts as in `nll`.
    """
    check_call(decompose_log, locals())
    groups = _grouped(prediction, targets, "decompose_log")
    overall = _overall(groups)
    reliability = _mean_divergence(groups, groups.mean, _kullback_leibler, True)
    resolution = _mean_divergence(groups, overall.expand_as(groups.mean), _kullback_leibler, False)
    uncertainty = -torch.special.xlogy(overall, overall).sum().item()
    total = uncertainty - resolution.value + reliability.value
    return Decomposition(
        reliability, resolution, uncertainty, nll(prediction, targets).value - total
    )


@_part_of_brier(
    "brier_reliability",
    title="Brier reliability",
    direction="down",
    summary="part of the Brier score that better calibrated probabilities would save, less what"
    " chance alone gives",
)
def brier_reliability(prediction: Prediction, targets: Tensor) -> Score:
    """Return the reliability of `decompose_brier`; it may be negative, by as much as chance.

    Traps: calibration of the whole vector of probabilities, in coarse groups: more than the ECE
    sees, and less than all. The standard error holds the groups fixed.
    """
    check_call(brier_reliability, locals())
    return decompose_brier(prediction, targets).reliability


@_part_of_brier(
    "brier_resolution",
    title="Brier resolution",
    direction="up",
    summary="part of the labels' uncertainty that the groups of forecasts resolve, less what chance"
    " alone gives",
)
def brier_resolution(prediction: Prediction, targets: Tensor) -> Score:
    """Return the resolution of `decompose_brier`, at most the uncertainty of the labels."""
    check_call(brier_resolution, locals())
    return decompose_brier(prediction, targets).resolution


@_part_of_log(
    "nll_reliability",
    title="NLL reliability",
    direction="down",
    summary="part of the NLL that better calibrated probabilities would save; too large by chance",
)
def nll_reliability(prediction: Prediction, targets: Tensor) -> Score:
    """Return the reliability of `decompose_log`, nats >= 0.

    Trap: biased upwards, by about (C - 1) / 2 nats per group and 1/N of it: compare equal N.
    """
    check_call(nll_reliability, locals())
    return decompose_log(prediction, targets).reliability


@_part_of_log(
    "nll_resolution",
    title="NLL resolution",
    direction="up",
    summary="information about the label that the groups of forecasts carry; too large by chance",
)
def nll_resolution(prediction: Prediction, targets: Tensor) -> Score:
    """Return the resolution of `decompose_log`: the mutual information of group and label."""
    check_call(nll_resolution, locals())
    return decompose_log(prediction, targets).resolution


def _grouped(prediction: Prediction, targets: Tensor, metric: str) -> _Groups:
    classes, labels = classes_and_labels(prediction, targets, metric)
    forecast = classes.mean.detach().double()
    index = _group_index(classes.classes, classes.confidence.detach())
    sizes = index.bincount().double()
    shape = (len(sizes), forecast.shape[1])

    def mean(rows: Tensor) -> Tensor:
        return forecast.new_zeros(shape).index_add_(0, index, rows) / sizes[:, None]

    one_hot = F.one_hot(labels, shape[1]).double()
    return _Groups(forecast, labels, index, sizes, mean(forecast), mean(one_hot))


def _group_index(top: Tensor, confidence: Tensor) -> Tensor:
    """Return the number of each example's group (N,); equal confidences share one."""
    by_class = top.bincount()
    per_class = (by_class // _LEAST_EXAMPLES).clamp(1, _MOST_GROUPS)
    order = confidence.argsort(stable=True)
    order = order[top[order].argsort(stable=True)]
    start = by_class.cumsum(0) - by_class
    rank = torch.empty_like(top)
    rank[order] = torch.arange(len(top), device=top.device) - start[top[order]]
    first = torch.ones_like(order, dtype=torch.bool)
    if len(order) > 1:
        first[1:] = (top[order].diff() != 0) | (confidence[order].diff() != 0)
    leader = torch.where(first, torch.arange(len(order), device=top.device), 0).cummax(0).values
    rank[order] = rank[order[leader]]  # so that equal forecasts are not torn apart
    number = rank * per_class[top] // by_class[top]
    return (top * _MOST_GROUPS + number).unique(return_inverse=True)[1]


def _overall(groups: _Groups) -> Tensor:
    return (groups.sizes @ groups.frequency) / groups.sizes.sum()


_Divergence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def _square(o: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the squared distance (G,), and its slopes in both arguments (G, C)."""
    return (o - f).square().sum(1), 2 * (o - f), 2 * (f - o)


def _kullback_leibler(o: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ratio = (o.log() - f.log()).clamp(max=IMPOSSIBLE)
    ratio = ratio.where(o > 0, 0.0)
    slope = torch.where(o > 0, -o / f.clamp(min=math.exp(-700.0)), 0.0)
    return (o * ratio).sum(1), ratio, slope


def _mean_divergence(
    groups: _Groups, reference: Tensor, divergence: _Divergence, moving: bool
) -> Score:
    """Return the mean of d(o_g, f_g); `each` are linearised contributions, whose mean it is.

    Args:
        moving: whether the reference is the mean forecast of each group; otherwise it is that of
            all labels, whose own error cancels to first order.
    """
    values, of_label, of_forecast = divergence(groups.frequency, reference)
    index = groups.place
    centred = of_label - (of_label * groups.frequency).sum(1, keepdim=True)
    each = values[index] + centred[index].gather(1, groups.labels[:, None])[:, 0]
    if moving:
        each = each + (of_forecast[index] * (groups.forecast - groups.mean[index])).sum(1)
    score = mean_score(each)
    exact = (groups.sizes @ values / groups.sizes.sum()).item()
    return score._replace(value=exact)


def _less(score: Score, amount: float) -> Score:
    assert score.each is not None
    return score._replace(value=score.value - amount, each=score.each - amount)
