r"""What more members are worth: a metric against their number.

The curve of an ensemble of n members is the mean of a metric over subsets of k of them. From it,
another method's value can be read as a number of independently trained networks. Members are modes,
with all their samples, since modes are trained independently; or single samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.registry import Entry
from polymode.core.rng import generator
from polymode.metrics.score import CLASSIFICATION, REGRESSION, Metric
from polymode.prediction import CategoricalPrediction, Prediction

ALL_SIZES = 16  # up to that many members every size is used, above it as many in even ratios


class SizeCurve(NamedTuple):
    """A metric against the number of members.

    Attributes:
        metric: its name. direction: "up" or "down" is better, "" if it does not score.
        sizes: numbers of members, increasing.
        mean: of the metric over subsets, one for each size.
        standard_error: of that mean as an estimate over all subsets of these members; 0 where all
            were used, as always at the largest size.
        num_subsets: number of subsets at each size.
    """

    metric: str
    direction: str
    sizes: tuple[int, ...]
    mean: tuple[float, ...]
    standard_error: tuple[float, ...]
    num_subsets: tuple[int, ...]


def ensemble_size_curve(
    prediction: Prediction,
    targets: Tensor | None,
    metric: str = "nll",
    sizes: Sequence[int] | None = None,
    num_subsets: int = 20,
    seed: int = 0,
    members: str = "modes",
) -> SizeCurve:
    r"""Return the mean of a metric over subsets of k of the n members, for several k.

    .. math:: \bar m(k) = \frac1a \sum_{A: |A| = k} m(A), \quad
              se(k) = \sqrt{\frac{s^2}{a} \Big(1 - \frac{a}{N}\Big)}, \quad N = \binom{n}{k}

    over a distinct subsets A, whose members are drawn without replacement: all N of them if N is at
    most `num_subsets`, else that many at random. s has ddof 1.

    Args:
        prediction: of M modes. targets: labels or values, or None for a metric without.
        metric: a name from the table of classification or of regression metrics.
        sizes: from 1 to n; by default all up to 16 members, above 16 sizes in even ratios.
        num_subsets: at least 2; the cost grows with it. seed: of the draws.
        members: "modes", each with all its samples; or "samples", whichever mode they are of, to
            see how many of them are worth their cost.

    Traps: subsets share members, the more the nearer k is to S, so `standard_error` does not tell
    how the curve would move with other networks; for that, train more. Infinite where the metric
    is infinite on one subset.
    """
    check_call(ensemble_size_curve, locals())
    if members not in ("modes", "samples"):
        raise ValueError(f"`members` must be 'modes' or 'samples', got {members!r}")
    if members == "samples":
        tensors, facts = prediction.to_arrays()
        facts = {**facts, "num_modes": prediction.num_samples}
        prediction = Prediction.from_arrays(tensors, facts)
    entry = _entry(prediction, metric)
    number = prediction.num_modes
    if not isinstance(num_subsets, int) or num_subsets < 2:
        raise ValueError(f"`num_subsets` must be an integer of at least 2, got {num_subsets!r}")
    chosen = _sizes(sizes, number, _least(prediction, entry), entry.name)
    means, errors, counts = [], [], []
    for size in chosen:
        values = []
        for subset in subsets(number, size, num_subsets, seed):
            score = entry.value(prediction.take_modes(subset), targets)  # type: ignore[arg-type]
            values.append(score.value)
        mean, error = mean_over_subsets(values, math.comb(number, size))
        means.append(mean)
        errors.append(error)
        counts.append(len(values))
    direction = entry.metadata["direction"]
    return SizeCurve(metric, direction, chosen, tuple(means), tuple(errors), tuple(counts))


def deep_ensemble_equivalent(curve: SizeCurve, value: float) -> float:
    r"""Return how many independently trained networks are as good as `value`.

    .. math:: \min \{ l \ge l_1 : \bar m_{DE}(l) \text{ is as good as value} \}

    with the curve of a deep ensemble, linear between its sizes. The least l is taken, so a curve
    that is not quite monotone does no harm. The result is at least the first size l₁, also for a
    method worse than one network, and `inf` if the value is better than the whole curve: then
    `curve.sizes[-1]` is a lower bound.

    Args:
        curve: of a deep ensemble, from `ensemble_size_curve`, of a metric that scores.
        value: the method's value of the same metric on the same data.

    Traps: the authors use the calibrated log-likelihood ("calibrated_nll" here), since an
    uncalibrated one compares temperatures. The curve is convex, so wide gaps between sizes make the
    number too large; and it is flat for many networks, where small differences are many networks.

    Reference: A. Ashukha, A. Lyzhov, D. Molchanov, D. Vetrov, Pitfalls of in-domain uncertainty
    estimation and ensembling in deep learning, ICLR 2020.

    >>> curve = SizeCurve("nll", "down", (1, 2, 4), (0.5, 0.3, 0.2), (0.0,) * 3, (4, 6, 1))
    >>> [deep_ensemble_equivalent(curve, value) for value in (0.6, 0.4, 0.3, 0.25, 0.1)]
    [1.0, 1.5, 2.0, 3.0, inf]
    """
    check_call(deep_ensemble_equivalent, locals())
    if curve.direction not in ("up", "down"):
        raise ValueError(f"`{curve.metric}` does not score, so no number of networks equals it")
    if math.isnan(value):
        raise ValueError("`value` must be a number, got nan")
    sign = 1.0 if curve.direction == "up" else -1.0
    goal, means = sign * value, [sign * mean for mean in curve.mean]
    if means[0] >= goal:
        return float(curve.sizes[0])
    for k in range(1, len(means)):
        if means[k] >= goal:
            gain = means[k] - means[k - 1]
            share = (goal - means[k - 1]) / gain if math.isfinite(gain) else 1.0
            return curve.sizes[k - 1] + share * (curve.sizes[k] - curve.sizes[k - 1])
    return math.inf


def _entry(prediction: Prediction, metric: str) -> Entry[Metric]:
    table = CLASSIFICATION if isinstance(prediction, CategoricalPrediction) else REGRESSION
    entry = table.get(metric)
    if entry.metadata["epistemic"] and not prediction.has_epistemic:
        raise ValueError(f"`{metric}` needs at least 2 samples, got 1")
    return entry


def _least(prediction: Prediction, entry: Entry[Metric]) -> int:
    """Return the smallest number of modes for which the metric is defined."""
    alone = prediction.take_modes([0])
    return 2 if entry.metadata["epistemic"] and not alone.has_epistemic else 1


def _sizes(sizes: Sequence[int] | None, most: int, least: int, metric: str) -> tuple[int, ...]:
    """Return the distinct sizes in increasing order."""
    if sizes is None:
        if most - least < ALL_SIZES:
            return tuple(range(least, most + 1))
        steps = torch.logspace(math.log10(least), math.log10(most), ALL_SIZES)
        return tuple(sorted({round(step) for step in steps.tolist()}))
    for size in sizes:
        if not isinstance(size, int) or not least <= size <= most:
            raise ValueError(
                f"`sizes` for `{metric}` of {most} members must be integers from {least} to"
                f" {most}, got {size!r}"
            )
    if len(sizes) == 0:
        raise ValueError("`sizes` is empty: give at least one number of members")
    return tuple(sorted(set(sizes)))


def subsets(number: int, size: int, most: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Yield distinct subsets of 0..number-1: all of them, or `most` at random."""
    if math.comb(number, size) <= most:
        yield from combinations(range(number), size)
        return
    stream = generator(seed, "subsets", size)
    drawn_before: set[tuple[int, ...]] = set()
    while len(drawn_before) < most:
        drawn = torch.randperm(number, generator=stream)[:size]
        subset = tuple(sorted(drawn.tolist()))
        if subset not in drawn_before:
            drawn_before.add(subset)
            yield subset


def mean_over_subsets(values: list[float], population: int) -> tuple[float, float]:
    """Return the mean of values drawn without replacement from `population`, and its error."""
    numbers, n = torch.tensor(values, dtype=torch.float64), len(values)
    if n == population:
        return numbers.mean().item(), 0.0
    error = math.sqrt((1.0 - n / population) / n) * numbers.std(correction=1).item()
    return numbers.mean().item(), error if math.isfinite(error) else math.inf
