"""The index of the largest weight: uniform for independent networks, not for a chain."""

from __future__ import annotations

import numpy as np
import torch

from polymode.symmetry.corollary import largest_units, uniformity


def test_the_unit_of_the_largest_weight():
    weights = torch.zeros(3, 4, 2, 2)
    weights[0, 2, 1, 0] = 1.0
    weights[1, 0, 0, 0] = 1.0
    weights[2] -= 5.0
    weights[2, 3, 1, 1] = -1.0
    assert largest_units(weights).tolist() == [2, 0, 3]
    assert largest_units(torch.tensor([[1.0, 3.0], [2.0, 0.0]])).tolist() == [1, 0]


def test_p_values_are_uniform_with_either_distribution():
    """Of n samples of uniform indices, p ≤ 0.05 comes n/20 times; the bound is 4 standard
    deviations: a false alarm in 16,000 (fixed seed)."""
    stream = np.random.default_rng(0)
    for size, units, number in ((200, 16, 1000), (30, 10, 150)):  # by χ², by simulation
        low = sum(
            uniformity(stream.integers(units, size=size), units).p_value <= 0.05
            for _ in range(number)
        )
        assert abs(low - 0.05 * number) < 4 * (number * 0.05 * 0.95) ** 0.5


def test_a_chain_that_stays_fails():
    stream = np.random.default_rng(1)
    staying = np.repeat(stream.integers(16, size=3), 40)  # three chains, forty samples each
    assert uniformity(staying, 16).p_value < 1e-6
    assert uniformity(np.zeros(20, int), 16).p_value == 1e-4  # the least that 9,999 draws show
