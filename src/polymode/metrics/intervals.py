r"""Predicted distributions against observed targets: PIT, coverage, width, interval score.

With the distribution function :math:`F_n` of the mixture, everything rests on the probability
integral transform (PIT) :math:`F_n(y_n)`, which is uniform if the prediction is right. The central
interval of level L holds y exactly if :math:`|2 F_n(y_n) - 1| \le L`, so coverage needs no
quantiles; widths do, and the ends of an interval are computed once for each prediction and level.
`S` samples, `B` batch, `D` outputs, `L` levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from polymode.core.checks import Many, check_call
from polymode.metrics.regression import check_mixture, check_pair
from polymode.metrics.score import REGRESSION, Metric, Score, mean_score, register
from polymode.prediction import Prediction

CALIBRATION_LEVELS = tuple(torch.linspace(0.05, 0.95, 15, dtype=torch.float64).tolist())
"""Central levels of `quantile_calibration`."""
_BAND = 0.95  # probability that a count is within the band of the histogram
_ENDS: WeakKeyDictionary[Prediction, dict[float, tuple[Tensor, Tensor]]]
_ENDS = WeakKeyDictionary()  # intervals by level, for as long as their prediction lives


def pit(prediction: Prediction, targets: Tensor) -> Tensor:
    r"""Return :math:`F_{nd}(y_{nd})` under the mixture, (B, D) float64, in [0, 1].

    Uniform if the predictions are right: a hump means too wide, a U too narrow, a slope biased.
    Of counts it is randomised, :math:`F(y - 1) + u\,p(y)` with u uniform, the same at each call:
    coverage that rests on it is that of the level, where intervals of whole counts cover more.

    Traps: uniformity is necessary, not sufficient; predicting the distribution of all targets for
    every input has it, too. Outputs are examined one by one.

    Reference: A. P. Dawid, Statistical theory: the prequential approach, J. R. Stat. Soc. A 147
    (1984).
    """
    check_call(pit, locals())
    mixture, values = check_pair(prediction, targets, "pit")
    return mixture.double().pit(values.detach().double())


class PitHistogram(NamedTuple):
    """How often the PIT fell in each of K bins of equal width.

    Attributes:
        edges: (K + 1,) from 0 to 1; bins are closed on the left, the last on both sides.
        counts: (K, D) int64, for each output.
        expected: B / K, the expected count of each bin.
        low, high: a count is between them, inclusive, with a probability of at least 95 % if the
            predictions are right and the examples independent; so one bin in 20 may be outside.
    """

    edges: Tensor
    counts: Tensor
    expected: float
    low: int
    high: int


def pit_histogram(prediction: Prediction, targets: Tensor, num_bins: Many = 10) -> PitHistogram:
    """Return the histogram of `pit`, with the binomial band that a right prediction keeps to.

    Args:
        prediction, targets: in units of y.
        num_bins: at least 1; with fewer than about 10 examples per bin it shows little.
    """
    check_call(pit_histogram, locals())
    if not isinstance(num_bins, int) or num_bins < 1:
        raise ValueError(
            f"`num_bins` of pit_histogram must be an integer of at least 1, got {num_bins!r}"
        )
    values = pit(prediction, targets)
    batch, outputs = values.shape
    bins = (values * num_bins).long().clamp(max=num_bins - 1)
    flat = (bins * outputs + torch.arange(outputs, device=bins.device)).flatten()
    counts = flat.bincount(minlength=num_bins * outputs).view(num_bins, outputs)
    edges = torch.linspace(0.0, 1.0, num_bins + 1, dtype=torch.float64, device=values.device)
    low, high = (_binomial_quantile(q, batch, 1.0 / num_bins) for q in _tails(_BAND))
    return PitHistogram(edges, counts, batch / num_bins, low, high)


def coverage(prediction: Prediction, targets: Tensor, level: float) -> Score:
    r"""Return the share of targets inside the central interval of probability `level`.

    .. math:: \frac{1}{BD}\sum_{nd} 1[\,|2 F_{nd}(y_{nd}) - 1| \le level\,]

    In [0, 1]; nearest to `level` is best, below it the prediction is overconfident. `each` is the
    share of the outputs. Also called PICP.

    Traps: neither up nor down is better; a share over all inputs may be right on average and wrong
    everywhere, and intervals of any width may cover (compare it with the width). The standard
    error is 0 if all or none are inside, which does not mean certainty.

    Args:
        prediction, targets: in units of y.
        level: in (0, 1).
    """
    check_call(coverage, locals())
    _check_level(level)
    return mean_score(_centrality(prediction, targets).le(level).double().mean(1))


def width(prediction: Prediction, level: float) -> Score:
    r"""Return the mean width of the central interval of probability `level`.

    .. math:: \frac{1}{BD}\sum_{nd} F_{nd}^{-1}(\tfrac{1 + level}2)
              - F_{nd}^{-1}(\tfrac{1 - level}2)

    In units of y, above 0; quantiles of the mixture. `each` is the mean over outputs. Also called
    MPIW.

    Traps: narrower is better only at equal coverage. The interval is one piece even where the
    mixture has two humps, and then contains the gap between them.

    Reference: T. Gneiting, F. Balabdaoui, A. E. Raftery, Probabilistic forecasts, calibration and
    sharpness, J. R. Stat. Soc. B 69 (2007).
    """
    check_call(width, locals())
    lower, upper = _ends(check_mixture(prediction, "width"), level)
    return mean_score((upper - lower).mean(1))


def winkler(prediction: Prediction, targets: Tensor, level: float) -> Score:
    r"""Return the mean interval score of the central interval [l, u] of probability `level`.

    .. math:: (u - l) + \tfrac{2}{\alpha}(l - y)_+ + \tfrac{2}{\alpha}(y - u)_+,
              \qquad \alpha = 1 - level

    In units of y, never below the width; `each` is the mean over outputs. Proper for the two
    quantiles: its expectation is smallest for the true ones, so it decides between coverage and
    width.

    Traps: a miss at 95 % costs 40 times its distance, so a few examples dominate it; scores of
    different levels cannot be compared.

    Args:
        prediction, targets: in units of y.
        level: in (0, 1).

    Reference: R. L. Winkler, A decision-theoretic approach to interval estimation, JASA 67 (1972);
    T. Gneiting, A. E. Raftery, Strictly proper scoring rules, prediction, and estimation, JASA 102
    (2007), equation 43.
    """
    check_call(winkler, locals())
    mixture, values = check_pair(prediction, targets, "winkler")
    lower, upper = _ends(mixture, level)
    y = values.double()
    missed = (lower - y).clamp(min=0.0) + (y - upper).clamp(min=0.0)
    return mean_score((upper - lower + 2.0 / (1.0 - level) * missed).mean(1))


def pinball(prediction: Prediction, targets: Tensor, q: float | Sequence[float]) -> Score:
    r"""Return the mean pinball loss :math:`(q - 1[y < \hat y_q])(y - \hat y_q)` of quantiles.

    In units of y, from 0. Proper for the quantile: its expectation is smallest for the true one.
    Averaged over the outputs, and over the levels if there are several. Twice the mean over all
    levels in (0, 1) is the CRPS.

    Traps: losses of different levels cannot be compared; those of outer ones are small.

    Args:
        prediction, targets: in units of y.
        q: one level or several, in (0, 1).

    Reference: R. Koenker, G. Bassett, Regression quantiles, Econometrica 46 (1978).
    """
    check_call(pinball, locals(), but=("q",))
    mixture, values = check_pair(prediction, targets, "pinball")
    levels = torch.as_tensor(q, dtype=torch.float64, device=values.device).reshape(-1)
    gaps = values.double() - mixture.quantile(levels).double()
    losses = torch.maximum(levels.view(-1, 1, 1) * gaps, (levels.view(-1, 1, 1) - 1.0) * gaps)
    return mean_score(losses.mean((0, 2)))


def quantile_coverage(
    prediction: Prediction, targets: Tensor, levels: Sequence[float] | Tensor
) -> Tensor:
    """Return the share of targets inside the central interval of each level, (L,) float64.

    The curve behind `quantile_calibration`; the diagonal is ideal. Outputs are pooled.

    Args:
        prediction, targets: in units of y.
        levels: (L,) probabilities in (0, 1).
    """
    check_call(quantile_coverage, locals(), but=("levels",))
    nominal = torch.as_tensor(levels, dtype=torch.float64)
    if nominal.dim() != 1 or nominal.numel() == 0 or not ((nominal > 0) & (nominal < 1)).all():
        raise ValueError(f"`levels` must be a list of numbers in (0, 1), got {levels}")
    inside = _centrality(prediction, targets).flatten().sort().values
    counts = torch.searchsorted(inside, nominal.to(inside.device), right=True)
    return counts.double() / len(inside)


def quantile_calibration(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return :math:`\frac1{15}\sum_L |\hat c(L) - L|`, with the coverage :math:`\hat c(L)`.

    A probability, in [0, 1/2]. Central levels from 0.05 to 0.95 in equal steps, outputs pooled: the
    QCE of TorchUncertainty. The standard error is of first order, with the signs of the gaps held
    fixed: right for gaps well above it, too large for a calibrated prediction.

    Traps: above 0 by chance, about :math:`0.3/\sqrt{BD}` for a calibrated prediction; gaps of
    opposite sign in different regions or outputs cancel; central intervals hide a bias for which
    wide intervals compensate (see `pit_histogram`); not a proper score. Kuleshov's error squares
    the gaps of one-sided quantiles: a different number.

    Reference: V. Kuleshov, N. Fenner, S. Ermon, Accurate uncertainties for deep learning using
    calibrated regression, ICML 2018.
    """
    check_call(quantile_calibration, locals())
    gaps = quantile_coverage(prediction, targets, CALIBRATION_LEVELS)
    levels = torch.tensor(CALIBRATION_LEVELS, dtype=torch.float64, device=gaps.device)
    signs = (gaps - levels).sign()
    above = torch.cat([signs.flip(0).cumsum(0).flip(0), signs.new_zeros(1)])  # sums from a level on
    first = torch.searchsorted(levels, _centrality(prediction, targets))  # smallest that covers
    contributions = (above[first] - (signs * levels).sum()) / len(levels)
    return mean_score(contributions.mean(1))._replace(each=None)


