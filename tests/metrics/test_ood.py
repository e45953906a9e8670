"""AUROC against scikit-learn, ties, and DeLong's standard error against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from polymode.metrics import ood
from polymode.metrics.score import OOD_CLASSIFICATION, OOD_REGRESSION
from polymode.prediction import CategoricalPrediction, MixturePrediction

coarse = st.lists(st.integers(0, 4), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(coarse, coarse)
def test_equals_scikit_learn_with_many_ties(inside, outside):
    truth = [0] * len(inside) + [1] * len(outside)
    expected = roc_auc_score(truth, inside + outside)
    got = ood.auroc(torch.tensor(inside), torch.tensor(outside)).value
    assert got == pytest.approx(expected, abs=1e-12)


def test_constant_scores_are_chance_and_separated_ones_perfect():
    ones = torch.ones(20)
    assert ood.auroc(ones, ones).value == 0.5
    assert ood.auroc(ones, 2 * ones)[:3] == (1.0, 40, 0.0)
    assert ood.auroc(2 * ones, ones).value == 0.0


def test_standard_error_matches_simulation():
    """Scores N(0, 1) and N(1, 1), 60 and 40 of them, 500 times. The spread of the estimates has a
    relative error of 1/sqrt(1000) = 3.2 %, so 15 % off has a chance below 1e-5."""
    stream = torch.Generator().manual_seed(5)
    scores = [
        ood.auroc(torch.randn(60, generator=stream), 1 + torch.randn(40, generator=stream))
        for _ in range(500)
    ]
    spread = np.std([score.value for score in scores], ddof=1)
    claimed = math.sqrt(np.mean([score.standard_error**2 for score in scores]))
    assert claimed == pytest.approx(spread, rel=0.15)


def test_one_example_has_no_standard_error():
    assert ood.auroc(torch.zeros(1), torch.ones(5)).standard_error is None


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        (torch.zeros(0), torch.ones(2), r"`inside` of auroc must be scores of shape \(n,\)"),
        (torch.zeros(2), torch.ones(0), "`outside`"),
        (torch.zeros(2, 2), torch.ones(2), "`inside`"),
        (torch.tensor([0.0, math.nan]), torch.ones(2), "1 NaN of 2"),
    ],
)
def test_bad_input_is_refused(inside, outside, message):
    with pytest.raises(ValueError, match=message):
        ood.auroc(inside, outside)


def test_direction_uncertain_is_ood():
    sure = CategoricalPrediction(torch.tensor([[[0.99, 0.01]] * 4] * 2).log())
    unsure = CategoricalPrediction(torch.tensor([[[0.9, 0.1]] * 4, [[0.1, 0.9]] * 4]).log())
    for name in OOD_CLASSIFICATION.names():
        assert OOD_CLASSIFICATION.get(name).value(sure, unsure).value == 1.0
    near = MixturePrediction(torch.zeros(2, 4, 1), 1.0)
    far = MixturePrediction(torch.tensor([[[-1.0]] * 4, [[1.0]] * 4]), 1.0)
    for name in OOD_REGRESSION.names():
        assert OOD_REGRESSION.get(name).value(near, far).value == 1.0
