"""Joint likelihoods and correlations of the parts, against direct computation and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import polymode as pm
from polymode.metrics.classification import nll
from polymode.metrics.disentanglement import parts_correlation
from polymode.metrics.joint import dyadic_nll
from polymode.metrics.score import CLASSIFICATION, NotDefined, score_of
from polymode.prediction import CategoricalPrediction, MixturePrediction
from polymode.prediction.averages import Averages

from .made_up import draw


def test_joint_of_a_pair_is_the_mean_over_all_assignments_of_observations():
    """Two examples are one pair; of tau observations each of the 2^tau assignments is summed."""
    prediction, labels = draw(5, 2, 4)
    logs = prediction.log_probs[:, torch.arange(2), labels].numpy()
    tau, total = 4, 0.0
    for which in np.ndindex(*[2] * tau):
        total += np.log(np.mean(np.exp(logs[:, list(which)].sum(1)))) / 2**tau
    score = dyadic_nll(prediction, labels, tau)
    assert score.value == pytest.approx(-total / tau, rel=1e-12)
    assert score.n == 2 and score.standard_error is None


def test_joint_of_densities_is_that_of_their_products():
    stream = torch.Generator().manual_seed(0)
    loc = torch.randn(3, 2, 2, generator=stream, dtype=torch.float64)
    y = torch.randn(2, 2, generator=stream, dtype=torch.float64)
    logs = stats.norm(loc.numpy(), 0.7).logpdf(y.numpy()).sum(-1)
    pairs = [logs[:, 0] * k + logs[:, 1] * (3 - k) for k in range(4)]
    joint = [math.comb(3, k) / 8 * np.log(np.exp(p).mean()) for k, p in enumerate(pairs)]
    score = dyadic_nll(MixturePrediction(loc, 0.7), y, 3)
    assert score.value == pytest.approx(-sum(joint) / 3, rel=1e-12)


def test_one_observation_at_a_time_and_one_sample_give_the_nll():
    prediction, labels = draw(4, 60, 3)
    assert dyadic_nll(prediction, labels, 1).value == pytest.approx(nll(prediction, labels).value)
    alone = CategoricalPrediction(prediction.log_probs[:1])
    assert dyadic_nll(alone, labels).value == pytest.approx(nll(alone, labels).value)


def test_joint_tells_consistent_samples_from_an_unsure_network():
    """Both predict 1/2 for each of two classes: members that are sure know all once one is seen."""
    sure = torch.tensor([[0.999, 0.001], [0.001, 0.999]], dtype=torch.float64)
    members = CategoricalPrediction(sure.log()[:, None].expand(2, 40, 2))
    unsure = CategoricalPrediction.from_probs(torch.full((1, 40, 2), 0.5))
    labels = torch.zeros(40, dtype=torch.long)
    assert nll(members, labels).value == pytest.approx(nll(unsure, labels).value)
    assert dyadic_nll(unsure, labels).value == pytest.approx(math.log(2))
    expected = (math.log(2) - 10 * math.log(0.999)) / 10
    assert dyadic_nll(members, labels).value == pytest.approx(expected, rel=1e-6)


def test_joint_needs_samples_and_two_examples():
    prediction, labels = draw(3, 9, 3)
    assert dyadic_nll(prediction, labels).n == 8
    with pytest.raises(NotDefined, match="only averages are held"):
        score_of(CLASSIFICATION.get("dyadic_nll"), Averages([prediction]), labels)
    with pytest.raises(NotDefined, match=">= 2 examples"):
        dyadic_nll(prediction[:1], labels[:1])
    around = MixturePrediction(torch.zeros(2, 4, 1), 1.0, epistemic=0.5)
    with pytest.raises(NotDefined, match="no joint density"):
        dyadic_nll(around, torch.zeros(4, 1))


def test_parts_correlation_equals_scipy_with_ties():
    prediction, _ = draw(4, 200, 5)
    prediction = prediction[[*range(200), *range(50)]]
    parts = prediction.expected_entropy.numpy(), prediction.mutual_information.numpy()
    score = parts_correlation(prediction)
    assert score.value == pytest.approx(stats.spearmanr(*parts).statistic, abs=1e-12)
    stream = torch.Generator().manual_seed(3)
    loc, scale = torch.randn(4, 30, 2, generator=stream), torch.rand(4, 30, 2, generator=stream)
    density = MixturePrediction(loc.double(), 0.1 + scale.double())
    parts = (density.aleatoric_variance.sum(-1).numpy(), density.epistemic_variance.sum(-1).numpy())
    expected = stats.spearmanr(*parts).statistic
    assert parts_correlation(density).value == pytest.approx(expected, abs=1e-12)


def test_standard_error_of_a_correlation_is_its_spread():
    """2,000 draws of n = 40: the spread is known to 1.6 %, four of them are allowed, and as much as
    7 % for the formula's own error; false alarms: 1 in 16,000."""
    stream = torch.Generator().manual_seed(0)
    values, errors = [], []
    for _ in range(2000):
        noise = torch.rand(40, 1, generator=stream).double()
        gap = 0.5 * noise + torch.rand(40, 1, generator=stream).double()
        loc = torch.stack([gap, -gap])
        score = parts_correlation(MixturePrediction(loc, noise.expand(2, 40, 1) + 0.1))
        values.append(score.value)
        errors.append(score.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.13)


def test_a_constant_part_has_no_correlation():
    loc = torch.randn(3, 20, 1, generator=torch.Generator().manual_seed(1))
    with pytest.raises(NotDefined, match="aleatoric part is the same"):
        parts_correlation(MixturePrediction(loc, 0.3))
    with pytest.raises(NotDefined, match=">= 4 examples"):
        parts_correlation(MixturePrediction(loc[:, :3], loc[:, :3].abs() + 0.1))


def test_the_new_scores_are_evaluated_and_scored_again_from_what_is_kept():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(2))
    y = (x[:, 0] > 0).long()
    task = pm.Task(train=(x, y), test=(x, y), ood={"far": 5 * x}, likelihood="categorical")
    net = lambda: torch.nn.Linear(3, 2)  # noqa: E731
    post = pm.fit("deep_ensemble", net=net, task=task, num_modes=2, epochs=1, progress="silent")
    results = pm.evaluate(post, task)
    for name in ("dyadic_nll", "parts_correlation", "brier_reliability", "nll_resolution"):
        assert results["test", name].value == pytest.approx(results.score("test", name).value)
        assert results["test", name].standard_error is not None
    name = "scod_augrc_predictive_entropy"
    assert results["ood:far", name].value == results.score("ood:far", name).value
    averages = pm.evaluate(post, task, keep=False)
    assert "averages" in averages["test", "dyadic_nll"].note
    assert averages["ood:far", name].value == results["ood:far", name].value
