"""Selective classification with OOD inputs: a slow twin, closed forms, its standard error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polymode.metrics.scod import scod_augrc


def slow(inside, wrong, outside):
    scores = np.concatenate([inside, outside])
    losses = np.concatenate([wrong, np.ones(len(outside))])
    weights = np.repeat([0.5 / len(inside), 0.5 / len(outside)], [len(inside), len(outside)])
    total = 0.0
    for u, w in zip(scores, weights, strict=True):
        before = (scores < u) + 0.5 * (scores == u)
        total += w * (weights * losses * before).sum()
    return total


def made_up(m, n, seed=0, digits=1):
    rng = np.random.default_rng(seed)
    inside = rng.normal(size=m).round(digits)
    wrong = (rng.random(m) < 1 / (1 + np.exp(-inside))).astype(float)
    return inside, wrong, (rng.normal(size=n) + 1).round(digits)


@pytest.mark.parametrize("m, n", [(1, 1), (40, 7), (13, 90)])
def test_area_equals_its_definition_with_ties(m, n):
    arrays = made_up(m, n)
    score = scod_augrc(*map(torch.as_tensor, arrays))
    assert score.value == pytest.approx(slow(*arrays), rel=1e-12) and score.n == m + n


def test_constant_scores_and_the_best_order_have_their_closed_forms():
    wrong = torch.tensor([0.0] * 30 + [1.0] * 10)
    constant = scod_augrc(torch.zeros(40), wrong, torch.zeros(8))
    assert constant.value == pytest.approx(0.25 * 1.25)
    spread = 0.5 * 0.5 * wrong.double().std().item()  # of half the mean loss of half the inputs
    assert constant.standard_error == pytest.approx(spread / 40**0.5)
    best = scod_augrc(wrong, wrong, torch.ones(8))
    assert best.value == pytest.approx(1.25**2 / 8)


def test_standard_error_is_the_spread_over_draws():
    """1,000 draws: the spread is known to 2.2 %; 10 % allowed, false alarms 1 in 100,000."""
    scores = [
        scod_augrc(*map(torch.as_tensor, made_up(80, 50, seed, digits=6))) for seed in range(1000)
    ]
    errors = np.mean([score.standard_error for score in scores])
    assert errors == pytest.approx(np.std([score.value for score in scores]), rel=0.1)


def test_wrong_calls_are_refused():
    zeros = torch.zeros(3)
    with pytest.raises(ValueError, match="got \\(3,\\), \\(0,\\) and \\(3,\\)"):
        scod_augrc(zeros, zeros, torch.zeros(0))
    with pytest.raises(ValueError, match="1 NaN"):
        scod_augrc(torch.tensor([0.0, float("nan")]), torch.zeros(2), zeros)
