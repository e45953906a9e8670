"""Scores of class probabilities against scikit-learn, closed forms and hand-worked tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss

from polymode.metrics import classification as c
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(samples: int, batch: int, classes: int, seed: int = 0):
    stream = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, batch, classes, generator=stream, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=stream)
    return CategoricalPrediction(logits.log_softmax(-1)), labels


def of(probs) -> CategoricalPrediction:
    """One sample with the given probabilities (B, C)."""
    return CategoricalPrediction(torch.tensor([probs], dtype=torch.float64).log())


def test_accuracy_and_nll_equal_scikit_learn():
    prediction, labels = draw(4, 300, 7)
    mean = prediction.probs.mean(0).numpy()
    assert c.accuracy(prediction, labels).value == accuracy_score(labels, mean.argmax(1))
    expected = log_loss(labels, mean, labels=range(7))
    assert c.nll(prediction, labels).value == pytest.approx(expected, rel=1e-12)


def test_standard_error_is_that_of_the_mean_with_ddof_1():
    prediction, labels = draw(3, 50, 4)
    score = c.nll(prediction, labels)
    assert score.standard_error == pytest.approx(np.std(score.each.numpy(), ddof=1) / math.sqrt(50))
    assert c.nll(prediction[0], labels[:1]).standard_error is None


def test_nll_is_of_the_mixture_and_finite_while_one_sample_gives_the_label_a_chance():
    probs = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float64)
    score = c.nll(CategoricalPrediction(probs.log()), torch.tensor([1]))
    assert score.value == pytest.approx(-math.log(0.25), rel=1e-12)


def test_nll_is_infinite_and_not_clipped_where_no_sample_does():
    assert c.nll(of([[1.0, 0.0]]), torch.tensor([1])).value == math.inf


def test_brier_by_hand():
    prediction = of([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    score = c.brier(prediction, torch.tensor([0, 0, 0]))
    np.testing.assert_allclose(score.each, [0.09 + 0.04 + 0.01, 0.0, 2.0], atol=1e-12)
    assert score.value == pytest.approx(2.14 / 3)


def test_brier_is_of_the_mean_and_below_the_mean_of_the_members():
    prediction, labels = draw(5, 100, 3)
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    of_mean = (prediction.probs.mean(0) - one_hot).square().sum(1).mean().item()
    of_members = (prediction.probs - one_hot).square().sum(2).mean().item()
    assert c.brier(prediction, labels).value == pytest.approx(of_mean, rel=1e-12)
    assert of_mean < of_members


def test_ece_by_hand_with_two_bins():
    """Bin (0, .5]: none; (.5, 1]: confidences .6 .8 1, hits 1 0 1: |2/3 - .8|."""
    prediction = of([[0.6, 0.4], [0.8, 0.2], [1.0, 0.0]])
    value = c.ece(prediction, torch.tensor([0, 1, 0]), num_bins=2).value
    assert value == pytest.approx(0.8 - 2 / 3, rel=1e-9)


def test_ece_counts_confidence_one():
    """All confident, half wrong: the whole of it lies in the last bin, and must not be lost."""
    prediction = of([[1.0, 0.0]] * 10)
    assert c.ece(prediction, torch.tensor([0, 1] * 5)).value == pytest.approx(0.5)


def test_ece_bins_are_closed_on_the_right():
    """0.5 is in (0, .5], 0.75 in (.5, 1]: the gaps +.5 and -.75 do not cancel."""
    prediction = of([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0]])
    value = c.ece(prediction, torch.tensor([0, 1]), num_bins=2).value
    assert value == pytest.approx((0.5 + 0.75) / 2)


def test_ece_of_a_calibrated_predictor_is_near_zero():
    """Labels drawn from the predicted probabilities. Mean |gap| of a bin is about sqrt(2 v / pi n);
    summed over 15 bins it is below 0.01 at n = 100,000; the bound 0.02 fails with p < 1e-6."""
    stream = torch.Generator().manual_seed(1)
    probs = torch.softmax(torch.randn(100_000, 4, generator=stream, dtype=torch.float64), 1)
    labels = torch.multinomial(probs, 1, generator=stream)[:, 0]
    assert c.ece(CategoricalPrediction(probs.log()[None]), labels).value < 0.02


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 30), st.integers(2, 5), st.integers(0, 10**6))
def test_ranges_and_jensen(samples, batch, classes, seed):
    prediction, labels = draw(samples, batch, classes, seed)
    assert 0 <= c.accuracy(prediction, labels).value <= 1
    assert 0 <= c.brier(prediction, labels).value <= 2
    assert 0 <= c.ece(prediction, labels).value <= 1 + 1e-12
    members = [CategoricalPrediction(one[None]) for one in prediction.log_probs]
    own = np.mean([c.nll(member, labels).value for member in members])
    assert c.nll(prediction, labels).value <= own + 1e-9


def test_description_of_differences_by_hand():
    """Two certain members that never agree: one nat-log of 2, and every pair disagrees."""
    log_probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64).log()
    prediction = CategoricalPrediction(log_probs)
    assert c.mutual_information(prediction).value == pytest.approx(math.log(2))
    assert c.disagreement(prediction).value == 1.0


@pytest.mark.parametrize("metric", [c.mutual_information, c.disagreement])
def test_one_sample_has_no_differences(metric):
    prediction, labels = draw(1, 5, 3)
    with pytest.raises(ValueError, match="needs at least 2 samples, got 1"):
        metric(prediction, labels)


@pytest.mark.parametrize("metric", [c.accuracy, c.nll, c.brier, c.ece])
def test_bad_input_is_refused(metric):
    prediction, labels = draw(2, 5, 3)
    with pytest.raises(ValueError, match=r"4 label\(s\) for 5 prediction"):
        metric(prediction, labels[:4])
    with pytest.raises(ValueError, match="must be integers"):
        metric(prediction, labels.float())
    with pytest.raises(ValueError, match="out of range"):
        metric(prediction, labels + 9)
    with pytest.raises(ValueError, match="0 examples"):
        metric(prediction[:0], labels[:0])
    with pytest.raises(ValueError, match="scores class probabilities, got a MixturePrediction"):
        metric(MixturePrediction(torch.zeros(1, 5, 1), 1.0), labels)


def test_number_of_bins_is_checked():
    prediction, labels = draw(2, 5, 3)
    with pytest.raises(
        ValueError, match="`num_bins` of ece must be an integer of at least 1, got 0"
    ):
        c.ece(prediction, labels, num_bins=0)
