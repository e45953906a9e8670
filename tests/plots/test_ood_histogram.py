"""Histograms of scores inside and outside, with their measures."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from polymode import plots
from polymode.plots.ood_histogram import measures


def test_measures_equal_scikit_learn():
    stream = np.random.default_rng(0)
    inside, outside = stream.normal(0, 1, 300).round(1), stream.normal(1, 1, 200).round(1)
    positive = np.r_[np.zeros(300), np.ones(200)]
    pooled = np.r_[inside, outside]
    found = measures(inside, outside)
    assert found["auroc"] == pytest.approx(roc_auc_score(positive, pooled))
    assert found["aupr out"] == pytest.approx(average_precision_score(positive, pooled))
    assert found["aupr in"] == pytest.approx(average_precision_score(1 - positive, -pooled))
    threshold = np.sort(outside)[10]  # 190 of 200 are at or above it
    assert found["fpr95"] == pytest.approx((inside >= threshold).mean())
    threshold = np.sort(inside)[284]  # 285 of 300 are at or below it
    assert found["fpr95 reversed"] == pytest.approx((outside <= threshold).mean())


def test_histograms_add_up_and_carry_the_measures(digits_results):
    results = digits_results[1]
    display = plots.ood_histogram(results, score="mutual_information")
    for name in ("test", "ood:patches", "ood:scrambled"):
        assert display.data[name].sum() == pytest.approx(1.0)
    for measure in ("auroc", "fpr95"):
        row = results["ood:patches", f"{measure}_mutual_information"]
        assert display.data[f"{measure} ood:patches"][0] == pytest.approx(row.value)
    for words in ("higher means more likely OOD", "positive class", "FPR95"):
        assert words in display.caption
    assert "AUPR" in display.alt


def test_histograms_pool_seeds_and_measures_are_means_over_them(digits_results):
    """As in the tables next to them, where an AUROC is the mean over seeds."""
    seeds = [each for each in digits_results if each.method == "deep_ensemble"]
    options = {"score": "mutual_information", "limits": (0.0, 1.0)}
    together = plots.ood_histogram(seeds, **options)
    single = [plots.ood_histogram(each, **options).data for each in seeds]
    for name in ("test", "ood:patches"):  # the sets have as many examples for each seed
        np.testing.assert_allclose(together.data[name], np.mean([s[name] for s in single], 0))
    rows = [each["ood:patches", "auroc_mutual_information"].value for each in seeds]
    assert together.data["auroc ood:patches"][0] == pytest.approx(np.mean(rows))
    assert rows[0] != rows[1] and "2 seeds pooled" in together.caption


def test_variances_are_binned_by_their_logarithm(gap_results):
    display = plots.ood_histogram(gap_results, score="epistemic_variance")
    ratios = display.data["edges"][1:] / display.data["edges"][:-1]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
    assert display.data["ood:gap"].sum() == pytest.approx(1.0)
