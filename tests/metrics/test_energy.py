"""Energy score and fair CRPS against closed forms, direct sums and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from polymode.metrics.crps import crps, crps_from_samples, fair_crps
from polymode.metrics.energy import energy_of_draws, energy_score
from polymode.metrics.score import NotDefined
from polymode.prediction import MixturePrediction


def test_energy_of_draws_is_its_definition_and_the_crps_of_one_output():
    stream = torch.Generator().manual_seed(0)
    draws = torch.randn(6, 4, 3, generator=stream, dtype=torch.float64)
    y = torch.randn(4, 3, generator=stream, dtype=torch.float64)
    for b in range(4):
        away = np.mean([(draws[s, b] - y[b]).norm().item() for s in range(6)])
        apart = sum((draws[s, b] - draws[t, b]).norm().item() for s in range(6) for t in range(s))
        assert energy_of_draws(draws, y)[b].item() == pytest.approx(away - apart / 30, rel=1e-12)
    single = energy_of_draws(draws[..., :1], y[:, :1])
    expected = crps_from_samples(draws[..., :1], y[:, :1]).each
    np.testing.assert_allclose(single, expected, rtol=1e-12)


@pytest.mark.parametrize("outputs", [2, 5])
def test_energy_score_of_a_gaussian_at_its_mean(outputs):
    r"""E|X| = σ√2 Γ((D+1)/2)/Γ(D/2), and E|X − X'| is √2 of it. 4 standard errors over 400 equal
    examples, each its own draws: false alarms 1 in 16,000."""
    norm = 0.5 * math.sqrt(2) * math.exp(math.lgamma(outputs / 2 + 0.5) - math.lgamma(outputs / 2))
    score = energy_score(MixturePrediction(torch.zeros(1, 400, outputs), 0.5),
                         torch.zeros(400, outputs))  # fmt: skip
    exact = norm * (1 - math.sqrt(2) / 2)
    assert abs(score.value - exact) < 4 * score.standard_error
    assert score.standard_error < 0.02 * exact


def test_energy_score_needs_several_outputs():
    with pytest.raises(NotDefined, match=">= 2 outputs"):
        energy_score(MixturePrediction(torch.zeros(1, 4, 1), 0.5), torch.zeros(4, 1))


@pytest.mark.parametrize("df", [None, 3.0])
def test_fair_crps_takes_the_mean_over_pairs_of_different_samples(df):
    """By scipy's quadrature of ∫ F_s F_t; and two equal samples leave the plain score."""
    loc, scale, y = np.array([0.0, 1.0, -0.5]), np.array([0.5, 1.0, 0.3]), 0.4005
    law = stats.norm(loc, scale) if df is None else stats.t(df, loc, scale)
    x = np.linspace(-200, 200, 400_001)  # y lies between two points: the jump costs nothing
    below = law.cdf(x[:, None])
    pairs = (below.sum(1) ** 2 - (below**2).sum(1)) / 6
    integrand = pairs - 2 * below.mean(1) * (x >= y) + (x >= y)
    column = [torch.tensor(v)[:, None, None] for v in (loc, scale)]
    score = fair_crps(MixturePrediction(*column, df), torch.tensor([[y]], dtype=torch.float64))
    assert score.value == pytest.approx(np.trapezoid(integrand, x), abs=1e-5)
    twice = MixturePrediction(torch.zeros(2, 3, 1), 1.0, df)
    targets = torch.tensor([[0.0], [1.0], [5.0]])
    assert fair_crps(twice, targets).value == pytest.approx(crps(twice, targets).value, rel=1e-6)


def test_fair_crps_does_not_depend_on_the_number_of_samples():
    """Means from N(0, 1), noise 0.5: the mean over 4,000 inputs is that of N(0, 1.25) for S = 2 and
    S = 8 within four standard errors (1 in 16,000 each); the plain score at S = 2 is not."""
    stream = torch.Generator().manual_seed(0)
    y = torch.randn(4000, 1, generator=stream, dtype=torch.float64)
    exact = crps(MixturePrediction(torch.zeros(1, 4000, 1).double(), 1.25**0.5), y)
    for samples in (2, 8):
        loc = torch.randn(samples, 4000, 1, generator=stream, dtype=torch.float64)
        mixture = MixturePrediction(loc, 0.5)
        gap = fair_crps(mixture, y).each - exact.each
        assert abs(gap.mean()) < 4 * gap.std() / 4000**0.5
        if samples == 2:
            assert crps(mixture, y).value > exact.value + 0.05
    with pytest.raises(NotDefined, match=">= 2 samples"):
        fair_crps(MixturePrediction(loc[:1], 0.5), y)
