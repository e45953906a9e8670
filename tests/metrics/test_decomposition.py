"""Decompositions of proper scores: identities, a slow twin, and their bias by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode.metrics import decomposition as d
from polymode.metrics.classification import brier, nll
from polymode.prediction import CategoricalPrediction

from .made_up import draw, of


def slow(prediction, labels, entropy, divergence):
    """The definition, group by group in numpy."""
    groups = d._group_index(prediction.classes, prediction.confidence).numpy()
    probs = prediction.mean.numpy()
    hot = np.eye(probs.shape[1])[labels.numpy()]
    overall, reliability, resolution = hot.mean(0), 0.0, 0.0
    for group in set(groups.tolist()):
        some = groups == group
        o, f = hot[some].mean(0), probs[some].mean(0)
        reliability += some.mean() * divergence(o, f)
        resolution += some.mean() * divergence(o, overall)
    return entropy(overall), resolution, reliability


def square(o, f):
    return ((o - f) ** 2).sum()


def kl(o, f):
    return sum(p * np.log(p / q) for p, q in zip(o, f, strict=True) if p > 0)


@pytest.mark.parametrize("samples, batch, classes", [(1, 400, 3), (4, 90, 5), (2, 7, 2)])
def test_parts_equal_their_definition_and_add_up(samples, batch, classes):
    prediction, labels = draw(samples, batch, classes)
    parts = d.decompose_brier(prediction, labels, debias=False)
    expected = slow(prediction, labels, lambda o: 1 - (o**2).sum(), square)
    got = parts.uncertainty, parts.resolution.value, parts.reliability.value
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    logs = d.decompose_log(prediction, labels)
    expected = slow(prediction, labels, lambda o: -sum(p * np.log(p) for p in o if p), kl)
    got = logs.uncertainty, logs.resolution.value, logs.reliability.value
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    for found, score in ((parts, brier), (logs, nll)):
        total = found.uncertainty - found.resolution.value + found.reliability.value
        assert total + found.within == pytest.approx(score(prediction, labels).value, rel=1e-12)


def test_forecasts_that_take_few_values_leave_nothing_within():
    """Five forecasts: each is a group, so the three parts are the whole score."""
    stream = torch.Generator().manual_seed(0)
    table = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.2, 0.8], [0.1, 0.9]])
    rows = torch.arange(5).repeat_interleave(60)
    labels = (torch.rand(300, generator=stream) < table[rows, 1]).long()
    for debias in (True, False):
        assert d.decompose_brier(of(table[rows]), labels, debias).within == pytest.approx(0)
    assert d.decompose_log(of(table[rows]), labels).within == pytest.approx(0)


def test_equal_forecasts_share_a_group():
    top, confidence = torch.zeros(120, dtype=torch.long), torch.full((120,), 0.5)
    assert set(d._group_index(top, confidence).tolist()) == {0}
    confidence = torch.linspace(0.5, 1, 120)
    assert d._group_index(top, confidence).bincount().tolist() == [24] * 5
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        d._group_index(top, confidence)[order], d._group_index(top, confidence[order])
    )


def test_the_correction_is_exact_in_expectation():
    """All labels of two groups of three calibrated examples, weighted by their probability: the
    mean reliability is 0. That of the resolution is R (1 + 1/(N − 1)) where the forecasts are the
    same each time; the correction is for forecasts that are drawn with the labels."""
    table = torch.tensor([[0.8, 0.2], [0.35, 0.65]], dtype=torch.float64)
    probs = table[[0, 0, 0, 1, 1, 1]]
    reliability = resolution = 0.0
    for labels in np.ndindex(*[2] * 6):
        chance = probs[range(6), labels].prod().item()
        parts = d.decompose_brier(of(probs), torch.tensor(labels))
        reliability += chance * parts.reliability.value
        resolution += chance * parts.resolution.value
    assert reliability == pytest.approx(0, abs=1e-12)
    exact = (table - table.mean(0)).square().sum(1).mean().item()
    assert resolution == pytest.approx(exact * 6 / 5)


def test_calibrated_forecasts_have_no_reliability_left_after_the_correction():
    """300 draws of 200 calibrated labels, forecasts of five values: the mean of the debiased
    reliability is 0 within four standard errors (false alarms 1 in 16,000), without the correction
    it is at least ten away; the standard error of one draw is its spread within 15 %."""
    stream = torch.Generator().manual_seed(1)
    table = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.45, 0.55], [0.2, 0.8], [0.1, 0.9]])
    probs = table[torch.arange(5).repeat_interleave(40)]
    debiased, plain, resolved, errors = [], [], [], []
    for _ in range(300):
        labels = (torch.rand(200, generator=stream) < probs[:, 1]).long()
        parts = d.decompose_brier(of(probs), labels)
        debiased.append(parts.reliability.value)
        resolved.append(parts.resolution.value)
        errors.append(parts.resolution.standard_error)
        plain.append(d.decompose_brier(of(probs), labels, debias=False).reliability.value)
    error = np.std(debiased) / 300**0.5
    assert abs(np.mean(debiased)) < 4 * error and np.mean(plain) > 10 * error
    law = table.double()
    exact = (law - law.mean(0)).square().sum(1).mean().item()
    assert abs(np.mean(resolved) - exact) < 4 * np.std(resolved) / 300**0.5
    assert np.mean(errors) == pytest.approx(np.std(resolved), rel=0.15)


def test_overconfidence_is_reliability_and_not_resolution():
    prediction, labels = draw(1, 500, 4)
    sharper = CategoricalPrediction((3 * prediction.log_probs).log_softmax(-1))
    assert (
        d.brier_reliability(sharper, labels).value > d.brier_reliability(prediction, labels).value
    )
    assert d.nll_reliability(sharper, labels).value > d.nll_reliability(prediction, labels).value
    assert abs(d.brier_resolution(prediction, labels).value) < 0.02  # labels are noise
