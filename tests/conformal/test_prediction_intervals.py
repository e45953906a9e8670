"""Conformal intervals: coverage in simulation with its exact law, definitions, limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from polymode.conformal import conformal_intervals, coverage
from polymode.prediction import CategoricalPrediction, MixturePrediction

DRAWS, N, K = 1000, 20, 19


def draw(n: int, generator: torch.Generator, outputs: int = 1):
    """Mixtures N(m -+ w, (2 w)^2) of values N(m, w^2): far too wide; w uniform on (0.5, 1.5)."""
    options = {"generator": generator, "dtype": torch.float64}
    centre, width = torch.randn(n, outputs, **options), 0.5 + torch.rand(n, outputs, **options)
    loc = torch.stack([centre - width, centre + width])
    values = centre + width * torch.randn(n, outputs, **options)
    return MixturePrediction(loc, (2 * width).expand_as(loc)), values


def split_coverage(quantile: float) -> float:
    """P(|w z| <= q), the mean over w."""
    widths = 0.5 + (np.arange(2000) + 0.5) / 2000
    return float(np.mean(2 * stats.norm.cdf(quantile / widths) - 1))


def scaled_coverage(quantile: float) -> float:
    """P(|w z| <= q sqrt(5) w), the mixture's std being sqrt(5) w."""
    return 2 * stats.norm.cdf(quantile * math.sqrt(5)) - 1


@pytest.mark.parametrize(
    ("method", "exact"), [("split", split_coverage), ("scaled", scaled_coverage)]
)
def test_coverage_of_90_percent_with_20_examples(method, exact) -> None:
    """Mean over 1,000 draws of the exact coverage given the calibration: >= 0.90, about 19/21.

    Its law is Beta(19, 2). False alarms: 8e-3 for the bound, 6e-5 for the mean, 1e-3 for the law.
    """
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(DRAWS):
        prediction, values = draw(N, generator)
        rule = conformal_intervals(prediction, values, 0.9, method)
        found.append(exact(rule.quantile[0]))
    law = stats.beta(K, N + 1 - K)
    assert np.mean(found) >= 0.90
    assert abs(np.mean(found) - K / (N + 1)) < 4 * law.std() / math.sqrt(DRAWS)
    assert stats.kstest(found, law.cdf).pvalue > 1e-3