def _register() -> None:
    """Register coverage, width and interval score at fixed levels, and the calibration error."""
    enter = partial(register, REGRESSION, family="intervals")
    for percent in (50, 90, 95):
        enter(
            f"coverage_{percent}",
            title=f"coverage, {percent} %",
            unit="fraction",
            direction="",
            headline=percent == 90,
            summary=f"share of targets inside the central {percent} % interval; {percent / 100:g}"
            " is right",
        )(_at(coverage, percent / 100))
    for percent in (50, 90, 95):
        enter(
            f"width_{percent}",
            title=f"width, {percent} %",
            unit="units of y",
            direction="",
            targets=False,
            summary=f"mean width of the central {percent} % interval; describes, does not score",
        )(_at(lambda prediction, _, level: width(prediction, level), percent / 100))
    for percent in (90, 95):
        enter(
            f"winkler_{percent}",
            title=f"Winkler, {percent} %",
            unit="units of y",
            direction="down",
            summary=f"width of the central {percent} % interval, plus {200 / (100 - percent):g}"
            " times the distance of the targets outside",
        )(_at(winkler, percent / 100))
    enter(
        "quantile_calibration",
        title="quantile calibration error",
        unit="probability",
        direction="down",
        summary="mean gap between the level of a central interval and its coverage, over 15 levels"
        " from 5 to 95 %",
    )(quantile_calibration)


