"""Scores of densities against scikit-learn, SciPy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import root_mean_squared_error

from polymode.metrics import regression as r
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(samples: int = 3, batch: int = 40, outputs: int = 2):
    stream = torch.Generator().manual_seed(0)
    loc = torch.randn(samples, batch, outputs, generator=stream, dtype=torch.float64)
    scale = 0.2 + torch.rand(samples, batch, outputs, generator=stream, dtype=torch.float64)
    y = torch.randn(batch, outputs, generator=stream, dtype=torch.float64)
    return MixturePrediction(loc, scale), y


def test_rmse_equals_scikit_learn():
    prediction, y = draw(outputs=1)
    expected = root_mean_squared_error(y, prediction.loc.mean(0))
    assert r.rmse(prediction, y).value == pytest.approx(expected, rel=1e-12)


def test_rmse_standard_error_matches_simulation():
    """Errors ~ N(0, 1), n = 200: the true s.e. of the RMSE is 1/sqrt(2 n) = 0.05. The mean of 400
    estimates of it has a relative error below 1 %, so 5 % off has a chance below 1e-6."""
    stream = torch.Generator().manual_seed(3)
    errors = []
    for _ in range(400):
        y = torch.randn(200, 1, generator=stream, dtype=torch.float64)
        errors.append(r.rmse(MixturePrediction(torch.zeros_like(y)[None], 1.0), y).standard_error)
    assert np.mean(errors) == pytest.approx(1 / math.sqrt(400), rel=0.05)


def test_perfect_prediction_has_rmse_zero():
    y = torch.ones(4, 1)
    score = r.rmse(MixturePrediction(y[None], 1.0), y)
    assert score.value == 0.0
    assert score.standard_error == 0.0


def test_nll_is_that_of_the_mixture_joint_over_outputs():
    prediction, y = draw()
    densities = stats.norm.pdf(y, prediction.loc, prediction.scale).prod(-1).mean(0)
    assert r.nll(prediction, y).value == pytest.approx(-np.log(densities).mean(), rel=1e-10)


def test_nll_is_not_moment_matched():
    """Members N(-5, .1), N(5, .1) at y = 5: log 2 more than the right member alone."""
    loc = torch.tensor([[[-5.0]], [[5.0]]], dtype=torch.float64)
    prediction = MixturePrediction(loc, torch.full_like(loc, 0.1))
    expected = math.log(2) - stats.norm.logpdf(5, 5, 0.1)
    assert r.nll(prediction, torch.tensor([[5.0]])).value == pytest.approx(expected, rel=1e-9)


def test_epistemic_share_by_hand():
    """Means -1 and 1 (variance 1), noise of variance 3: one quarter."""
    loc = torch.tensor([[[-1.0]], [[1.0]]], dtype=torch.float64)
    share = r.epistemic_share(MixturePrediction(loc, math.sqrt(3)))
    assert share.value == pytest.approx(0.25)
    with pytest.raises(ValueError, match="needs at least 2 samples"):
        r.epistemic_share(MixturePrediction(loc[:1], 1.0))


@pytest.mark.parametrize("metric", [r.rmse, r.nll])
def test_bad_input_is_refused(metric):
    prediction, y = draw()
    with pytest.raises(ValueError, match=r"39 target\(s\) for 40"):
        metric(prediction, y[:39])
    with pytest.raises(ValueError, match="must be finite"):
        metric(prediction, y * math.nan)
    with pytest.raises(ValueError, match=r"2 dimension\(s\), got 1"):
        metric(prediction, y[:, :1])
    with pytest.raises(ValueError, match="0 examples"):
        metric(prediction[:0], y[:0])
    with pytest.raises(ValueError, match="scores predicted densities, got a Categorical"):
        metric(CategoricalPrediction(torch.zeros(1, 4, 2).log_softmax(-1)), y[:4])
