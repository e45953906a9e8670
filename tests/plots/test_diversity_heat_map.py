"""Heat map of pairs of members: clusters, means, blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from polymode import plots
from polymode.plots.diversity_heat_map import averaged, clustered


def clans(sizes=(4, 3, 5), seed=0):
    """A distance of 0.1 within clans and 0.3 between, noise on top, members in random order."""
    stream = np.random.default_rng(seed)
    clan = stream.permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = stream.random((len(clan), len(clan))) * 0.05
    matrix = 0.1 + 0.2 * (clan[:, None] != clan) + noise + noise.T
    np.fill_diagonal(matrix, 0)
    return clan, matrix


def test_clustering_brings_clans_together():
    clan, matrix = clans()
    for values, similarity in ((matrix, False), (1 - matrix, True)):
        ordered = clan[clustered(values, similarity)]
        assert (np.diff(ordered) != 0).sum() == 2  # three blocks


def test_heat_map_has_the_mean_over_pairs_in_its_title():
    _, matrix = clans()
    display = plots.diversity_heat_map(torch.as_tensor(matrix), label="e")
    off = matrix[~np.eye(12, dtype=bool)]
    assert display.data["mean"][0] == pytest.approx(off.mean())
    ax = display.plot(Figure().add_subplot())
    assert f"{off.mean():.3g}" in ax.get_title()
    shown = ax.images[0].get_array()
    order = display.data["order"]
    np.testing.assert_allclose(shown.filled(0), matrix[np.ix_(order, order)])
    assert shown.mask.diagonal().all()
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == [str(i) for i in order]


def test_matrix_that_is_not_symmetric_is_drawn_as_it_is():
    matrix = np.array([[0, 1.0, 5], [2, 0, 5], [5, 5, 0]])
    display = plots.diversity_heat_map(matrix)
    assert display.data["matrix"][0, 1] == 1 and display.data["matrix"][1, 0] == 2
    assert list(display.data["order"][1:]) in ([0, 1], [1, 0]) or list(
        display.data["order"][:2]
    ) in ([0, 1], [1, 0])


def test_many_members_are_averaged_in_blocks():
    matrix = np.arange(36.0).reshape(6, 6)
    np.testing.assert_allclose(averaged(matrix, 3)[0, 0], matrix[:2, :2].mean())
    np.testing.assert_allclose(averaged(matrix, 3).mean(), matrix.mean())
    holes = matrix.copy()
    np.fill_diagonal(holes, np.nan)
    assert averaged(holes, 3)[0, 0] == (holes[0, 1] + holes[1, 0]) / 2
    assert np.isnan(averaged(holes, 5)).any()  # a block of one member alone
    assert averaged(matrix, 6) is matrix