def _at(score: Callable[[Prediction, Any, float], Score], level: float) -> Metric:
    """Return the metric at one level."""

    def metric(prediction: Prediction, targets: Tensor | None = None) -> Score:
        return score(prediction, targets, level)

    return metric


def _centrality(prediction: Prediction, targets: Tensor) -> Tensor:
    """Return the level of the smallest central interval that contains each target, (B, D)."""
    return pit(prediction, targets).mul_(2.0).sub_(1.0).abs_()


def _ends(mixture: Prediction, level: float) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval, (B, D) float64, computed once per prediction."""
    _check_level(level)
    by_level = _ENDS.setdefault(mixture, {})
    if level not in by_level:
        lower, upper = mixture.interval(level)
        by_level[level] = lower.double(), upper.double()
    return by_level[level]


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"`level` of an interval must be in (0, 1), got {level}")


def _tails(level: float) -> tuple[float, float]:
    return 0.5 * (1.0 - level), 0.5 * (1.0 + level)


def _binomial_quantile(q: float, count: int, prob: float) -> int:
    """Return the smallest k with P(X <= k) >= q for X ~ Binomial(count, prob)."""
    from scipy.special import bdtr

    mean, spread = count * prob, 10.0 * math.sqrt(count * prob * (1.0 - prob)) + 10.0
    start, end = max(0, int(mean - spread)), min(count, int(mean + spread))
    below = torch.as_tensor(bdtr(range(start, end + 1), count, prob))
    return start + int(torch.searchsorted(below, q))


_register()
