"""Mixtures of densities against closed forms, scipy and the faults known from other libraries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from polymode.prediction import MixturePrediction

from .made_up import mixture


def test_two_distant_members_are_not_averaged_into_one() -> None:
    pred = MixturePrediction(torch.tensor([-5.0, 5.0])[:, None, None], 0.1)
    assert pred.std.item() == pytest.approx(math.sqrt(25.01), rel=1e-6)
    assert pred.aleatoric_variance.item() == pytest.approx(0.01)
    assert pred.epistemic_variance.item() == pytest.approx(25.0)
    assert pred.mean.item() == 0.0
    assert pred.log_prob(torch.tensor([5.0])).item() == pytest.approx(
        stats.norm(5.0, 0.1).logpdf(5.0) - math.log(2.0), rel=1e-5
    )
    assert pred.mutual_information.item() == pytest.approx(math.log(2.0), abs=1e-4)
    lower, upper = pred.interval(0.9)
    assert lower.item() == pytest.approx(stats.norm(-5.0, 0.1).ppf(0.1), rel=1e-6)
    assert upper.item() == pytest.approx(stats.norm(5.0, 0.1).ppf(0.9), rel=1e-6)
    assert pred.quantile(0.5).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("df", [None, 0.8, 3.0])
@pytest.mark.parametrize("shape", [(1, 3, 1), (4, 3, 2), (3, 0, 2)])
def test_mixture_is_that_of_scipy(shape: tuple[int, int, int], df: float | None) -> None:
    pred = mixture(shape, df=df)
    y = torch.randn(shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    args = (pred.loc.numpy(), pred.scale.numpy())
    law = stats.norm(*args) if df is None else stats.t(df, *args)
    joint = np.exp(law.logpdf(y.numpy()).sum(-1)).mean(0)
    torch.testing.assert_close(pred.log_prob(y), torch.as_tensor(np.log(joint)))
    torch.testing.assert_close(pred.cdf(y), torch.as_tensor(law.cdf(y.numpy()).mean(0)))
    torch.testing.assert_close(pred.cdf(0.5), torch.as_tensor(law.cdf(0.5).mean(0)))
    torch.testing.assert_close(pred.cdf(pred.quantile(0.3)), torch.full_like(y, 0.3))
    if df is None:
        second = (law.var() + law.mean() ** 2).mean(0)
        torch.testing.assert_close(pred.mean, torch.as_tensor(law.mean().mean(0)))
        torch.testing.assert_close(
            pred.variance, torch.as_tensor(second) - pred.mean.square(), rtol=1e-9, atol=1e-12
        )
    torch.testing.assert_close(
        pred.predictive_entropy, pred.expected_entropy + pred.mutual_information
    )


def test_outputs_are_joined_within_a_sample_before_samples_are_mixed() -> None:
    """Samples (-1, -1) and (1, 1): the target (-1, 1) is unlikely, though each half is likely."""
    pred = MixturePrediction(torch.tensor([[[-1.0, -1.0]], [[1.0, 1.0]]]), 0.1)
    together = pred.log_prob(torch.tensor([[1.0, 1.0]])).item()
    crossed = pred.log_prob(torch.tensor([[-1.0, 1.0]])).item()
    assert together - crossed == pytest.approx(200.0 - math.log(2.0), rel=1e-4)


def test_moments_of_heavy_tails() -> None:
    for df, mean, aleatoric, epistemic in (
        (4.0, 0.5, 2.0, 0.25),
        (2.0, 0.5, math.inf, 0.25),
        (1.5, 0.5, math.inf, 0.25),
        (1.0, math.nan, math.nan, math.nan),
        (0.5, math.nan, math.nan, math.nan),
    ):
        pred = MixturePrediction(torch.tensor([0.0, 1.0])[:, None, None], 1.0, df)
        found = (pred.mean.item(), pred.aleatoric_variance.item(), pred.epistemic_variance.item())
        assert found == pytest.approx((mean, aleatoric, epistemic), nan_ok=True)
        assert pred.std.item() == pytest.approx(math.sqrt(aleatoric + 0.25), nan_ok=True)
        assert pred.quantile(0.5).item() == pytest.approx(0.5, abs=1e-6)
        assert pred.predictive_entropy.isfinite().all()
        assert pred.log_prob(torch.tensor([1e15])).isfinite().all()


@pytest.mark.parametrize("df", [None, 4.0])
def test_quantiles_have_the_shape_of_what_is_asked(df: float | None) -> None:
    pred = mixture((3, 4, 2), df=df)
    levels = torch.tensor([0.05, 0.5, 0.95])
    found = pred.quantile(levels)
    assert found.shape == (3, 4, 2) and (found.diff(dim=0) > 0).all()
    torch.testing.assert_close(found[1], pred.quantile(0.5))
    assert pred.quantile(torch.tensor(0.5)).shape == (4, 2)
    lower, upper = pred.interval(0.9)
    torch.testing.assert_close(torch.stack([lower, upper]), found[::2], rtol=1e-6, atol=1e-6)
    assert pred[:0].quantile(0.5).shape == (0, 2)


def test_quantiles_far_out() -> None:
    pred = MixturePrediction(torch.zeros(2, 1, 1, dtype=torch.float64), 1.0)
    for q in (1e-300, 1e-30, 1e-9):
        assert pred.quantile(q).item() == pytest.approx(stats.norm.ppf(q), rel=1e-9)
    lower, upper = pred.interval(1 - 1e-9)
    assert -lower.item() == pytest.approx(upper.item(), rel=1e-7)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, math.nan, [], [[0.5]], [0.5, 1.5]])
def test_impossible_quantiles_are_refused(q: Any) -> None:
    with pytest.raises(ValueError, match=r"`q` must be"):
        mixture((2, 3, 1)).quantile(q)
    if isinstance(q, float):
        with pytest.raises(ValueError, match="`level`"):
            mixture((2, 3, 1)).interval(q)


def test_rescale_undoes_a_standardisation() -> None:
    pred, y = mixture((3, 4, 2)), torch.randn(4, 2, dtype=torch.float64)
    shift, scale = torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.5])
    scaled = pred.rescale(shift, scale)
    torch.testing.assert_close(scaled.mean, shift + scale * pred.mean)
    torch.testing.assert_close(scaled.std, scale * pred.std)
    jacobian = scale.double().log().sum()
    torch.testing.assert_close(scaled.log_prob(shift + scale * y), pred.log_prob(y) - jacobian)
    torch.testing.assert_close(scaled.quantile(0.2), shift + scale * pred.quantile(0.2))
    torch.testing.assert_close(scaled.mutual_information, pred.mutual_information)
    with pytest.raises(ValueError, match="must be > 0"):
        pred.rescale(0.0, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize(
    ("loc", "scale", "df", "message"),
    [
        (torch.zeros(2, 3, 1), 0.0, None, "`scale` must be finite and > 0.*sample 0, input 0"),
        (torch.zeros(2, 3, 1), math.inf, None, "`scale`"),
        (torch.full((2, 3, 1), math.nan), 1.0, None, "`loc` must be finite.*6 of 6"),
        (torch.zeros(2, 3, 1), torch.ones(2, 4, 1), None, "broadcast"),
        (torch.zeros(2, 3, 1), torch.ones(5, 2, 3, 1), None, "broadcast"),
        (torch.zeros(2, 3, 1), 1.0, 0.0, "`df` must be a finite number > 0"),
        (torch.zeros(2, 3, 1), 1.0, math.nan, "`df`"),
        (torch.zeros(2, 3), 1.0, None, "axes"),
        (torch.zeros(2, 3, 0), 1.0, None, ">= 1 output"),
    ],
)
def test_what_are_not_densities_is_refused(loc: Any, scale: Any, df: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixturePrediction(loc, scale, df)


def test_wrong_values_are_refused() -> None:
    pred = mixture((2, 3, 1))
    torch.testing.assert_close(pred.log_prob(torch.zeros(3)), pred.log_prob(torch.zeros(3, 1)))
    assert (pred.log_prob(torch.full((3,), math.inf)) == -math.inf).all()
    for y in (torch.zeros(1, 3), torch.zeros(4), torch.zeros(2, 3, 1)):
        with pytest.raises(ValueError, match="shape"):
            pred.log_prob(y)
    with pytest.raises(ValueError, match="1 NaN"):
        pred.log_prob(torch.tensor([0.0, math.nan, 1.0]))
    with pytest.raises(ValueError, match="epistemic_variance"):
        _ = pred.disagreement


def test_shown_text_tells_the_main_numbers() -> None:
    text = repr(MixturePrediction(torch.tensor([-5.0, 5.0])[:, None, None], 0.1))
    assert text == (
        "MixturePrediction(S=2, B=1, D=1, aleatoric_variance=0.01, epistemic_variance=25)"
    )
