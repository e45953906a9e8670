"""Risk–coverage, OOD histograms, entropy scatter: numbers against oracles."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.metrics import average_precision_score, roc_auc_score

from polymode import plots
from polymode.plots.ood_histogram import measures


def binary(confidence, labels, made):
    first = np.array(confidence)
    return made.classes(np.stack([first, 1 - first], 1), np.array(labels))


def test_risk_coverage_by_hand(made):
    """From confident to not: right, wrong, right, wrong."""
    results = made.results({"test": binary([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1], made)})
    data = plots.risk_coverage({"m": results}).data
    np.testing.assert_allclose(data["coverage"], [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(data["m risk"], [0, 1 / 2, 1 / 3, 1 / 2])
    np.testing.assert_allclose(data["m oracle"], [0, 0, 1 / 3, 1 / 2])
    np.testing.assert_allclose(data["m random"], 0.5)
    assert data["m coverage at risk"][0] == 0.25
    assert data["m AURC"][0] == pytest.approx((0.25 + 5 / 12 + 5 / 12) / 3)


def test_ties_have_the_mean_risk_whatever_their_order(made):
    """Two orders of the same tied examples give the same curve."""
    one, other = (
        plots.risk_coverage({"m": made.results({"test": binary([0.9] * 4, labels, made)})}).data
        for labels in ([0, 1, 0, 1], [1, 1, 0, 0])
    )
    np.testing.assert_allclose(one["m risk"], 0.5)
    np.testing.assert_allclose(one["m risk"], other["m risk"])


def test_risk_coverage_is_the_mean_of_seeds(digits_results, digits_board):
    display = plots.risk_coverage(digits_board)
    ensembles = [r for r in digits_results if r.method == "deep_ensemble"]
    rows = [r["test", "aurc"].value for r in ensembles]
    assert display.data["deep_ensemble AURC"][0] == pytest.approx(np.mean(rows))
    single = [plots.risk_coverage(r).data["deep_ensemble risk"] for r in ensembles]
    np.testing.assert_allclose(display.data["deep_ensemble risk"], np.mean(single, 0))
    error = np.std(single, 0, ddof=1) / np.sqrt(2)
    np.testing.assert_allclose(display.data["deep_ensemble s.e."], error)
    assert "AUGRC" in display.alt and "5 % risk" in display.caption


def test_one_example_is_a_curve(made):
    display = plots.risk_coverage(made.results({"test": binary([0.9], [0], made)}))
    np.testing.assert_array_equal(display.data["coverage"], [1])
    display.figure()


def test_curves_of_other_examples_are_refused(made):
    few, many = (
        made.results({"test": binary([0.9] * n, [0] * n, made)}, method=f"m{n}") for n in (3, 4)
    )
    with pytest.raises(ValueError, match=r"same examples, got \[3, 4\]"):
        plots.risk_coverage([few, many])


def test_long_curves_are_thinned_and_keep_their_end(made):
    stream = np.random.default_rng(0)
    results = made.results({"test": binary(stream.uniform(0.5, 1, 3000), [0] * 3000, made)})
    data = plots.risk_coverage(results).data
    assert len(data["coverage"]) == 200
    assert data["coverage"][-1] == 1


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


def test_scatter_has_equally_many_dots_and_margins_of_all(made):
    stream = np.random.default_rng(0)
    probs = stream.dirichlet(np.ones(3), (4, 50))
    kept = {"test": made.classes(probs), "ood:x": made.classes(probs[:, :20])}
    display = plots.entropy_scatter(made.results(kept))
    data = display.data
    assert len(data["test ee"]) == len(data["ood ee"]) == 20
    assert data["test mi share"].sum() == pytest.approx(1)
    assert data["ood ee share"].sum() == pytest.approx(1)
    total = kept["ood:x"].prediction.predictive_entropy.numpy()
    np.testing.assert_allclose(data["ood ee"] + data["ood mi"], total)
    assert data["most"][0] == pytest.approx(np.log(3))
    assert "test 50, x 20" in display.caption


def test_scatter_is_drawn_as_an_image(digits_results):
    ax = plots.entropy_scatter(digits_results[1]).plot(Figure().add_subplot())
    dots = [each for each in ax.collections if len(each.get_offsets())]
    assert len(dots) == 2
    assert all(each.get_rasterized() for each in dots)


def test_what_cannot_be_drawn_is_refused(digits_results, gap_results):
    bare = digits_results[0].replace(kept={})
    with pytest.raises(ValueError, match="keep no predictions"):
        plots.ood_histogram(bare)
    with pytest.raises(ValueError, match="Did you mean 'mutual_information'"):
        plots.ood_histogram(digits_results[0], score="mutual_info")
    with pytest.raises(ValueError, match="no prediction of an OOD set"):
        plots.entropy_scatter(bare)
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        plots.entropy_scatter(digits_results[0])
    with pytest.raises(ValueError, match="keep no prediction of 'ood:mars'"):
        plots.entropy_scatter(digits_results[1], ood="mars")
    with pytest.raises(ValueError, match="is for classes"):
        plots.entropy_scatter(gap_results)
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 2"):
        plots.risk_coverage(digits_results[0], risk=2)
