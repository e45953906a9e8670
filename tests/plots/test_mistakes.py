"""Confusion matrices and single examples, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode import plots
from polymode.metrics.results import Kept
from polymode.prediction import CategoricalPrediction


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


def examples(shape=(3, 1, 4, 4)) -> Kept:
    """Return a sure mistake, a sure success and an unsure success."""
    probs = torch.tensor([[0.95, 0.05], [0.9, 0.1], [0.45, 0.55]])
    inputs = torch.arange(3.0).view(3, 1, 1, 1).expand(shape) / 2
    return Kept(CategoricalPrediction.from_probs(probs), torch.tensor([1, 0, 1]), inputs)


def test_pictures_are_in_the_order_of_their_numbers(made):
    data = plots.example_pictures(made.results({"examples": examples()})).data
    np.testing.assert_array_equal(data["uncertain picture"][:, 0, 0, 0], [1.0, 0.5, 0.0])
    assert data["wrong true"].tolist() == ["1"] and data["wrong predicted"].tolist() == ["0"]
    assert data["wrong value"] == pytest.approx(0.95)


def test_what_cannot_be_drawn_is_refused(made):
    with pytest.raises(ValueError, match="keep no prediction of 'examples'"):
        plots.example_pictures(made.results({}))
    flat = examples()._replace(inputs=torch.ones(3, 5))
    with pytest.raises(ValueError, match="is for images"):
        plots.example_pictures(made.results({"examples": flat}))
    with pytest.raises(ValueError, match="`most` of example_pictures must be from 1 to 6, got 9"):
        plots.example_pictures(made.results({"examples": examples()}), most=9)
