"""The plane of pairs: each once, and independent errors against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polymode import plots


def test_plane_has_each_pair_once():
    matrix = np.array([[0, 0.2, 0.4], [0.2, 0, 0.6], [0.4, 0.6, 0]])
    display = plots.diversity_plane({"m": ([0.9, 0.8, 0.7], matrix)}, num_classes=10)
    np.testing.assert_allclose(display.data["m accuracy"], [0.85, 0.8, 0.75])
    np.testing.assert_allclose(display.data["m diversity"], [0.2, 0.4, 0.6])
    np.testing.assert_allclose(display.data["m mean"], [0.8, 0.4])


def test_independent_errors_equal_simulation():
    """Two members of accuracy 0.7 and 4 classes; 3 standard errors, false alarms 0.003."""
    stream = np.random.default_rng(0)
    n = 20_000
    wrong = stream.integers(1, 4, (2, n))
    named = np.where(stream.random((2, n)) < 0.7, 0, wrong)
    share = (named[0] != named[1]).mean()
    matrix = np.array([[0, 0.2], [0.2, 0]])
    data = plots.diversity_plane({"m": ([0.7, 0.7], matrix)}, num_classes=4).data
    line = np.interp(0.7, data["line accuracy"], data["independent"])
    assert line == pytest.approx(share, abs=3 * math.sqrt(0.25 / n))
