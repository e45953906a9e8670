"""Predictions of classes against closed forms and the faults known from other libraries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polymode.likelihoods.kinds import Categorical
from polymode.prediction import CategoricalPrediction, Prediction, predict_from

from .made_up import categorical

shapes = st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(2, 5))
seeds = st.integers(0, 2**31)


def from_probs(*samples: list[float]) -> CategoricalPrediction:
    """Return one input's prediction from the probabilities of each sample."""
    return CategoricalPrediction(torch.tensor(samples).unsqueeze(1).log())


@given(shapes, seeds, st.floats(0.0, 50.0))
@settings(max_examples=100, deadline=None)
def test_identities_of_a_categorical_prediction(
    shape: tuple[int, int, int], seed: int, sharpness: float
) -> None:
    pred = categorical(shape, seed, sharpness)
    samples, batch, classes = shape
    probs = pred.probs
    close: Any = dict(rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(pred.mean, probs.mean(0), **close)
    torch.testing.assert_close(pred.mean.sum(-1), torch.ones(batch, dtype=probs.dtype), **close)
    torch.testing.assert_close(pred.variance, pred.mean * (1 - pred.mean), **close)
    assert torch.equal(pred.variance, pred.aleatoric_variance + pred.epistemic_variance)
    entropies = torch.distributions.Categorical(probs=probs).entropy() if batch else probs[..., 0]
    torch.testing.assert_close(pred.expected_entropy, entropies.mean(0), rtol=1e-6, atol=1e-9)
    difference = pred.predictive_entropy - pred.expected_entropy
    torch.testing.assert_close(pred.mutual_information, difference, **close)
    assert (pred.mutual_information >= 0).all()
    assert (pred.mutual_information <= math.log(min(samples, classes)) + 1e-9).all()
    assert torch.equal(pred.confidence, pred.mean.gather(1, pred.classes[:, None])[:, 0])


def test_one_sample_has_no_epistemic_part_and_no_disagreement() -> None:
    pred = categorical((1, 4, 3))
    assert torch.equal(pred.mean, pred.probs[0])
    assert pred.mutual_information.tolist() == [0.0] * 4
    assert (pred.epistemic_variance == 0).all()
    with pytest.raises(ValueError, match="needs at least 2 samples, got 1"):
        _ = pred.disagreement


def test_entropy_of_the_mean_is_not_the_mean_of_the_entropies() -> None:
    """Two certain members that contradict each other: all of the uncertainty is epistemic."""
    pred = from_probs([1.0, 0.0], [0.0, 1.0])
    assert pred.predictive_entropy.item() == pytest.approx(math.log(2))
    assert pred.expected_entropy.item() == 0.0
    assert pred.mutual_information.item() == pytest.approx(math.log(2))
    assert pred.epistemic_variance.tolist() == [[0.25, 0.25]]
    assert pred.aleatoric_variance.tolist() == [[0.0, 0.0]]
    undecided = from_probs([0.5, 0.5], [0.5, 0.5])
    assert undecided.expected_entropy.item() == pytest.approx(math.log(2))
    assert undecided.mutual_information.item() == pytest.approx(0.0, abs=1e-6)


def test_zero_probabilities_give_minus_infinity_only_if_all_samples_agree() -> None:
    pred = from_probs([1.0, 0.0, 0.0], [0.25, 0.75, 0.0])
    found = torch.cat([pred.log_prob(torch.tensor([label])) for label in range(3)])
    expected = torch.tensor([math.log(0.625), math.log(0.375), -math.inf])
    torch.testing.assert_close(found, expected)
    for quantity in (pred.predictive_entropy, pred.expected_entropy, pred.variance):
        assert quantity.isfinite().all()


def test_log_probabilities_below_the_float_range_are_kept() -> None:
    """exp(-200) is zero in float32; its logarithm must not become -inf."""
    logits = torch.tensor([[[200.0, 0.0]], [[210.0, 0.0]]])
    pred = CategoricalPrediction(logits.log_softmax(-1))
    expected = -200.0 - math.log(2.0) + math.log1p(math.exp(-10.0))
    assert pred.log_prob(torch.tensor([1])).item() == pytest.approx(expected, rel=1e-6)


@given(st.integers(2, 7), st.integers(2, 4), seeds)
@settings(max_examples=50, deadline=None)
def test_disagreement_counts_pairs(samples: int, classes: int, seed: int) -> None:
    pred = categorical((samples, 3, classes), seed)
    votes = pred.log_probs.argmax(-1)
    pairs = [(i, j) for i in range(samples) for j in range(i)]
    counted = torch.stack([(votes[i] != votes[j]).double() for i, j in pairs]).mean(0)
    torch.testing.assert_close(pred.disagreement, counted)


def test_entropies_have_gradients_at_zero_probability() -> None:
    logits = torch.tensor([[[0.0, 0.0, -math.inf]], [[1.0, 0.0, -math.inf]]], requires_grad=True)
    pred = CategoricalPrediction(logits.log_softmax(-1))
    assert pred.expected_entropy.isfinite().all()
    (grad,) = torch.autograd.grad(pred.expected_entropy.sum(), logits)
    assert grad[..., :2].isfinite().all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3, 1]), r"in 0\.\.2, got 3 in row 1"),
        (torch.tensor([0.0, 1.0, 1.0]), "integers"),
        (torch.eye(3), "argmax"),
        (torch.tensor([0]), r"1 label\(s\) for 3 input\(s\)"),
    ],
)
def test_wrong_labels_are_refused(labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        categorical((2, 3, 3)).log_prob(labels)


def test_labels_may_be_of_any_integer_type() -> None:
    pred = categorical((2, 3, 3))
    expected = pred.log_prob(torch.tensor([0, 2, 1]))
    for labels in (torch.tensor([0, 2, 1], dtype=torch.uint8), np.array([0, 2, 1])):
        torch.testing.assert_close(pred.log_prob(labels), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        (torch.randn(2, 3, 4), "normalised"),
        (torch.rand(2, 3, 4).softmax(-1), "normalised"),
        (torch.full((2, 3, 4), 0.2).log(), "add up to 0.8"),
        (torch.full((2, 3, 4), 0.3).log(), "add up to 1.2"),
        (torch.full((2, 3, 4), math.nan), "nan"),
        (torch.zeros(3, 4), r"axes \(samples, batch, outputs\)"),
        (torch.zeros(2, 3, 1), ">= 2 output"),
        (torch.zeros(0, 3, 2), ">= 1 sample"),
        (torch.zeros(2, 3, 4, dtype=torch.long), "floats"),
        ([[[0.0]]], "floats"),
    ],
)
def test_what_are_not_log_probabilities_is_refused(log_probs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CategoricalPrediction(log_probs)


def test_classes_have_no_quantiles() -> None:
    pred = categorical((2, 3, 3))
    with pytest.raises(ValueError, match="use `mean`"):
        pred.quantile(0.5)
    with pytest.raises(ValueError, match="use `mean`"):
        pred.interval(0.9)


def test_probabilities_and_logits_give_the_same_prediction() -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    by_logits = CategoricalPrediction.from_logits(logits)
    by_probs = CategoricalPrediction.from_probs(logits.softmax(-1))
    torch.testing.assert_close(by_logits.mean, by_probs.mean)
    alone = CategoricalPrediction.from_logits(logits[0])
    assert alone.log_probs.shape == (1, 4, 5)


def test_energy_is_minus_the_mean_log_sum_exp_and_survives_storage() -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    prediction = CategoricalPrediction.from_logits(logits)
    expected = -logits.exp().sum(-1).log().mean(0)
    torch.testing.assert_close(prediction.energy, expected)
    torch.testing.assert_close(Prediction.from_arrays(*prediction.to_arrays()).energy, expected)
    torch.testing.assert_close(prediction[1:3].energy, expected[1:3])
    parts = [prediction[:1], prediction[1:]]
    torch.testing.assert_close(Prediction.cat(parts).energy, expected)
    outputs = Categorical().components(logits, {})
    torch.testing.assert_close(predict_from(outputs).energy, expected)
    with pytest.raises(ValueError, match="needs the network's outputs"):
        _ = CategoricalPrediction(prediction.log_probs).energy
    with pytest.raises(ValueError, match="of the same kind"):
        Prediction.cat([prediction, CategoricalPrediction(prediction.log_probs)])


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.6]], "add up to 1, but do not at sample 0, input 0"),
        ([[0.5, 0.5], [0.5, 0.4]], "add up to 1, but do not at sample 0, input 1"),
        ([[3.0, -1.0]], "use `from_logits`"),
        ([[math.nan, 1.0]], "nan if a sample diverged"),
        ([[1.0]], "2 output"),
        ([0.5, 0.5], "axes"),
        ([[1, 0]], "floats"),
    ],
)
def test_what_is_not_a_probability_is_refused(probs, message) -> None:
    with pytest.raises(ValueError, match=message):
        CategoricalPrediction.from_probs(probs)


