"""The joint density of pairs."""

from __future__ import annotations

import numpy as np
import torch

from polymode import plots


def test_density_counts_each_pair_once():
    stream = np.random.default_rng(0)
    inside, outside = stream.uniform(0, 0.6, (2, 7, 7))
    inside, outside = inside + inside.T, outside + outside.T
    inside, outside = inside / 2, outside / 2
    display = plots.pair_density(inside, torch.as_tensor(outside), num_bins=5)
    assert display.data["counts"].sum() == 21
    np.testing.assert_array_equal(display.data["counts"].sum(1), display.data["test counts"])
    np.testing.assert_array_equal(display.data["counts"].sum(0), display.data["ood counts"])
    upper = np.triu_indices(7, 1)
    flat = plots.pair_density(inside[upper], outside[upper], num_bins=5)
    np.testing.assert_array_equal(flat.data["counts"], display.data["counts"])
    correlation = np.corrcoef(inside[upper], outside[upper])[0, 1]
    assert f"correlation {correlation:.2f}" in display.alt
    assert "0.693" in display.caption


def test_density_of_a_million_pairs_is_small():
    stream = np.random.default_rng(0)
    display = plots.pair_density(*stream.uniform(0, 0.69, (2, 500_000)))
    assert len(display.to_svg()) < 120_000
    assert len(display.to_csv()) < 40_000
