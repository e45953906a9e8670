"""Sweeps over a number: means, errors, axes."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from polymode import plots


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
