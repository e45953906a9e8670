"""Reliability diagram and confidence − accuracy: bins, band and errors against oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import stats

from polymode import plots
from polymode.metrics import calibration
from polymode.plots.reliability import (
    bins_of_equal_mass,
    consistency_band,
    default_start,
    off_by_more_than_chance,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=100), st.integers(1, 20))
def test_bins_keep_every_example_and_tear_no_ties(levels, num_bins):
    confidence = np.array(levels) / 20
    hit = (np.array(levels) % 2).astype(float)
    bins = bins_of_equal_mass(confidence, hit, num_bins)
    assert bins["count"].sum() == len(levels)
    assert len(bins["count"]) <= num_bins
    assert (bins["count"] @ bins["confidence"]) == pytest.approx(confidence.sum())
    assert (bins["count"] @ bins["accuracy"]) == pytest.approx(hit.sum())
    assert (np.diff(bins["confidence"]) > 0).all()
    assert (bins["band low"] <= bins["band high"]).all()


def test_bins_have_equal_mass_where_confidences_differ():
    stream = np.random.default_rng(0)
    bins = bins_of_equal_mass(stream.random(1500), np.zeros(1500), 15)
    assert set(bins["count"]) == {100}


def test_band_of_equal_confidences_is_binomial():
    """Of n alike, hits are binomial; 1,000 draws miss the quantile's own count by little.

    The empirical 5 % quantile lies between the true quantiles of 3 % and 7 % with probability
    0.995 each; the seed is fixed.
    """
    for p in (0.6, 0.9, 0.99):
        low, high = consistency_band(np.full(200, p), np.zeros(200, int), 1)[:, 0]
        assert stats.binom.ppf(0.03, 200, p) <= 200 * low <= stats.binom.ppf(0.07, 200, p)
        assert stats.binom.ppf(0.93, 200, p) <= 200 * high <= stats.binom.ppf(0.97, 200, p)


def test_seeds_that_agree_have_the_band_of_one():
    """Seeds share the examples: three equal ones know no more than one."""
    confidence = np.linspace(0.5, 1, 60)
    where = np.arange(60) // 20
    one = consistency_band(confidence, where, 3)
    three = consistency_band(np.tile(confidence, 3), np.tile(where, 3), 3, num_seeds=3)
    np.testing.assert_allclose(one, three, atol=0.051)  # one hit in 20


def test_about_one_bin_in_ten_of_a_calibrated_method_is_outside():
    """300 bins, each outside with probability <= 0.1: more than 50 with probability 1e-4."""
    stream = np.random.default_rng(1)
    outside = 0
    for _ in range(20):
        confidence = stream.uniform(0.3, 1, 600)
        bins = bins_of_equal_mass(confidence, (stream.random(600) < confidence).astype(float), 15)
        outside += off_by_more_than_chance(bins).sum()
    assert 5 <= outside <= 50


def test_reliability_pools_seeds_and_says_all_three_errors(digits_results):
    ensembles = [r for r in digits_results if r.method == "deep_ensemble"]
    display = plots.reliability(ensembles)
    assert display.data["count"].sum() == 800
    for name, metric in (("ece", "ece"), ("adaptive ece", "adaptive_ece")):
        errors = [getattr(calibration, metric)(*r.kept["test"][:2]).value for r in ensembles]
        assert display.data[name][0] == pytest.approx(np.mean(errors))
    for words in ("2 seeds pooled", "top label", "adaptive ECE", "debiased ECE", "equal mass"):
        assert words in display.caption
    assert 0 <= default_start([display]) <= display.data["confidence"].min()


def test_debiased_error_that_is_not_defined_is_not_a_number(made):
    kept = made.classes(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([0, 0]))
    display = plots.reliability(made.results({"test": kept}))
    assert np.isnan(display.data["debiased ece"][0])
    assert "debiased ECE n/a" in display.caption


def test_gap_is_confidence_less_accuracy(made):
    """20 of 0.8, all right, and 20 of 0.95, half right: −0.2 by chance 0.8²⁰ = 0.01, and 0.45."""
    probs = np.repeat([[0.8, 0.2], [0.95, 0.05]], 20, axis=0)
    labels = np.r_[np.zeros(30, int), np.ones(10, int)]
    results = made.results({"test": made.classes(probs, labels)})
    display = plots.confidence_gap({"m": results}, num_bins=2)
    np.testing.assert_allclose(display.data["m gap"], [-0.2, 0.45])
    np.testing.assert_array_equal(display.data["m clear"], [1, 1])
    assert "m +0.125" in display.alt


def test_gap_draws_one_line_a_method_and_a_zero_line(digits_board):
    ax = plots.confidence_gap(digits_board).plot(Figure().add_subplot())
    named = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
    assert [line.get_label() for line in named] == digits_board.labels
    assert any(set(line.get_ydata()) == {0} for line in ax.get_lines())


def test_gap_has_ticks_wherever_the_confidences_lie(made):
    for confidence in (0.55, 0.72, 0.97, 0.99999):
        probs = np.tile([confidence, 1 - confidence], (8, 1))
        results = made.results({"test": made.classes(probs, np.zeros(8, int))})
        ax = plots.confidence_gap(results).plot(Figure().add_subplot())
        low, high = sorted(ax.get_xlim())
        assert any(low <= tick <= high for tick in ax.get_xticks())


def test_what_cannot_be_drawn_is_refused(digits_results, gap_results, made):
    bare = digits_results[0].replace(kept={})
    with pytest.raises(ValueError, match="keep no prediction of 'test'"):
        plots.reliability(bare)
    with pytest.raises(ValueError, match="is for classes"):
        plots.reliability(gap_results)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        plots.reliability(digits_results[0], num_bins=0)
    with pytest.raises(ValueError, match="0 results"):
        plots.reliability([])
    with pytest.raises(ValueError, match="needs labels"):
        plots.confidence_gap(digits_results[0], dataset="ood:patches")
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.confidence_gap({})
