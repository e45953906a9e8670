"""Heat map, plane, density of pairs, size of ensembles: numbers against oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from polymode import plots
from polymode.metrics.diversity.size import SizeCurve
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


DEEP = SizeCurve("nll", "down", (1, 2, 4), (0.5, 0.3, 0.2), (0.0, 0.01, 0.0), (4, 6, 1))


def test_equivalents_are_read_off_the_reference():
    other = ([1, 8], [0.6, 0.25], [0.0, 0.0])
    better = ([1, 8], [0.6, 0.1], [0.0, 0.0])
    display = plots.size_curve({"de": DEEP, "a": other, "b": better}, reference="de")
    assert display.data["a equivalent"][0] == 3.0
    assert display.data["b equivalent"][0] == math.inf
    assert "de equivalent" not in display.data
    assert "≙ 3.0" in display.alt and "≙ more than 4" in display.alt


def test_curve_as_arrays_is_the_curve():
    arrays = (np.array(DEEP.sizes), torch.tensor(DEEP.mean), list(DEEP.standard_error))
    one, two = plots.size_curve({"m": DEEP}), plots.size_curve({"m": arrays})
    for key in ("m members", "m mean", "m s.e."):
        np.testing.assert_allclose(one.data[key], two.data[key], rtol=1e-6)
    assert one.data["title"] == two.data["title"]


def test_infinite_means_are_off_the_axis():
    curve = DEEP._replace(mean=(math.inf, 0.3, 0.2))
    display = plots.size_curve({"m": curve})
    assert math.isinf(display.data["m mean"][0])
    line = display.plot(Figure().add_subplot()).containers[0].lines[0]
    assert np.isnan(line.get_ydata()[0])


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"\(S, S\) with S >= 2, got \(2, 3\)"):
        plots.diversity_heat_map(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="2 NaN or infinite"):
        plots.diversity_heat_map([[0, math.inf], [math.nan, 0]])
    with pytest.raises(ValueError, match="must be 2, got 1"):
        plots.diversity_heat_map(np.ones((2, 2)), names=["a"])
    with pytest.raises(ValueError, match=r"2 numbers in \[0, 1\]"):
        plots.diversity_plane({"m": ([97.0, 98.0], np.ones((2, 2)))})
    with pytest.raises(ValueError, match="not for KL"):
        plots.diversity_plane({"m": ([0.9, 0.9], np.ones((2, 2)))}, measure="KL", num_classes=3)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        plots.diversity_plane({"m": ([0.9, 0.9], np.ones((2, 2)))}, num_classes=1)
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.diversity_plane({})
    with pytest.raises(ValueError, match=r"in \[0, log 2\], got 0.9"):
        plots.pair_density([0.9], [0.1])
    with pytest.raises(ValueError, match="same pairs, got 2 and 1"):
        plots.pair_density([0.1, 0.2], [0.1])
    with pytest.raises(ValueError, match="1 to 100, got 0"):
        plots.pair_density([0.1], [0.1], num_bins=0)
    with pytest.raises(ValueError, match="Did you mean 'deep'"):
        plots.size_curve({"deep": DEEP}, reference="depe")
    with pytest.raises(ValueError, match="must increase"):
        plots.size_curve({"m": ([2, 1], [0.1, 0.1], [0, 0])})
    with pytest.raises(ValueError, match="equally many, got 2, 1 and 1"):
        plots.size_curve({"m": ([1, 2], [0.1], [0])})
    with pytest.raises(ValueError, match="must be numbers"):
        plots.size_curve({"m": ([1], [math.nan], [0])})
    with pytest.raises(ValueError, match="one metric, got accuracy, nll"):
        plots.size_curve({"a": DEEP, "b": DEEP._replace(metric="accuracy")})
