"""Cost, paper versus ours, sweeps, orbits and shifts: numbers against oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from polymode import plots
from polymode.metrics import compare
from polymode.plots import Comparison
from polymode.plots.cost_pareto import frontier
from polymode.plots.sources import by_label

PLACES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(PLACES, st.booleans())
def test_frontier_is_what_nothing_beats(points, up):
    """A point is on it if no other is as cheap and as good, and cheaper or better."""
    sign = -1 if up else 1
    expected = {
        (c, s)
        for c, s in points
        if not any((d, t) != (c, s) and d <= c and sign * t <= sign * s for d, t in points)
    }
    costs, scores = frontier(points, up)
    assert set(zip(costs, scores, strict=True)) == expected
    assert (np.diff(costs) > 0).all()


@pytest.fixture(scope="module")
def timed(digits_results):
    """The board with training times: 10 s and 12 s, and 30 s and 34 s."""
    seconds = {("map", 0): 10.0, ("map", 1): 12.0}
    seconds |= {("deep_ensemble", 0): 30.0, ("deep_ensemble", 1): 34.0}
    return compare(
        [
            r.replace(cost=r.cost._replace(train_seconds=seconds[r.method, r.seed]))
            for r in digits_results
        ]
    )


def test_costs_are_multiples_of_the_fastest(timed):
    display = plots.cost_pareto(timed)
    assert display.data["baseline"][0] == "map"
    assert display.data["map train"][0] == 1
    assert display.data["deep_ensemble train"][0] == pytest.approx(32 / 11)
    assert display.data["deep_ensemble train"][1] == pytest.approx(2 / 11)
    cell = timed["deep_ensemble", "test", "nll"]
    np.testing.assert_allclose(display.data["deep_ensemble score"], cell[:2])
    assert list(display.data["pareto"]) == timed.pareto()
    assert "training time 11 s" in display.caption


def test_filled_markers_are_the_pareto_front(timed):
    ax = plots.cost_pareto(timed, metric="accuracy").plot(Figure().add_subplot())
    filled = {
        box.get_label() for box in ax.containers if box.lines[0].get_markerfacecolor() != "white"
    }
    assert filled == set(timed.pareto("accuracy"))
    assert ax.get_xscale() == "log"


def test_without_training_times_there_is_one_panel(digits_board):
    display = plots.cost_pareto(digits_board)
    assert [ax.get_xlabel()[:10] for ax in display.figure().axes] == ["prediction"]


def test_verdicts():
    row = Comparison("x", 1.0, None, 1.05, 0.01, 0.1)
    assert row.verdict == "reproduced"
    assert row.deviation == pytest.approx(0.5)
    assert row._replace(ours=1.2).verdict == "outside"
    assert row._replace(ours=1.2, direction="up").verdict == "better"
    assert row._replace(ours=1.2, direction="down").verdict == "outside"
    assert row._replace(ours=0.8, direction="down").verdict == "better"
    assert row._replace(ours=None).verdict == "n/a"
    assert math.isnan(row._replace(ours=None).deviation)


def test_forest_is_in_units_of_the_tolerance(displays):
    display = displays["forest"]
    np.testing.assert_allclose(display.data["deviation"], [-0.4, 3, -1.4, np.nan, 6.75])
    np.testing.assert_allclose(display.data["s.e."][0], 0.16)
    verdicts = ["reproduced", "outside", "better", "n/a", "outside"]
    assert list(display.data["verdict"]) == verdicts
    assert "1 of 4 within tolerance" in display.alt
    assert "outside: MAP, NLL, Laplace, NLL" in display.alt
    ax = display.figure().axes[0]
    signs = [text.get_text() for text in ax.texts]
    assert signs == ["✓", "✗", "↗", "–", "✗"]


def test_forest_grows_with_its_rows():
    row = Comparison("x", 1.0, None, 1.05, 0.01, 0.1)
    few, many = plots.forest([row] * 2), plots.forest([row] * 20)
    assert many.size[1] - few.size[1] == pytest.approx(18 * 0.25)
    assert few.size[0] == many.size[0]


def test_orbit_numbers():
    theta = np.arange(0, 360, 90.0)
    members = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    display = plots.orbit_curve(theta, members, control=[0.5, 0.5, 0.4, 0.4])
    np.testing.assert_allclose(display.data["mean"], 0.5)
    np.testing.assert_allclose(display.data["uncertainty"], 0.5)
    np.testing.assert_allclose(display.data["orbit s.d."], [0.5, 0.0])  # members turn, mean stays
    assert display.data["group average"][0] == 0.5
    assert "The control varies by 0.05" in display.caption


def test_orbit_draws_members_mean_average_and_control():
    theta, members = np.arange(4.0), np.random.default_rng(0).random((30, 4))
    display = plots.orbit_curve(theta, members, control=members[0], control_uncertainty=members[1])
    above, below = display.figure().axes
    assert len(above.get_lines()) == 15 + 3
    assert len(below.get_lines()) == 2
    alone = plots.orbit_curve(theta, members[0]).figure().axes[0]
    assert len(alone.get_lines()) == 2 and not alone.collections


def test_sweep_means_and_errors():
    stream = np.random.default_rng(0)
    table = stream.random((4, 5))
    table[2, 1] = np.nan
    display = plots.sweep([0, 0.1, 1, 10], {"nll": {"m": table}}, name="strength", chosen=1)
    known = [row[np.isfinite(row)] for row in table]
    np.testing.assert_allclose(display.data["m nll"], [row.mean() for row in known])
    errors = [row.std(ddof=1) / np.sqrt(len(row)) for row in known]
    np.testing.assert_allclose(display.data["m nll s.e."], errors)
    assert "1 runs without a number" in display.caption
    np.testing.assert_allclose(display.data["place"][1:], [-1, 0, 1])
    assert display.data["place"][0] < -1.5
    np.testing.assert_allclose(display.data["mark place"], [0])


def test_sweep_names_zero_and_the_powers_of_ten():
    ax = plots.sweep([0, 0.1, 1], {"nll": [1, 2, 3]}, name="x").plot(Figure().add_subplot())
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "0.1", "1"]
    assert "//" in [text.get_text() for text in ax.texts]
    grid = np.geomspace(1e-3, 1e3, 13)
    ax = plots.sweep(grid, {"nll": grid}, name="x").plot(Figure().add_subplot())
    names = [tick.get_text() for tick in ax.get_xticklabels()]
    assert names == ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]


def test_sweep_has_a_panel_a_metric_and_marks_in_all():
    panels = {"nll": {"a": [1, 2], "b": [2, 1]}, "ece": {"a": [1, 2]}}
    display = plots.sweep([1, 2], panels, name="x", chosen=1, marks={"median": 2})
    figure = display.figure()
    assert len(figure.axes) == 2
    for ax in figure.axes:
        upright = [line for line in ax.get_lines() if len(set(line.get_xdata())) == 1]
        assert len(upright) == 2
    assert list(display.styles) == ["a", "b"]


def test_severity_begins_with_the_test_set(digits_board):
    display = plots.severity(digits_board, "rotation")
    np.testing.assert_array_equal(display.data["severity"], range(6))
    nll = display.data["map nll"]
    assert nll[0] == digits_board["map", "test", "nll"].mean
    assert nll[5] == digits_board["map", "shift:rotation:5", "nll"].mean
    assert list(display.data["metric"]) == ["accuracy", "nll", "ece"]


def test_spread_has_mean_and_worst_of_the_kinds(digits_board):
    display = plots.severity_spread(digits_board)
    for metric, worst in (("accuracy", min), ("nll", max)):
        cells = [
            digits_board["map", f"shift:{kind}:4", metric].mean
            for kind in ("gaussian_noise", "rotation")
        ]
        assert display.data[f"map {metric} mean"][4] == pytest.approx(np.mean(cells))
        assert display.data[f"map {metric} worst"][4] == worst(cells)
        assert display.data[f"map {metric} mean"][0] == digits_board["map", "test", metric].mean
    assert "(rotation)" in display.alt or "(gaussian noise)" in display.alt


def test_labels_of_any_source(digits_results, digits_board):
    assert list(by_label(digits_board)) == digits_board.labels
    assert by_label(digits_results) == by_label(digits_board)
    assert by_label(digits_results[0]) == {"map": [digits_results[0]]}
    assert by_label({"mine": digits_results[:2]}) == {"mine": digits_results[:2]}


def test_what_cannot_be_drawn_is_refused(digits_board):
    with pytest.raises(ValueError, match="Did you mean 'nll'"):
        plots.cost_pareto(digits_board, metric="nlll")
    with pytest.raises(ValueError, match="does not score"):
        plots.cost_pareto(digits_board, metric="mutual_information")
    with pytest.raises(ValueError, match="Did you mean 'map'"):
        plots.cost_pareto(digits_board, baseline="mapp")
    with pytest.raises(ValueError, match="at least one Comparison"):
        plots.forest([])
    row = Comparison("x", 1.0, None, 1.0, None, 0.0)
    with pytest.raises(ValueError, match="`tolerance` of 'x' must be > 0, got 0"):
        plots.forest([row])
    with pytest.raises(ValueError, match="must be finite"):
        plots.forest([row._replace(tolerance=1.0, ours=math.nan)])
    with pytest.raises(ValueError, match="`theta` of orbit_curve must increase"):
        plots.orbit_curve([0, 0], [[1, 1]])
    with pytest.raises(ValueError, match=r"\(S, 2\), one value for each theta, got \(1, 3\)"):
        plots.orbit_curve([0, 1], [1, 2, 3])
    with pytest.raises(ValueError, match=r"`control` of orbit_curve must be \(2,\), got \(3,\)"):
        plots.orbit_curve([0, 1], [1, 2], control=[1, 2, 3])
    with pytest.raises(ValueError, match="finite numbers, got 1 that are not"):
        plots.orbit_curve([0, 1], [1, np.nan])
    with pytest.raises(ValueError, match="increase from 0 or more"):
        plots.sweep([-1, 1], {"nll": [1, 2]}, name="x")
    with pytest.raises(ValueError, match=r"\(2, R\) or \(2,\), got \(3, 1\)"):
        plots.sweep([1, 2], {"nll": [1, 2, 3]}, name="x")
    with pytest.raises(ValueError, match="no finite number"):
        plots.sweep([1, 2], {"nll": [np.nan, np.nan]}, name="x")
    with pytest.raises(ValueError, match="must be finite and >= 0, got -1"):
        plots.sweep([1, 2], {"nll": [1, 2]}, name="x", chosen=-1)
    with pytest.raises(ValueError, match="at least one panel"):
        plots.sweep([1, 2], {}, name="x")
    with pytest.raises(ValueError, match="no shift 'fog'; it has"):
        plots.severity(digits_board, "fog")
    with pytest.raises(ValueError, match="no metric 'nlll' of the test set. Did you mean 'nll'"):
        plots.severity(digits_board, "rotation", metrics=["nlll"])
    with pytest.raises(ValueError, match="no metric 'rmse'"):
        plots.severity_spread(digits_board, metrics=["rmse"])
