"""Predictions of counts, of quantiles and of Laplace densities, against scipy and quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from polymode.metrics import intervals
from polymode.metrics.crps import crps, fair_crps
from polymode.prediction import (
    CountPrediction,
    MixturePrediction,
    Prediction,
    QuantilePrediction,
    predict_from,
)

RATE = torch.tensor([[[0.2], [4.0], [300.0]], [[2.5], [4.0], [420.0]]], dtype=torch.float64)
LEVELS = (0.1, 0.3, 0.5, 0.95)
VALUES = torch.tensor(
    [[[[-1.0, 0.0, 0.5, 3.0]], [[0.0, 1.0, 2.0, 3.0]]], [[[-0.5, 0.1, 0.2, 1.0]],
     [[5.0, 5.5, 7.0, 9.0]]]], dtype=torch.float64,
)  # fmt: skip


def laws(prediction):
    """scipy's laws of the samples, (S, B, D)."""
    mu = prediction.rate.numpy()
    if prediction.dispersion is None:
        return stats.poisson(mu)
    r = prediction.dispersion.numpy()
    return stats.nbinom(r, r / (r + mu))


@pytest.mark.parametrize("dispersion", [None, 0.4, 30.0])
def test_counts_equal_scipy(dispersion):
    prediction = CountPrediction(RATE, dispersion)
    law, y = laws(prediction), np.array([[0.0], [3.0], [390.0]])
    values = torch.as_tensor(y)
    np.testing.assert_allclose(prediction.density(values), law.pmf(y).mean(0), rtol=1e-10)
    np.testing.assert_allclose(prediction.cdf(values), law.cdf(y).mean(0), rtol=1e-10)
    np.testing.assert_allclose(prediction.log_prob(values), np.log(law.pmf(y).mean(0))[:, 0])
    np.testing.assert_allclose(prediction.mean, law.mean().mean(0))
    np.testing.assert_allclose(prediction.aleatoric_variance, law.var().mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.epistemic_variance, law.mean().var(0))
    assert prediction.density(2.5).eq(0).all() and prediction.cdf(-1.0).eq(0).all()
    for q in (0.01, 0.5, 0.95):
        found = prediction.quantile(q).numpy()
        assert (law.cdf(found).mean(0) >= q - 1e-9).all()
        assert (law.cdf(found - 1).mean(0) < q).all()


@pytest.mark.parametrize("dispersion", [None, 2.0])
def test_sums_over_counts_equal_those_of_scipy(dispersion):
    prediction = CountPrediction(RATE, dispersion)
    law, k = laws(prediction), np.arange(12000)
    p = np.stack([law.pmf(n)[..., 0] for n in k], -1)  # (S, B, counts)
    mixture = p.mean(0)
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1)
    total = -np.where(mixture > 0, mixture * np.log(np.where(mixture > 0, mixture, 1)), 0).sum(-1)
    close = {"rtol": 1e-9 if dispersion is None else 1e-5}  # the widest law is summed in blocks
    np.testing.assert_allclose(prediction.expected_entropy[:, 0], entropy.mean(0), **close)
    np.testing.assert_allclose(prediction.predictive_entropy[:, 0], total, **close)
    y = torch.tensor([[1.0], [9.0], [350.0]], dtype=torch.float64)
    below = p.cumsum(-1)
    steps = (below.mean(0) - (k >= y.numpy())) ** 2
    np.testing.assert_allclose(crps(prediction, y).each, steps.sum(-1), **close)
    fair = steps - below.var(0, ddof=1) / 2
    np.testing.assert_allclose(fair_crps(prediction, y).each, fair.sum(-1), **close)


def test_blocks_of_counts_lose_little():
    """Rates of a million reach over 16,000 counts: blocks of four against a normal law."""
    prediction = CountPrediction(torch.tensor([[[1e6]], [[1.002e6]]], dtype=torch.float64))
    normal = MixturePrediction(prediction.rate, prediction.rate.sqrt())
    torch.testing.assert_close(
        prediction.expected_entropy, normal.expected_entropy, rtol=1e-5, atol=0.0
    )
    torch.testing.assert_close(
        prediction.mutual_information, normal.mutual_information, rtol=2e-3, atol=0.0
    )


