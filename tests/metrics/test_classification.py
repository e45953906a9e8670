"""Scores of class probabilities against scikit-learn, closed forms and hand-worked tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, top_k_accuracy_score

from polymode.metrics import classification as c
from polymode.metrics.score import CLASSIFICATION, NotDefined
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.recalibration.temperature import fit_temperature

from .made_up import draw, of

SCORES = [c.accuracy, c.nll, c.brier, c.calibrated_nll, c.top_k]
DESCRIPTIONS = [c.predictive_entropy, c.expected_entropy, c.mutual_information, c.disagreement]


# --- accuracy, top-k, NLL, Brier ----------------------------------------------------------------


def test_accuracy_and_nll_equal_scikit_learn():
    prediction, labels = draw(4, 300, 7)
    mean = prediction.probs.mean(0).numpy()
    assert c.accuracy(prediction, labels).value == accuracy_score(labels, mean.argmax(1))
    expected = log_loss(labels, mean, labels=range(7))
    assert c.nll(prediction, labels).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_top_k_equals_scikit_learn_without_ties(k):
    prediction, labels = draw(4, 300, 7)
    mean = prediction.probs.mean(0).numpy()
    expected = top_k_accuracy_score(labels, mean, k=k, labels=range(7))
    assert c.top_k(prediction, labels, k).value == pytest.approx(expected, rel=1e-12)


def test_top_1_is_accuracy_without_ties():
    prediction, labels = draw(3, 200, 6)
    np.testing.assert_array_equal(
        c.top_k(prediction, labels, 1).each, c.accuracy(prediction, labels).each
    )


def test_top_k_shares_the_places_among_ties():
    """Probabilities .4 .2 .2 .2: for k = 2 one place is left for three classes, for k = 3 two."""
    prediction = of([[0.4, 0.2, 0.2, 0.2]] * 4)
    labels = torch.arange(4)
    np.testing.assert_allclose(c.top_k(prediction, labels, 2).each, [1, 1 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(c.top_k(prediction, labels, 3).each, [1, 2 / 3, 2 / 3, 2 / 3])


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_of_a_constant_predictor_is_chance(k):
    """It is 1 where ties are broken in favour of the label, and 0 or 1 by class index."""
    prediction = of([[0.125] * 8] * 3)
    score = c.top_k(prediction, torch.tensor([0, 4, 7]), k)
    assert score.value == pytest.approx(k / 8, rel=1e-12)


def test_top_5_needs_more_than_five_classes():
    prediction, labels = draw(2, 10, 5)
    with pytest.raises(NotDefined, match="needs more than 5 classes, got 5"):
        c.top_k(prediction, labels)
    with pytest.raises(ValueError, match="`k` of top_k must be an integer of at least 1, got 0"):
        c.top_k(prediction, labels, 0)


def test_standard_error_is_that_of_the_mean_with_ddof_1():
    prediction, labels = draw(3, 50, 4)
    score = c.nll(prediction, labels)
    assert score.standard_error == pytest.approx(np.std(score.each.numpy(), ddof=1) / math.sqrt(50))
    assert c.nll(prediction[0], labels[:1]).standard_error is None


def test_nll_is_of_the_mixture_and_finite_while_one_sample_gives_the_label_a_chance():
    probs = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]], dtype=torch.float64)
    score = c.nll(CategoricalPrediction(probs.log()), torch.tensor([1]))
    assert score.value == pytest.approx(-math.log(0.25), rel=1e-12)


def test_nll_is_finite_where_no_sample_does_and_nothing_else_is_clipped():
    least = -math.log(5e-324)
    assert c.nll(of([[1.0, 0.0]]), torch.tensor([1])).value == pytest.approx(least)
    both = c.nll(of([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([1, 0]))
    assert both.value == pytest.approx((least + math.log(2)) / 2)
    assert both.standard_error == pytest.approx((least - math.log(2)) / 2)
    far = CategoricalPrediction(torch.tensor([[[0.0, -2000.0]]]))
    assert c.nll(far, torch.tensor([1])).value == 2000.0


def test_nll_is_the_mean_of_logs_and_not_the_log_of_the_mean():
    """Label probabilities .9 and .1: 1.204; the log of their mean would be log 2 = 0.693."""
    value = c.nll(of([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1])).value
    assert value == pytest.approx(-(math.log(0.9) + math.log(0.1)) / 2, rel=1e-12)


def test_brier_by_hand():
    prediction = of([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    score = c.brier(prediction, torch.tensor([0, 0, 0]))
    np.testing.assert_allclose(score.each, [0.09 + 0.04 + 0.01, 0.0, 2.0], atol=1e-12)
    assert score.value == pytest.approx(2.14 / 3)


def test_brier_of_two_classes_is_twice_that_of_scikit_learn():
    prediction, labels = draw(3, 100, 2)
    half = brier_score_loss(labels, prediction.mean[:, 1])
    assert c.brier(prediction, labels).value == pytest.approx(2 * half, rel=1e-12)


def test_brier_is_of_the_mean_and_below_the_mean_of_the_members():
    prediction, labels = draw(5, 100, 3)
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    of_mean = (prediction.probs.mean(0) - one_hot).square().sum(1).mean().item()
    of_members = (prediction.probs - one_hot).square().sum(2).mean().item()
    assert c.brier(prediction, labels).value == pytest.approx(of_mean, rel=1e-12)
    assert of_mean < of_members


# --- calibrated NLL -----------------------------------------------------------------------------


def test_calibrated_nll_by_a_plain_twin():
    """Every example is scored once, at the temperature that was fitted on the half without it."""
    prediction, labels = draw(3, 41, 4)
    score = c.calibrated_nll(prediction, labels)
    logs = prediction.log_mean
    temperatures = set()
    for left_out in range(41):
        found = []
        for half in _halves(41):
            if left_out not in half:
                found.append(fit_temperature(logs[half], labels[half]))
        assert len(found) == 1
        tempered = (logs[left_out] / found[0]).log_softmax(-1)
        assert score.each[left_out].item() == pytest.approx(-tempered[labels[left_out]].item())
        temperatures.add(found[0])
    assert len(temperatures) == 2
    assert score.value == pytest.approx(score.each.mean().item(), rel=1e-12)


def _halves(size: int, seed: int = 0) -> list[list[int]]:
    from polymode.core.rng import generator

    order = torch.randperm(size, generator=generator(seed, "calibrated_nll")).tolist()
    return [order[: (size + 1) // 2], order[(size + 1) // 2 :]]


def test_calibrated_nll_does_not_depend_on_a_temperature():
    """p and p^3 / sum p^3 are one predictor to it, as no bound is in the way: labels follow p."""
    prediction, _ = draw(1, 200, 5)
    labels = torch.multinomial(prediction.mean, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    sharper = CategoricalPrediction((3 * prediction.log_probs).log_softmax(-1))
    one, other = (c.calibrated_nll(each, labels).value for each in (prediction, sharper))
    assert one == pytest.approx(other, rel=1e-9)
    assert c.nll(sharper, labels).value > c.nll(prediction, labels).value + 0.1


def test_calibrated_nll_mends_overconfidence_and_costs_the_calibrated_little():
    """Labels drawn from p; p and p^2 / sum p^2 predicted. With standard normal z1, z2 for the fits
    on the two halves of n = 10,000, the cost of fitting is (z1^2 + z2^2 + 4 z1 z2) / (4 n) nats;
    the bound 2e-3 needs z1^2 + z2^2 > 26, which has probability 2e-6."""
    stream = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(20_000, 4, generator=stream, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=stream)[:, 0]
    right = CategoricalPrediction(logits.log_softmax(1)[None])
    sure = CategoricalPrediction((2 * logits).log_softmax(1)[None])
    best = c.nll(right, labels).value
    assert abs(c.calibrated_nll(right, labels).value - best) < 2e-3
    assert abs(c.calibrated_nll(sure, labels).value - best) < 2e-3
    assert c.nll(sure, labels).value > best + 0.1


def test_calibrated_nll_is_reproducible_and_has_a_seed():
    prediction, labels = draw(2, 30, 3)
    torch.manual_seed(1)
    first = c.calibrated_nll(prediction, labels).value
    torch.manual_seed(2)
    assert c.calibrated_nll(prediction, labels).value == first
    assert c.calibrated_nll(prediction, labels, seed=1).value != first


def test_calibrated_nll_with_impossible_labels():
    """A label of probability 0 in all samples counts 745 nats; in one of two, far less."""
    probs = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.2, 0.5, 0.3]] * 4)
    labels = torch.tensor([0, 1, 1] * 4)
    alone = CategoricalPrediction.from_probs(probs)
    assert 745 / len(labels) < c.calibrated_nll(alone, labels).value < math.inf
    mixed = CategoricalPrediction.from_probs(torch.stack([probs, torch.full_like(probs, 1 / 3)]))
    assert math.isfinite(c.calibrated_nll(mixed, labels).value)


def test_calibrated_nll_needs_two_examples():
    prediction, labels = draw(2, 2, 3)
    assert c.calibrated_nll(prediction, labels).n == 2
    with pytest.raises(NotDefined, match="needs >= 2 examples"):
        c.calibrated_nll(prediction[0], labels[:1])


# --- descriptions -------------------------------------------------------------------------------


def test_description_of_differences_by_hand():
    """Two certain members that never agree: one nat-log of 2, and every pair disagrees."""
    log_probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64).log()
    prediction = CategoricalPrediction(log_probs)
    assert c.predictive_entropy(prediction).value == pytest.approx(math.log(2))
    assert c.expected_entropy(prediction).value == 0.0
    assert c.mutual_information(prediction).value == pytest.approx(math.log(2))
    assert c.disagreement(prediction).value == 1.0


def test_entropies_of_one_uniform_sample():
    prediction = of([[0.25] * 4] * 3)
    for metric in (c.predictive_entropy, c.expected_entropy):
        assert metric(prediction).value == pytest.approx(math.log(4), rel=1e-12)
        assert metric(prediction).n == 3


@pytest.mark.parametrize("metric", [c.mutual_information, c.disagreement])
def test_one_sample_has_no_differences(metric):
    prediction, labels = draw(1, 5, 3)
    with pytest.raises(ValueError, match="needs at least 2 samples, got 1"):
        metric(prediction, labels)


# --- all ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 30), st.integers(2, 5), st.integers(0, 10**6))
def test_ranges_and_jensen(samples, batch, classes, seed):
    prediction, labels = draw(samples, batch, classes, seed)
    assert 0 <= c.accuracy(prediction, labels).value <= 1
    assert 0 <= c.brier(prediction, labels).value <= 2
    assert c.accuracy(prediction, labels).value <= c.top_k(prediction, labels, 1).value + 1e-12
    assert c.expected_entropy(prediction).value <= c.predictive_entropy(prediction).value + 1e-12
    assert c.predictive_entropy(prediction).value <= math.log(classes) + 1e-12
    members = [CategoricalPrediction(one[None]) for one in prediction.log_probs]
    own = np.mean([c.nll(member, labels).value for member in members])
    assert c.nll(prediction, labels).value <= own + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 30), st.integers(6, 9), st.integers(0, 10**6))
def test_order_of_examples_and_of_classes_does_not_matter(batch, classes, seed):
    """Of examples, the halves of `calibrated_nll` do depend on it."""
    prediction, labels = draw(3, batch, classes, seed)
    rows, columns = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    order, names = (
        torch.from_numpy(r.permutation(n)) for r, n in ((rows, batch), (columns, classes))
    )
    shuffled = CategoricalPrediction(prediction.log_probs[:, order])
    renamed = CategoricalPrediction(prediction.log_probs[:, :, names])
    for metric in [*SCORES, *DESCRIPTIONS]:
        value = metric(prediction, labels).value
        assert metric(renamed, names.argsort()[labels]).value == pytest.approx(value, rel=1e-9)
        if metric is not c.calibrated_nll:
            assert metric(shuffled, labels[order]).value == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("metric", SCORES)
def test_bad_input_is_refused(metric):
    prediction, labels = draw(2, 5, 6)
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


@pytest.mark.parametrize("metric", DESCRIPTIONS)
def test_descriptions_refuse_what_has_no_classes(metric):
    with pytest.raises(ValueError, match="scores class probabilities, got a MixturePrediction"):
        metric(MixturePrediction(torch.zeros(2, 5, 1), 1.0))
    with pytest.raises(ValueError, match="0 examples"):
        metric(draw(2, 0, 3)[0])


@pytest.mark.parametrize("metric", SCORES)
def test_labels_of_one_class_and_ties_throughout_are_scored(metric):
    prediction = of([[0.125] * 8] * 6)
    score = metric(prediction, torch.zeros(6, dtype=torch.int64))
    expected = {
        c.accuracy: 1.0,
        c.top_k: 5 / 8,
        c.nll: math.log(8),
        c.calibrated_nll: math.log(8),
        c.brier: (7 / 8) ** 2 + 7 / 64,
    }
    assert score.value == pytest.approx(expected[metric], rel=1e-12)


def test_gradients_are_not_kept_in_scores():
    logits = torch.randn(2, 9, 7, requires_grad=True)
    prediction = CategoricalPrediction(logits.log_softmax(-1))
    for metric in (c.top_k, c.brier, c.calibrated_nll):
        assert not metric(prediction, torch.zeros(9, dtype=torch.int64)).each.requires_grad


def test_only_what_judges_has_a_direction():
    for name in ("predictive_entropy", "expected_entropy", "mutual_information", "disagreement"):
        assert CLASSIFICATION.get(name).metadata["direction"] == ""
    for name in ("nll", "brier", "calibrated_nll"):
        assert CLASSIFICATION.get(name).metadata["direction"] == "down"
    assert CLASSIFICATION.get("top_5_accuracy").value is c.top_k