def test_infinite_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        CategoricalPrediction.from_logits([[math.inf, 0.0]])


def test_mean_in_the_log_keeps_what_an_exponential_loses() -> None:
    """exp(-110) is zero in float32; log-sum-exp over the samples is not."""
    log_probs = torch.tensor([[[0.0, -110.0, -90.0]], [[0.0, -120.0, -math.inf]]])
    prediction = CategoricalPrediction(log_probs)
    expected = log_probs.double().logsumexp(0) - math.log(2)
    torch.testing.assert_close(prediction.log_mean.double(), expected, atol=2e-7, rtol=1e-6)
    alone = CategoricalPrediction(torch.tensor([[[-1e-9, -20.7232658]]]))
    assert alone.log_mean[0, 0].item() == pytest.approx(-1e-9)  # not rounded to 0


def test_the_mean_in_the_log_has_a_gradient_where_all_samples_say_zero() -> None:
    logits = torch.tensor([[[0.0, -200.0]], [[0.0, -300.0]]], requires_grad=True)
    CategoricalPrediction(logits.log_softmax(-1)).log_mean.sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_one_pass_in_blocks_is_the_same_as_all_at_once(monkeypatch) -> None:
    prediction = categorical((3, 17, 4))
    monkeypatch.setattr("polymode.prediction.categorical._BLOCK", 24)  # two inputs at a time
    parts = CategoricalPrediction(prediction.log_probs)
    for name in ("mean", "expected_entropy", "epistemic_variance", "aleatoric_variance"):
        torch.testing.assert_close(getattr(parts, name), getattr(prediction, name))
