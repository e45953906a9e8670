"""Scores against the severity of a shift."""

from __future__ import annotations

import numpy as np
import pytest

from polymode import plots


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
