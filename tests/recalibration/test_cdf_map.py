"""Maps of the distribution function: coverage of new values, what they are by hand, limits."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from polymode.metrics.intervals import pit
from polymode.metrics.regression import nll
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.recalibration import Recalibration, recalibrate


def skewed(n: int, seed: int):
    """Gaussians N(m, 1) of values m + exponential: wrong in width, place and shape."""
    random = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, n, 1, generator=random, dtype=torch.float64)
    noise = -torch.rand(n, 1, generator=random, dtype=torch.float64).log()
    return MixturePrediction(centre, 1.0), centre[0] + 0.5 * noise


@pytest.mark.parametrize("method", ["isotonic_cdf", "quantile_cdf"])
def test_levels_of_new_values_are_uniform(method) -> None:
    """Given 2,000 examples of the fit, levels of 2,000 others: the distance of two empirical
    distributions, twice the Kolmogorov-Smirnov bound at 1e-3, and 1/40 for straight lines between
    twenty levels."""
    given, values = skewed(2000, 0)
    new, new_values = skewed(2000, 1)
    before = stats.kstest(pit(new, new_values)[:, 0], "uniform").statistic
    after = recalibrate(given, values, method)(new)
    distance = stats.kstest(pit(after, new_values)[:, 0], "uniform").statistic
    assert before > 0.2
    assert distance < 2 * 1.95 / 2000**0.5 + (0.025 if method == "quantile_cdf" else 0.0)
    if method == "quantile_cdf":
        assert nll(after, new_values).value < nll(new, new_values).value - 0.1


def test_coverage_of_few_examples_is_that_of_ranks() -> None:
    """With 9 examples P(y <= the quantile at 0.7) is 7/10 exactly; 1,500 draws, four standard
    errors: false alarms 6e-5."""
    hits = 0
    for seed in range(1500):
        given, values = skewed(10, seed)
        after = recalibrate(given[:9], values[:9], "isotonic_cdf")(given[9:])
        hits += int(values[9, 0] <= after.quantile(0.7).item())
    assert abs(hits / 1500 - 0.7) < 4 * (0.21 / 1500) ** 0.5


def test_corners_by_hand_and_ties() -> None:
    given = MixturePrediction(torch.zeros(1, 3, 1, dtype=torch.float64), 1.0)
    levels = torch.tensor([0.2, 0.9, 0.2], dtype=torch.float64)
    values = torch.as_tensor(stats.norm.ppf(levels))
    (pair,) = recalibrate(given, values, "isotonic_cdf").parameters["maps"]
    assert pair[0] == pytest.approx([0, 0.2, 0.9, 1]) and pair[1] == [0.0, 0.375, 0.75, 1.0]
    far = recalibrate(given, torch.tensor([-50.0, 0.0, 50.0]), "isotonic_cdf")(given)
    assert far.mean.isfinite().all() and far.quantile(0.5)[0, 0].abs() < 1e-6


def test_outputs_have_maps_of_their_own_and_are_stored() -> None:
    random = torch.Generator().manual_seed(0)
    loc = torch.zeros(1, 500, 2, dtype=torch.float64)
    values = torch.randn(500, 2, generator=random, dtype=torch.float64) * torch.tensor([3.0, 0.3])
    given = MixturePrediction(loc, 1.0)
    map_ = recalibrate(given, values, "quantile_cdf", num_levels=10)
    again = Recalibration.from_dict(map_.to_dict())
    low, high = again(given).interval(0.8)
    widths = (high - low)[0] / (2 * stats.norm.ppf(0.9))
    assert 2 < widths[0] < 4 and 0.2 < widths[1] < 0.4


def test_wrong_calls() -> None:
    given, values = skewed(20, 0)
    classes = CategoricalPrediction.from_probs([[0.5, 0.5]])
    with pytest.raises(ValueError, match="classes; take 'temperature'"):
        recalibrate(classes, torch.tensor([0]), "isotonic_cdf")
    with pytest.raises(ValueError, match="regression; take 'scale'"):
        recalibrate(given, values, "isotonic")
    with pytest.raises(ValueError, match="`num_levels` of quantile_cdf must be an integer of"):
        recalibrate(given, values, "quantile_cdf", num_levels=1)
    map_ = recalibrate(given, values, "isotonic_cdf")
    with pytest.raises(ValueError, match="mapped already"):
        map_(map_(given))
