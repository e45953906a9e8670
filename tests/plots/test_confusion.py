"""Confusion matrices, against counts by hand."""

from __future__ import annotations

import numpy as np

from polymode import plots


def certain(classes: list[int], size: int = 3) -> np.ndarray:
    """Return probabilities (B, C) that name these classes."""
    return np.eye(size)[classes] * 0.9 + 0.1 / size


def test_counts_are_pooled_over_seeds(made):
    labels = np.array([0, 0, 1, 2])
    seeds = [
        made.results({"test": made.classes(certain(said), labels)}, seed=seed).replace(
            class_names=("ant", "bee", "cat")
        )
        for seed, said in enumerate(([0, 1, 1, 0], [0, 1, 1, 2]))
    ]
    display = plots.confusion(seeds)
    np.testing.assert_array_equal(display.data["count"], [[2, 2, 0], [0, 2, 0], [1, 0, 1]])
    assert display.data["accuracy"][0] == 5 / 8
    assert "n = 4, 2 seeds pooled" in display.shared
    assert display.own == "Most often: ant taken for bee (2 of 4); cat taken for ant (1 of 2)."


def test_a_method_without_mistakes_says_so(made):
    kept = made.classes(certain([0, 1, 2]), np.arange(3))
    assert "No example was taken for another" in plots.confusion(made.results({"test": kept})).own
