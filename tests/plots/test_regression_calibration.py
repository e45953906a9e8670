"""PIT and coverage of regressions, against their distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from polymode import plots


def even_normals(made, scale, n=200):
    """Targets at the even quantiles of a standard normal distribution."""
    places = stats.norm.ppf((np.arange(n) + 0.5) / n)
    return made.results({"test": made.normals(np.zeros(n), scale, places)})


def test_right_predictions_are_uniform_and_on_the_diagonal(made):
    data = plots.regression_calibration(even_normals(made, 1.0)).data
    np.testing.assert_allclose(data["pit density"], 1.0)
    np.testing.assert_allclose(data["coverage"], data["level"], atol=1 / 200)
    assert data["sharpness"][0] == pytest.approx(1.0)
    low, high = data["pit band"] * 20
    assert (low, high) == tuple(stats.binom.ppf([0.05, 0.95], 200, 0.1))
    np.testing.assert_allclose(data["band high"] * 200, stats.binom.ppf(0.95, 200, data["level"]))


def test_too_sure_is_a_u_below_the_diagonal(made):
    data = plots.regression_calibration(even_normals(made, 0.5)).data
    assert data["pit density"][0] > data["pit band"][1]
    assert data["pit density"][5] < 1
    expected = 2 * stats.norm.cdf(0.5 * stats.norm.ppf(0.5 + data["level"] / 2)) - 1
    np.testing.assert_allclose(data["coverage"], expected, atol=1 / 200)
    assert (data["coverage"] < data["band low"])[3:].all()


def test_seeds_are_pooled_and_the_band_is_of_one(made):
    one, two = even_normals(made, 1.0), even_normals(made, 1.0)
    both = plots.regression_calibration([one, two])
    np.testing.assert_allclose(both.data["pit density"], 1.0)
    np.testing.assert_array_equal(
        both.data["pit band"], plots.regression_calibration(one).data["pit band"]
    )
    assert "2 seeds pooled" in both.caption


def test_errors_and_widths_of_seeds_are_pooled_as_squares(made):
    n = 50
    several = [
        made.results({"test": made.normals(np.zeros(n), scale, np.full(n, error))})
        for scale, error in ((1.0, 3.0), (7.0, 4.0))
    ]
    data = plots.regression_calibration(several).data
    assert data["rmse"][0] == pytest.approx(math.sqrt((9 + 16) / 2))
    assert data["sharpness"][0] == pytest.approx(math.sqrt((1 + 49) / 2))