def test_draws_and_the_randomised_pit_of_counts():
    """20,000 draws: mean within four standard errors, PIT by Kolmogorov's test at 1 in 10⁴."""
    prediction = CountPrediction(RATE[:, :2].expand(2, 2, 1), 3.0)
    draws = prediction.sample(20000, seed=1)[..., 0]
    error = prediction.std[:, 0] / 20000**0.5
    assert ((draws.mean(0) - prediction.mean[:, 0]).abs() < 4 * error).all()
    many = CountPrediction(RATE[:, :1].expand(2, 20000, 1), 3.0)
    values = intervals.pit(many, draws[:, :1])
    assert stats.kstest(values[:, 0].numpy(), "uniform").pvalue > 1e-4


def density(prediction, sample, row):
    """The interpolated density written out, for one output."""
    q, tau = prediction.values[sample, row, 0].numpy(), np.array(prediction.levels)
    inside = np.diff(tau) / np.diff(q)

    def at(y):
        if y < q[0]:
            return inside[0] * math.exp((y - q[0]) * inside[0] / tau[0])
        if y >= q[-1]:
            return inside[-1] * math.exp(-(y - q[-1]) * inside[-1] / (1 - tau[-1]))
        return inside[np.searchsorted(q, y, side="right") - 1]

    return at  # fmt: skip


def test_quantiles_are_a_density_with_its_moments_and_entropy():
    prediction = QuantilePrediction(VALUES, LEVELS)
    for row in range(2):
        pieces = [-60, *sorted(VALUES[:, row, 0].flatten().tolist()), 60]
        members = [density(prediction, s, row) for s in range(2)]

        def over(function, pieces=pieces):
            cuts = zip(pieces, pieces[1:], strict=False)
            return sum(integrate.quad(function, a, b, limit=200)[0] for a, b in cuts if b > a)

        mean = [over(lambda y, p=p: y * p(y)) for p in members]
        variance = [over(lambda y, p=p, m=m: (y - m) ** 2 * p(y))
                    for p, m in zip(members, mean, strict=True)]  # fmt: skip
        entropy = [-over(lambda y, p=p: p(y) * math.log(p(y) or 1)) for p in members]
        assert over(members[0]) == pytest.approx(1, abs=1e-7)
        assert prediction.mean[row].item() == pytest.approx(np.mean(mean), abs=1e-6)
        assert prediction.aleatoric_variance[row].item() == pytest.approx(
            np.mean(variance), rel=1e-5
        )
        assert prediction.epistemic_variance[row].item() == pytest.approx(np.var(mean), abs=1e-6)
        assert prediction.expected_entropy[row].item() == pytest.approx(np.mean(entropy), abs=1e-6)

        def mixture(y, members=members):
            return sum(p(y) for p in members) / 2

        total = -over(lambda y, p=mixture: p(y) * math.log(p(y) or 1))
        assert prediction.predictive_entropy[row].item() == pytest.approx(total, abs=2e-4)
        for y in (-3.0, 0.3, 2.0, 8.0, 11.0):
            at = torch.full((2, 1), y, dtype=torch.float64)
            assert prediction.density(at)[row].item() == pytest.approx(mixture(y), rel=1e-12)
            below = integrate.quad(mixture, -60, y, limit=400, points=[
                q for q in pieces[1:-1] if q < y] or None)[0]  # fmt: skip
            assert prediction.cdf(at)[row].item() == pytest.approx(below, abs=1e-6)


def test_quantiles_go_through_what_the_network_said_and_invert():
    prediction = QuantilePrediction(VALUES, LEVELS)
    alone = prediction.take_modes([0])
    torch.testing.assert_close(alone.quantile(torch.tensor(LEVELS)), VALUES[0].movedim(-1, 0))
    for q in (1e-4, 0.1, 0.42, 0.97):
        torch.testing.assert_close(
            prediction.cdf(prediction.quantile(q)), torch.full((2, 1), q, dtype=torch.float64),
            rtol=0, atol=1e-7,
        )  # fmt: skip
    y = torch.tensor([[0.4], [6.0]], dtype=torch.float64)
    x = torch.linspace(-40, 60, 400_001, dtype=torch.float64)
    wide = QuantilePrediction(VALUES[:, :, 0, None].expand(2, 2, len(x), 4)[:, 0:1], LEVELS)
    each = wide.sample_cdf(x.expand(1, -1))[:, 0]
    steps = (each.mean(0) - (x >= y[0]).double()).square()
    exact = torch.trapezoid(steps, x)
    assert crps(prediction, y).each[0].item() == pytest.approx(exact.item(), abs=2e-4)
    fair = torch.trapezoid(steps - each.var(0) / 2, x)
    assert fair_crps(prediction, y).each[0].item() == pytest.approx(fair.item(), abs=2e-4)
    draws = prediction.sample(20000, seed=2)[..., 0]
    error = prediction.std[:, 0] / 20000**0.5
    assert ((draws.mean(0) - prediction.mean[:, 0]).abs() < 4 * error).all()
    moved = prediction.rescale(2.0, 3.0)
    torch.testing.assert_close(moved.mean, 2 + 3 * prediction.mean)
    torch.testing.assert_close(moved.log_prob(2 + 3 * y), prediction.log_prob(y) - math.log(3))


