"""Curves along orbits: numbers by hand, and what is drawn."""

from __future__ import annotations

import numpy as np

from polymode import plots


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
