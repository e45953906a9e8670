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
from torch import Tensor

from polymode.core.checks import check_call
from polymode.metrics.classification import IMPOSSIBLE, brier, classes_and_labels, nll
from polymode.metrics.score import CLASSIFICATION, Score, mean_score, register
from polymode.prediction import Prediction

_MOST_GROUPS = 5  # of a predicted class
_BLOCK = 2**22  # probabilities that are turned into float64 at a time
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
    forecast: Tensor  # (N, C), as predicted
    labels: Tensor  # (N,)
    place: Tensor  # (N,) number of the group
    sizes: Tensor  # (G,)
    frequency: Tensor  # (G, C)
    overall: Tensor  # (C,)


def decompose_brier(prediction: Prediction, targets: Tensor, debias: bool = True) -> Decomposition:
    """Return the parts of the Brier score, debiased unless `debias` is False.

    The sum of the parts is `brier` exactly, with the correction or without it: what is taken from
    resolution and uncertainty comes back, up to `within`.
    """
    check_call(decompose_brier, locals())
    groups = _grouped(prediction, targets, "decompose_brier")
    reliability, resolution = _reliability(groups, _square), _resolution(groups, _square)
    uncertainty = 1.0 - groups.overall.square().sum().item()
    if debias:
        chance, of_all = _chance(groups)
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
    reliability = _reliability(groups, _kullback_leibler)
    resolution = _resolution(groups, _kullback_leibler)
    uncertainty = -torch.special.xlogy(groups.overall, groups.overall).sum().item()
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
    groups = _grouped(prediction, targets, "brier_reliability")
    return _less(_reliability(groups, _square), _chance(groups)[0])


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
    groups = _grouped(prediction, targets, "brier_resolution")
    chance, of_all = _chance(groups)
    return _less(_resolution(groups, _square), chance - of_all)


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
    return _reliability(_grouped(prediction, targets, "nll_reliability"), _kullback_leibler)


@_part_of_log(
    "nll_resolution",
    title="NLL resolution",
    direction="up",
    summary="information about the label that the groups of forecasts carry; too large by chance",
)
def nll_resolution(prediction: Prediction, targets: Tensor) -> Score:
    """Return the resolution of `decompose_log`: the mutual information of group and label."""
    check_call(nll_resolution, locals())
    return _resolution(_grouped(prediction, targets, "nll_resolution"), _kullback_leibler)


def _grouped(prediction: Prediction, targets: Tensor, metric: str) -> _Groups:
    classes, labels = classes_and_labels(prediction, targets, metric)
    place = _group_index(classes.classes, classes.confidence.detach())
    sizes = place.bincount().double()
    number = classes.num_outputs
    pairs = (place * number + labels).bincount(minlength=len(sizes) * number)
    counts = pairs.view(len(sizes), number).double()
    return _Groups(
        forecast=classes.mean.detach(),
        labels=labels,
        place=place,
        sizes=sizes,
        frequency=counts / sizes[:, None],
        overall=counts.sum(0) / len(labels),
    )


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


_Divergence = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def _square(o: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the squared distance (G,), and its slopes in both arguments (G, C)."""
    return (o - f).square().sum(1), 2 * (o - f), 2 * (f - o)


def _kullback_leibler(o: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ratio = (o.log() - f.log()).clamp(max=IMPOSSIBLE)
    ratio = ratio.where(o > 0, 0.0)
    slope = torch.where(o > 0, -o / f.clamp(min=math.exp(-700.0)), 0.0)
    return (o * ratio).sum(1), ratio, slope


def _reliability(groups: _Groups, divergence: _Divergence) -> Score:
    """Return the mean of d(o_g, f_g); `each` are linearised contributions, whose mean it is."""
    mean = torch.zeros_like(groups.frequency)
    blocks = range(0, len(groups.labels), max(1, _BLOCK // groups.frequency.shape[1]))
    parts = [slice(start, start + blocks.step) for start in blocks]
    for part in parts:
        mean.index_add_(0, groups.place[part], groups.forecast[part].double())
    mean /= groups.sizes[:, None]
    values, of_label, of_forecast = divergence(groups.frequency, mean)
    moved = [  # by the forecast of each example, about the mean of its group
        (of_forecast[groups.place[part]] * groups.forecast[part].double()).sum(1) for part in parts
    ]
    centre = (of_forecast * mean).sum(1)[groups.place]
    return _linear(groups, values, of_label, torch.cat(moved) - centre)


def _resolution(groups: _Groups, divergence: _Divergence) -> Score:
    """Return the mean of d(o_g, o), o of all labels, whose own error cancels to first order."""
    values, of_label, _ = divergence(groups.frequency, groups.overall.expand_as(groups.frequency))
    return _linear(groups, values, of_label, 0.0)


def _linear(groups: _Groups, values: Tensor, of_label: Tensor, moved: Tensor | float) -> Score:
    place = groups.place
    centre = (of_label * groups.frequency).sum(1)
    each = values[place] + of_label[place, groups.labels] - centre[place] + moved
    exact = (groups.sizes @ values / len(place)).item()
    return mean_score(each)._replace(value=exact)


def _chance(groups: _Groups) -> tuple[float, float]:
    """Return what chance adds to reliability and resolution, and what it takes from uncertainty."""
    number = len(groups.labels)
    noise = 1.0 - groups.frequency.square().sum(1)
    by_group = (groups.sizes * noise / (groups.sizes - 1).clamp(min=1)).sum().item() / number
    return by_group, (1.0 - groups.overall.square().sum().item()) / max(1, number - 1)


def _less(score: Score, amount: float) -> Score:
    assert score.each is not None
    return score._replace(value=score.value - amount, each=score.each - amount)
