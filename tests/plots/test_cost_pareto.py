"""Cost against quality: the frontier and its markers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from polymode import plots
from polymode.metrics import compare
from polymode.plots.cost_pareto import frontier

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


def panels(results) -> list[str]:
    axes = plots.cost_pareto(compare(results)).figure().axes
    return [ax.get_xlabel().partition(" time")[0] for ax in axes]


def test_without_training_times_there_is_one_panel(digits_results):
    """As of results whose fit was not timed; a fit that was timed has both."""
    untimed = [r.replace(cost=r.cost._replace(train_seconds=None)) for r in digits_results]
    assert panels(untimed) == ["prediction"]
    assert panels(digits_results) == ["training", "prediction"]
