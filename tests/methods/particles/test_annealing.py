"""Annealing schedules: end points, hand-worked values, range."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymode.methods.particles.annealing import ANNEALING, annealing_factor


def test_hand_worked_values() -> None:
    assert [annealing_factor("none", t, 4) for t in range(4)] == [1.0] * 4
    assert [annealing_factor("linear", t, 4) for t in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert annealing_factor("hyper", 50, 100) == pytest.approx(math.tanh(0.65**10))
    assert annealing_factor("hyper", 90, 100) > 0.99
    assert annealing_factor("cyclic", 10, 100) == pytest.approx(0.5**10)


def test_cyclic_has_five_cycles() -> None:
    values = [annealing_factor("cyclic", t, 100) for t in range(100)]
    falls = [t for t in range(1, 100) if values[t] < values[t - 1]]
    assert falls == [20, 40, 60, 80]
    assert values[:20] == pytest.approx(values[80:], abs=1e-9)


@given(st.sampled_from(sorted(ANNEALING)), st.integers(0, 10**7), st.integers(1, 10**6))
def test_range(schedule, step, total) -> None:
    assert 0 <= annealing_factor(schedule, step, total) <= 1
    assert annealing_factor(schedule, total, total) == 1


@pytest.mark.parametrize("schedule", ["linear", "hyper"])
def test_rises(schedule) -> None:
    values = [annealing_factor(schedule, t, 50) for t in range(51)]
    assert values == sorted(values)
    assert values[0] == 0
