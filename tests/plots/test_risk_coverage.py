"""Risk against coverage: by hand, ties, means of seeds."""

from __future__ import annotations

import numpy as np
import pytest

from polymode import plots


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
