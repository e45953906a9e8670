"""Displays: the numbers they hold, that drawing is deterministic and leaves no pyplot state."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import stats

from polymode import plots
from polymode.metrics import classification
from polymode.plots.display import OKABE_ITO
from polymode.plots.reliability import bins_of_equal_mass, default_start, wilson


@pytest.fixture(params=["reliability", "ood_histogram", "severity", "regression_band"])
def display(request, digits_results, digits_board, gap_results):
    if request.param == "severity":
        return plots.severity(digits_board, "rotation")
    results = gap_results if request.param == "regression_band" else digits_results[1]
    return getattr(plots, request.param)(results)


def test_svg_is_deterministic_and_valid(display):
    first = display.to_svg()
    assert first == display.to_svg()
    ET.fromstring(first)
    assert "Date" not in first
    assert len(first) < 150_000
    assert "prefers-color-scheme:dark" in first


def test_figure_is_a_plain_figure_without_pyplot_state(display):
    assert isinstance(display.figure(), Figure)
    assert display.plot(Figure().add_subplot()).get_lines() is not None
    assert "matplotlib.pyplot" not in sys.modules


def test_csv_has_the_numbers(display):
    rows = list(csv.DictReader(io.StringIO(display.to_csv())))
    for name, values in display.data.items():
        written = [row[name] for row in rows if row[name] != ""]
        if values.dtype.kind != "U":
            np.testing.assert_allclose([float(each) for each in written], values, rtol=1e-5)


def test_words_for_those_who_cannot_see_it(display):
    assert len(display.alt) > 30
    assert display.caption.endswith(".")
    assert display.label in repr(display)


def test_importing_plots_imports_no_matplotlib():
    code = "import sys, polymode.plots; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_palette_is_one_style_a_label():
    styles = plots.palette([f"m{i}" for i in range(14)])
    assert len(set(styles.values())) == 14
    assert [style.color for style in styles.values()][:7] == list(OKABE_ITO)
    assert plots.palette(["a", "b"]) == plots.palette(["a", "b", "a"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=200), st.integers(1, 20))
def test_bins_keep_every_example_and_tear_no_ties(levels, num_bins):
    confidence = np.array(levels) / 20
    hit = (np.array(levels) % 2).astype(float)
    bins = bins_of_equal_mass(confidence, hit, num_bins)
    assert bins["count"].sum() == len(levels)
    assert len(bins["count"]) <= num_bins
    assert (bins["count"] @ bins["confidence"]) == pytest.approx(confidence.sum())
    assert (bins["count"] @ bins["accuracy"]) == pytest.approx(hit.sum())
    assert (np.diff(bins["confidence"]) > 0).all()


def test_bins_have_equal_mass_where_confidences_differ():
    stream = np.random.default_rng(0)
    bins = bins_of_equal_mass(stream.random(1500), np.zeros(1500), 15)
    assert set(bins["count"]) <= {99, 100, 101}


def test_wilson_equals_scipy():
    shares, counts = np.array([0.0, 0.3, 1.0]), np.array([10, 10, 10])
    low, high = wilson(shares, counts)
    for i, hits in enumerate((0, 3, 10)):
        expected = stats.binomtest(hits, 10).proportion_ci(0.9, method="wilson")
        assert (low[i], high[i]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_reliability_pools_seeds(digits_results):
    ensembles = [r for r in digits_results if r.method == "deep_ensemble"]
    display = plots.reliability(ensembles)
    assert display.data["count"].sum() == 800
    errors = [classification.ece(*r.kept["test"][:2]).value for r in ensembles]
    assert display.data["ece"][0] == pytest.approx(np.mean(errors))
    assert "2 seeds pooled" in display.caption
    assert 0 <= default_start([display]) <= display.data["confidence"].min()


def test_histograms_add_up_and_carry_the_auroc(digits_results):
    results = digits_results[1]
    display = plots.ood_histogram(results, score="mutual_information")
    for name in ("test", "ood:patches", "ood:scrambled"):
        assert display.data[name].sum() == pytest.approx(1.0)
    row = results["ood:patches", "auroc_mutual_information"]
    assert display.data["auroc ood:patches"][0] == row.value


def test_variances_are_binned_by_their_logarithm(gap_results):
    display = plots.ood_histogram(gap_results, score="epistemic_variance")
    ratios = display.data["edges"][1:] / display.data["edges"][:-1]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
    assert display.data["ood:gap"].sum() == pytest.approx(1.0)


def test_severity_begins_with_the_test_set(digits_board):
    display = plots.severity(digits_board, "rotation")
    np.testing.assert_array_equal(display.data["severity"], range(6))
    nll = display.data["map nll"]
    assert nll[0] == digits_board["map", "test", "nll"].mean
    assert nll[5] == digits_board["map", "shift:rotation:5", "nll"].mean


def test_band_splits_the_variance(gap_results):
    display = plots.regression_band(gap_results)
    noise = display.data["std"] ** 2 - display.data["epistemic std"] ** 2
    np.testing.assert_allclose(noise, 0.01, rtol=1e-3)
    functions = [display.data[f"function {k}"] for k in range(3)]
    np.testing.assert_allclose(np.mean(functions, 0), display.data["mean"], atol=1e-6)


def test_what_cannot_be_drawn_is_refused(digits_results, digits_board, gap_results):
    bare = digits_results[0].replace(kept={})
    with pytest.raises(ValueError, match="keep no prediction of 'test'"):
        plots.reliability(bare)
    with pytest.raises(ValueError, match="is of classes"):
        plots.reliability(gap_results)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        plots.reliability(digits_results[0], num_bins=0)
    with pytest.raises(ValueError, match="keep no predictions"):
        plots.ood_histogram(bare)
    with pytest.raises(ValueError, match="Did you mean 'mutual_information'"):
        plots.ood_histogram(digits_results[0], score="mutual_info")
    with pytest.raises(ValueError, match="no shift 'fog'; it has"):
        plots.severity(digits_board, "fog")
    with pytest.raises(ValueError, match="keep no curve"):
        plots.regression_band(bare)
