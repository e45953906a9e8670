"""Isotonic regression against scikit-learn, histogram binning against a plain twin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from polymode.prediction import CategoricalPrediction
from polymode.recalibration import Recalibration, recalibrate


def draw(n: int, classes: int, seed: int, tied: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of the fit and of elsewhere, both (n, C), sixteenths if tied; labels of all."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, n, classes, generator=generator, dtype=torch.float64)
    probs = logits.softmax(-1)
    labels = torch.multinomial(logits[0].mul(2).softmax(-1), 1, generator=generator)[:, 0]
    labels[:classes] = torch.arange(classes)
    if tied:
        votes = torch.multinomial(probs.flatten(0, 1), 16, replacement=True, generator=generator)
        probs = torch.nn.functional.one_hot(votes, classes).double().mean(1).view(2, n, classes)
    probs = probs.log().exp()  # as a prediction keeps them
    return probs[0], probs[1], labels


def mapped(method: str, probs: Tensor, labels: Tensor, new: Tensor, **options) -> np.ndarray:
    map_ = recalibrate(CategoricalPrediction.from_probs(probs), labels, method, **options)
    return map_(CategoricalPrediction.from_probs(new)).mean.numpy()


def normalised(columns: list[np.ndarray], new: Tensor) -> np.ndarray:
    values = np.stack(columns, -1)
    total = values.sum(-1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1), new.numpy())


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 60), st.integers(2, 5), st.integers(0, 2**31), st.booleans())
def test_isotonic_against_scikit_learn(n, classes, seed, tied) -> None:
    probs, new, labels = draw(n, classes, seed, tied)
    columns = []
    for c in range(classes):
        oracle = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        oracle.fit(probs[:, c].numpy(), (labels == c).double().numpy())
        columns.append(oracle.predict(new[:, c].numpy()))
    ours = mapped("isotonic", probs, labels, new)
    np.testing.assert_allclose(ours, normalised(columns, new), atol=1e-9)


def test_isotonic_by_hand() -> None:
    """Two classes: 0 1 0 1 pools its middle, (0.1: 0) (0.2 ... 0.3: 1/2) (0.4: 1), linear between.

    The other class is the mirror image, so the two add up to 1 before normalisation.
    """
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1])
    prediction = CategoricalPrediction.from_probs(torch.stack([1 - p, p], 1))
    map_ = recalibrate(prediction, labels, "isotonic")
    assert map_.parameters["y"][1] == [0.0, 0.5, 0.5, 1.0]
    new = torch.tensor([0.05, 0.15, 0.25, 0.375, 0.9], dtype=torch.float64)
    got = map_(CategoricalPrediction.from_probs(torch.stack([1 - new, new], 1))).mean[:, 1]
    torch.testing.assert_close(got, torch.tensor([0, 0.25, 0.5, 0.875, 1]).double())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_isotonic_functions_rise(seed) -> None:
    probs, _, labels = draw(50, 3, seed, False)
    map_ = recalibrate(CategoricalPrediction.from_probs(probs), labels, "isotonic")
    for x, y in zip(map_.parameters["x"], map_.parameters["y"], strict=True):
        assert (np.diff(x) > 0).all() and (np.diff(y) >= 0).all()
        assert min(y) >= 0 and max(y) <= 1


@settings(max_examples=40, deadline=None)
@given(
    st.integers(5, 60), st.integers(2, 4), st.integers(0, 2**31), st.booleans(),
    st.integers(1, 8), st.sampled_from(["mass", "width"]),
)  # fmt: skip
def test_histogram_against_a_plain_twin(n, classes, seed, tied, num_bins, equal) -> None:
    probs, new, labels = draw(n, classes, seed, tied)
    columns = []
    for c in range(classes):
        p = np.sort(probs[:, c].numpy())
        if equal == "width":
            cuts = [k / num_bins for k in range(1, num_bins)]
        else:
            at = [k * n // num_bins for k in range(1, num_bins)]
            rises = [next((j for j in range(max(i, 1), n) if p[j] > p[j - 1]), None) for i in at]
            cuts = sorted({(p[j - 1] + p[j]) / 2 for j in rises if j})
        edges = [0.0, *cuts, np.inf]
        column = []
        for value in new[:, c].tolist():
            low, high = next(pair for pair in pairwise(edges) if pair[0] <= value < pair[1])
            inside = (probs[:, c] >= low) & (probs[:, c] < high)
            hits = (labels == c)[inside].double()
            column.append(hits.mean().item() if len(hits) else (low + min(high, 1.0)) / 2)
        columns.append(np.array(column))
    ours = mapped("histogram_binning", probs, labels, new, num_bins=num_bins, equal=equal)
    np.testing.assert_allclose(ours, normalised(columns, new), atol=1e-12)


def test_bins_of_equal_mass() -> None:
    """Untied, 60 examples in 4 bins are 15 each; one bin is the class frequency."""
    probs, _, labels = draw(60, 3, 0, False)
    prediction = CategoricalPrediction.from_probs(probs)
    map_ = recalibrate(prediction, labels, "histogram_binning", num_bins=4)
    for c, edges in enumerate(map_.parameters["edges"]):
        bins = torch.bucketize(probs[:, c].contiguous(), torch.tensor(edges).double(), right=True)
        assert bins.bincount().tolist() == [15] * 4
    once = recalibrate(prediction, labels, "histogram_binning", num_bins=1)(prediction).mean
    torch.testing.assert_close(once, (labels.bincount() / 60).double().expand(60, 3))


@pytest.mark.parametrize("method", ["isotonic", "histogram_binning"])
def test_a_row_of_zeros_stays_as_it_was(method) -> None:
    """Classes are seen at 0.6 only, and a row without a 0.6 has no class that was ever right."""
    probs = torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6], [0.34, 0.33, 0.33]])
    labels = torch.tensor([0, 1, 2])
    fit = CategoricalPrediction.from_probs(probs[:3].repeat(10, 1))
    map_ = recalibrate(fit, labels.repeat(10), method)
    torch.testing.assert_close(map_(fit).mean[:3], torch.eye(3))
    lowest = map_(CategoricalPrediction.from_probs(probs[3:])).mean
    if method == "histogram_binning":  # all three below the edge at 0.4
        torch.testing.assert_close(lowest, probs[3:])
    nothing = {"x": [[0.5]] * 3, "y": [[0.0]] * 3, "edges": [[]] * 3, "values": [[0.0]] * 3}
    zero = Recalibration(method, "mean", 3, 30, nothing)
    torch.testing.assert_close(zero(fit).mean, fit.mean)


@pytest.mark.parametrize("method", ["isotonic", "histogram_binning"])
def test_a_class_without_labels_keeps_its_probability(method) -> None:
    probs = torch.tensor([[0.6, 0.2, 0.2], [0.1, 0.7, 0.2]]).repeat(10, 1)
    prediction = CategoricalPrediction.from_probs(probs)
    with pytest.warns(UserWarning, match="1 of 3 classes have no label among 20 examples"):
        map_ = recalibrate(prediction, torch.tensor([0, 1]).repeat(10), method)
    torch.testing.assert_close(map_(prediction).mean[0], torch.tensor([1.0, 0.0, 0.2]) / 1.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_bins": 0}, "at least 1, got 0"), ({"num_bins": 2.0}, "2.0"), ({"equal": "x"}, "mass")],
)
def test_bad_options(options, message) -> None:
    probs, _, labels = draw(10, 3, 0, False)
    with pytest.raises(ValueError, match=message):
        recalibrate(CategoricalPrediction.from_probs(probs), labels, "histogram_binning", **options)
