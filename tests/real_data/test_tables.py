"""Rows, columns, splits and known oddities of the UCI tables; skipped where they are not here."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from polymode.tasks.files import data_folder, find, load

# rows, features, splits, training and test rows of a split, rows that repeat an earlier one
FACTS = {
    "boston": (506, 13, 20, 455, 51, None),
    "concrete": (1030, 8, 20, 927, 103, 25),
    "energy": (768, 8, 20, 691, 77, None),
    "kin8nm": (8192, 8, 20, 7373, 819, None),
    "naval": (11934, 16, 20, 10741, 1193, None),
    "power": (9568, 4, 20, 8611, 957, 41),
    "protein": (45730, 9, 5, 41157, 4573, 1711),
    "wine": (1599, 11, 20, 1439, 160, 240),
    "yacht": (308, 6, 20, 277, 31, None),
}


@functools.cache
def uci() -> dict[str, np.ndarray]:
    if find("uci") is None:
        pytest.skip(f"uci is not in {data_folder()}; polymode data get uci")
    return load("uci")


@pytest.mark.parametrize("name", FACTS)
def test_rows_columns_and_splits(name):
    rows, features, splits, train, test, repeated = FACTS[name]
    x, y, standard, gap = (uci()[f"{name}_{key}"] for key in ("x", "y", "test", "gap_test"))
    assert x.shape == (rows, features) and y.shape == (rows,)
    assert np.isfinite(x).all() and np.isfinite(y).all()
    assert standard.shape == (splits, rows)
    assert set(standard.sum(1).tolist()) == {test}
    assert set((~standard).sum(1).tolist()) == {train}
    assert gap.shape == (features, rows)
    if repeated is not None:
        assert rows - len(np.unique(np.column_stack([x, y]), axis=0)) == repeated


@pytest.mark.parametrize("name", FACTS)
def test_a_gap_split_tests_on_the_middle_third_of_its_feature(name):
    """Between the training rows below and above, up to rows of equal value at the two ends."""
    x, gap = uci()[f"{name}_x"], uci()[f"{name}_gap_test"]
    for feature, test in enumerate(gap):
        assert abs(test.sum() - len(x) / 3) <= 3
        low, high = x[test, feature].min(), x[test, feature].max()
        inside = (x[:, feature] > low) & (x[:, feature] < high)
        assert not (inside & ~test).any()


def test_boston_splits_have_the_published_sizes():
    assert set(uci()["boston_gap_test"].sum(1).tolist()) == {168}


def test_two_features_of_naval_are_constant():
    """Their computed standard deviation need not be 0 exactly: rounding of the mean."""
    assert np.flatnonzero(np.ptp(uci()["naval_x"], axis=0) == 0).tolist() == [8, 11]


def test_the_target_of_wine_is_a_grade():
    assert set(np.unique(uci()["wine_y"]).tolist()) == {3, 4, 5, 6, 7, 8}