@pytest.mark.cpu_seconds(6)
def test_coverage_of_cqr() -> None:
    """The same of cqr, for a Gaussian of twice the true width, m + 2 z of values m + z.

    Its ends are m -+ 2 * 1.645, its quantile is negative, and the coverage is that of 3.29 + q.
    """
    generator = torch.Generator().manual_seed(2)
    options = {"generator": generator, "dtype": torch.float64}
    found = []
    for _ in range(DRAWS):
        centre = torch.randn(1, N, 1, **options)
        values = centre[0] + torch.randn(N, 1, **options)
        rule = conformal_intervals(MixturePrediction(centre, 2.0), values, 0.9, "cqr")
        found.append(2 * stats.norm.cdf(2 * stats.norm.ppf(0.95) + rule.quantile[0]) - 1)
    law = stats.beta(K, N + 1 - K)
    assert np.mean(found) >= 0.90
    assert abs(np.mean(found) - K / (N + 1)) < 4 * law.std() / math.sqrt(DRAWS)
    assert stats.kstest(found, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("method", ["split", "scaled", "cqr"])
@pytest.mark.cpu_seconds(6)
def test_each_output_is_covered(method) -> None:
    """A wrong mixture, two outputs: 33/41 each, not jointly. False alarms: 6e-5 each.

    200 draws of 40 calibration and 40 new examples at 80 %.
    """
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(200):
        prediction, values = draw(80, generator, outputs=2)
        rule = conformal_intervals(prediction[:40], values[:40], 0.8, method)
        found.append(coverage(rule(prediction[40:]), values[40:]))
    shares = torch.stack(found)
    error = 4 * shares.std(0) / math.sqrt(200)
    assert ((shares.mean(0) - 33 / 41).abs() < error).all()


def test_definitions_by_hand() -> None:
    """Residuals 1 ... 9 of mean 0 and std 2; at 80 % the 8th of them."""
    values = torch.tensor([1.0, -2, 3, -4, 5, -6, 7, -8, 9])
    prediction = MixturePrediction(torch.zeros(1, 9, 1), 2.0)
    new = MixturePrediction(torch.tensor([[[10.0]]]), 3.0)
    split = conformal_intervals(prediction, values, 0.8, "split")
    assert split.quantile == (8.0,) and not split.vacuous
    assert (split(new).lower.item(), split(new).upper.item()) == (2.0, 18.0)
    scaled = conformal_intervals(prediction, values, 0.8, "scaled")
    assert scaled.quantile == (4.0,)
    assert (scaled(new).lower.item(), scaled(new).upper.item()) == (-2.0, 22.0)
    cqr = conformal_intervals(prediction, values, 0.8, "cqr")
    half = stats.norm.ppf(0.9)
    assert cqr.quantile[0] == pytest.approx(8 - 2 * half)
    assert cqr(new).upper.item() == pytest.approx(10 + 3 * half + 8 - 2 * half)
    assert split(new).widths.item() == 16.0 and "mean width=16" in repr(split(new))


def test_cqr_uses_the_mixture_and_keeps_its_shape() -> None:
    """Two members far apart: ends lie about both, not about parameters averaged; calibrated, q ~ 0.

    False alarms: 1e-4, q being the 80 % quantile of 4,000 scores whose density there is above 0.05.
    """
    generator = torch.Generator().manual_seed(5)
    loc = torch.tensor([-5.0, 5.0], dtype=torch.float64).view(2, 1, 1).expand(2, 4000, 1)
    prediction = MixturePrediction(loc, 1.0)
    side = torch.randint(2, (4000, 1), generator=generator) * 10 - 5
    values = side + torch.randn(4000, 1, generator=generator, dtype=torch.float64)
    rule = conformal_intervals(prediction, values, 0.8, "cqr")
    assert abs(rule.quantile[0]) < 4 * math.sqrt(0.16 / 4000) / 0.05
    assert rule(prediction[:1]).upper.item() == pytest.approx(5.84, abs=0.2)


def test_an_interval_can_be_empty() -> None:
    """Predictions far too wide, then a narrow one: the correction is larger than its interval."""
    wide = MixturePrediction(torch.zeros(1, 50, 1), 10.0)
    rule = conformal_intervals(wide, torch.zeros(50), 0.9, "cqr")
    intervals = rule(MixturePrediction(torch.zeros(1, 1, 1), 1.0))
    assert intervals.empty.item() and intervals.widths.item() == 0.0
    assert coverage(intervals, torch.zeros(1)).item() == 0.0


@pytest.mark.parametrize("method", ["split", "scaled", "cqr"])
def test_too_few_examples(method) -> None:
    prediction, values = draw(9, torch.Generator().manual_seed(0), outputs=2)
    assert not conformal_intervals(prediction, values, 0.9, method).vacuous
    rule = conformal_intervals(prediction[:8], values[:8], 0.9, method)
    intervals = rule(prediction)
    assert rule.vacuous and (intervals.lower == -math.inf).all()
    assert (intervals.upper == math.inf).all() and (coverage(intervals, values) == 1).all()


def test_errors() -> None:
    prediction, values = draw(20, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="Did you mean 'split'"):
        conformal_intervals(prediction, values, method="splt")
    for method in ("split", "cqr"):
        with pytest.raises(ValueError, match=r"in \(0, 1\)"):
            conformal_intervals(prediction, values, 1.0, method)
    with pytest.raises(ValueError, match=r"Got 3 target\(s\) for 20"):
        conformal_intervals(prediction, values[:3])
    with pytest.raises(ValueError, match="need as many, >= 1"):
        conformal_intervals(prediction[:0], values[:0])
    with pytest.raises(ValueError, match="df = 2.0 .* use 'cqr'"):
        conformal_intervals(MixturePrediction(prediction.loc, 1.0, df=2.0), values, 0.9, "scaled")
    with pytest.raises(ValueError, match="use `conformal_sets`"):
        conformal_intervals(CategoricalPrediction.from_probs([[0.5, 0.5]]), values)
    two, _ = draw(4, torch.Generator().manual_seed(0), outputs=2)
    with pytest.raises(ValueError, match=r"Calibrated on 1 output\(s\), got a prediction of 2"):
        conformal_intervals(prediction, values)(two)
