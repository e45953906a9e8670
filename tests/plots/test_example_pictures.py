"""Single examples, in the order of their numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode import plots
from polymode.metrics.results import Kept
from polymode.prediction import CategoricalPrediction


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
