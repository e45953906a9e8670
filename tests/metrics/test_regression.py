"""Scores of densities against scikit-learn, SciPy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import root_mean_squared_error

from polymode.metrics import regression as r
from polymode.metrics.score import OOD_REGRESSION, REGRESSION, NotDefined, score_of
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(samples: int = 3, batch: int = 40, outputs: int = 2, df: float | None = None, seed=0):
    stream = torch.Generator().manual_seed(seed)
    loc = torch.randn(samples, batch, outputs, generator=stream, dtype=torch.float64)
    scale = 0.2 + torch.rand(samples, batch, outputs, generator=stream, dtype=torch.float64)
    y = torch.randn(batch, outputs, generator=stream, dtype=torch.float64)
    return MixturePrediction(loc, scale, df), y


def far_apart() -> MixturePrediction:
    """Members N(-5, .1) and N(5, .1)."""
    loc = torch.tensor([[[-5.0]], [[5.0]]], dtype=torch.float64)
    return MixturePrediction(loc, 0.1)


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
    expected = math.log(2) - stats.norm.logpdf(5, 5, 0.1)
    value = r.nll(far_apart(), torch.tensor([[5.0]])).value
    assert value == pytest.approx(expected, rel=1e-9)


def test_moment_matched_nll_has_the_variance_of_the_mixture():
    """The same members: one Gaussian of standard deviation sqrt(25.01), not of 0.1."""
    for y in (5.0, 0.0):
        value = r.nll_moment_matched(far_apart(), torch.tensor([[y]])).value
        assert value == pytest.approx(-stats.norm.logpdf(y, 0, math.sqrt(25.01)), rel=1e-12)


def test_moment_matched_nll_equals_scipy():
    for df in (None, 4.0):
        prediction, y = draw(df=df)
        factor = 1.0 if df is None else df / (df - 2)
        variance = (factor * prediction.scale**2).mean(0) + prediction.loc.var(0, correction=0)
        logs = stats.norm.logpdf(y, prediction.loc.mean(0), variance.sqrt()).sum(1)
        score = r.nll_moment_matched(prediction, y)
        np.testing.assert_allclose(score.each, -logs, rtol=1e-12)
        assert score.value == pytest.approx(-logs.mean(), rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 3), st.integers(0, 10**6))
def test_both_nlls_are_one_for_one_gaussian(batch, outputs, seed):
    prediction, y = draw(1, batch, outputs, seed=seed)
    expected = pytest.approx(r.nll(prediction, y).value, rel=1e-9, abs=1e-9)
    assert r.nll_moment_matched(prediction, y).value == expected


def test_sharpness_is_the_root_of_the_mean_variance():
    """Variances 25.01, of the two members far apart; and 1 and 9 of two examples: sqrt(5)."""
    score = r.sharpness(far_apart())
    assert score.value == pytest.approx(math.sqrt(25.01), rel=1e-12)
    assert score.standard_error is None
    scales = torch.tensor([[[1.0], [3.0]]])
    score = r.sharpness(MixturePrediction(torch.zeros(1, 2, 1), scales))
    assert score.value == pytest.approx(math.sqrt(5))
    assert score.standard_error == pytest.approx(4 / (2 * math.sqrt(5)))  # s.e. of mean: 4


def test_sharpness_of_the_truth_is_the_rmse():
    """Targets drawn from a mixture: E (y - mean)^2 is the mean variance, though scales differ much.
    The RMSE has a relative standard error of 0.5 % at n = 40,000: 3 % off has p < 1e-8."""
    stream = torch.Generator().manual_seed(5)
    loc = torch.randn(3, 40_000, 1, generator=stream, dtype=torch.float64)
    scale = torch.randn(3, 40_000, 1, generator=stream, dtype=torch.float64).exp().clamp(max=3)
    which = torch.randint(3, (1, 40_000, 1), generator=stream)
    noise = torch.randn(40_000, 1, generator=stream, dtype=torch.float64)
    y = loc.gather(0, which)[0] + scale.gather(0, which)[0] * noise
    prediction = MixturePrediction(loc, scale)
    assert r.rmse(prediction, y).value == pytest.approx(r.sharpness(prediction).value, rel=0.03)


def test_epistemic_std_by_hand():
    """Members at ±1 and at ±3 around their mean: variances 1 and 9, mean 5."""
    loc = torch.tensor([[[1.0], [3.0]], [[-1.0], [-3.0]]])
    assert r.epistemic_std(MixturePrediction(loc, 0.5)).value == pytest.approx(math.sqrt(5))
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        r.epistemic_std(MixturePrediction(loc[:1], 1.0))


def test_a_share_of_one_density_is_epistemic():
    """N(0, 2²) with a quarter of the variance from the weights: a standard deviation of 1."""
    alone = MixturePrediction(torch.zeros(1, 3, 1), 2.0, epistemic=0.25)
    assert r.epistemic_std(alone).value == pytest.approx(1.0)
    assert r.epistemic_share(alone).value == pytest.approx(0.25)
    assert score_of(REGRESSION.get("epistemic_share"), alone, None).value == pytest.approx(0.25)
    with pytest.raises(NotDefined, match="needs ≥ 2 samples"):
        score_of(REGRESSION.get("epistemic_share"), MixturePrediction(alone.loc, 2.0), None)
    far = MixturePrediction(torch.zeros(1, 3, 1), 2.0, epistemic=0.5)
    auroc = OOD_REGRESSION.get("auroc_epistemic_variance")
    assert score_of(auroc, alone, far).value == 1.0


def test_epistemic_share_by_hand():
    """Means -1 and 1 (variance 1), noise of variance 3: one quarter."""
    loc = torch.tensor([[[-1.0]], [[1.0]]], dtype=torch.float64)
    share = r.epistemic_share(MixturePrediction(loc, math.sqrt(3)))
    assert share.value == pytest.approx(0.25)
    with pytest.raises(ValueError, match="needs at least 2 samples"):
        r.epistemic_share(MixturePrediction(loc[:1], 1.0))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=2),
    st.sampled_from([None, 3.0]),
    st.integers(0, 10**6),
)
def test_standardised_numbers(scales, df, seed):
    """The NLL falls by the sum of log scales; each output is divided by its own scale."""
    prediction, y = draw(df=df, seed=seed)
    scale = torch.tensor(scales, dtype=torch.float64)
    inside, z = r.standardise(prediction, y, scale)
    falls = r.nll(prediction, y).value - scale.log().sum().item()
    assert r.nll(inside, z).value == pytest.approx(falls, rel=1e-9, abs=1e-9)
    errors = ((prediction.loc.mean(0) - y) / scale).numpy()
    assert r.rmse(inside, z).value == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-9)


def test_one_scale_serves_all_outputs():
    prediction, y = draw()
    value = r.rmse(*r.standardise(prediction, y, 4.0)).value
    assert value == pytest.approx(r.rmse(prediction, y).value / 4, rel=1e-12)
    assert r.standardise(prediction, y.float(), 4.0)[1].dtype == torch.float32


def test_bad_scales_are_refused():
    prediction, y = draw()
    for scale, says in (
        (torch.ones(3), r"one number or 2, one per output, got shape \(3,\)"),
        (torch.ones(40, 2), r"got shape \(40, 2\)"),
        (torch.tensor([1.0, 0.0]), r"finite and > 0, got \[1.0, 0.0\]"),
        (math.nan, "finite and > 0, got nan"),
        (math.inf, "finite and > 0, got inf"),
    ):
        with pytest.raises(ValueError, match=says):
            r.standardise(prediction, y, scale)


@pytest.mark.parametrize("metric", [r.nll_moment_matched, r.sharpness, r.epistemic_share])
def test_without_variance_there_is_no_score(metric):
    for df in (0.5, 1.0, 2.0):
        prediction, y = draw(df=df)
        with pytest.raises(NotDefined, match=f"infinite variance: df = {df:g} <= 2"):
            metric(prediction, y)
    huge = MixturePrediction(torch.zeros(2, 4, 1), 1e30)
    with pytest.raises(NotDefined, match="beyond the range of torch.float32"):
        metric(huge, torch.zeros(4, 1))


def test_without_mean_there_is_no_rmse_but_an_nll():
    prediction, y = draw(df=1.0)
    with pytest.raises(NotDefined, match="no mean: df = 1 <= 1"):
        r.rmse(prediction, y)
    assert math.isfinite(r.nll(prediction, y).value)
    assert math.isfinite(r.rmse(draw(df=1.5)[0], y).value)


@pytest.mark.parametrize("metric", [r.rmse, r.nll, r.nll_moment_matched, r.sharpness])
def test_one_example_has_no_standard_error(metric):
    prediction, y = draw()
    assert metric(prediction, y).standard_error > 0
    assert metric(prediction[:1], y[:1]).standard_error is None


def scaled(prediction, targets):
    return r.standardise(prediction, targets, 2.0)


@pytest.mark.parametrize("metric", [r.rmse, r.nll, r.nll_moment_matched, scaled])
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


@pytest.mark.parametrize("metric", [r.sharpness, r.epistemic_share])
def test_bad_input_without_targets_is_refused(metric):
    with pytest.raises(ValueError, match="0 examples"):
        metric(draw()[0][:0])
    with pytest.raises(ValueError, match="scores predicted densities, got a Categorical"):
        metric(CategoricalPrediction(torch.zeros(2, 4, 2).log_softmax(-1)))