def test_laplace_densities_equal_scipy():
    stream = torch.Generator().manual_seed(0)
    loc = torch.randn(3, 6, 1, generator=stream, dtype=torch.float64)
    scale = torch.rand(3, 6, 1, generator=stream, dtype=torch.float64) + 0.2
    prediction, law = MixturePrediction(loc, scale, "laplace"), stats.laplace(loc, scale)
    y = torch.randn(6, 1, generator=stream, dtype=torch.float64)
    np.testing.assert_allclose(prediction.density(y), law.pdf(y).mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.cdf(y), law.cdf(y).mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.aleatoric_variance, law.var().mean(0), rtol=1e-12)
    np.testing.assert_allclose(prediction.expected_entropy, law.entropy().mean(0), rtol=1e-12)
    for q in (0.01, 0.5, 0.9):
        below = law.cdf(prediction.quantile(q)).mean(0)
        np.testing.assert_allclose(below, np.full((6, 1), q), atol=1e-7)
    x = np.linspace(-30, 30, 60_001)
    pdf = stats.laplace(loc.numpy(), scale.numpy()).pdf(x)
    mixture = pdf.mean(0)
    information = np.trapezoid((pdf * np.log(pdf / mixture)).mean(0), x)
    np.testing.assert_allclose(prediction.mutual_information[:, 0], information, atol=1e-4)
    cdf = stats.laplace(loc.numpy(), scale.numpy()).cdf(x).mean(0)
    score = np.trapezoid((cdf - (x >= y.numpy())) ** 2, x)
    np.testing.assert_allclose(crps(prediction, y).each, score, atol=6e-4)
    draws = prediction.sample(20000, seed=1)[..., 0]  # mean and variance: 1 in 16,000 each
    error = prediction.std[:, 0] / 20000**0.5
    assert ((draws.mean(0) - prediction.mean[:, 0]).abs() < 4.5 * error).all()


@pytest.mark.parametrize(
    "prediction", [CountPrediction(RATE), CountPrediction(RATE, 2.0, num_modes=1),
                   QuantilePrediction(VALUES, LEVELS), MixturePrediction(RATE, 1.0, "laplace")],
    ids=["poisson", "negative binomial", "quantiles", "laplace"],
)  # fmt: skip
def test_stored_joined_and_cut_predictions_are_the_same(prediction):
    again = Prediction.from_arrays(*prediction.to_arrays())
    y = torch.full((len(prediction), 1), 3.0, dtype=torch.float64)
    torch.testing.assert_close(again.log_prob(y), prediction.log_prob(y))
    parts = Prediction.cat([prediction[:1], prediction[1:]])
    torch.testing.assert_close(parts.log_prob(y), prediction.log_prob(y))
    torch.testing.assert_close(predict_from(prediction.by_mode).log_prob(y), prediction.log_prob(y))
    assert prediction.interval(0.8)[0].shape == (len(prediction), 1)
    assert "mean" in prediction._repr_html_() and prediction.double().mean.dtype == torch.float64


def test_wrong_laws_are_refused():
    with pytest.raises(ValueError, match="`rate` must be finite and > 0.*diverged"):
        CountPrediction(torch.tensor([[[math.inf]]]))
    with pytest.raises(ValueError, match="must be finite and increase"):
        QuantilePrediction(VALUES.flip(-1), LEVELS)
    with pytest.raises(ValueError, match="or 'laplace', got 'cauchy'"):
        MixturePrediction(RATE, 1.0, "cauchy")
    with pytest.raises(ValueError, match="no unit to change"):
        CountPrediction(RATE).rescale(0.0, 2.0)
