"""Densities and draws of predictions, and what a map of the distribution function makes of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad

from polymode.metrics.crps import crps
from polymode.metrics.intervals import pinball
from polymode.metrics.regression import epistemic_std, nll
from polymode.prediction import MappedPrediction, MixturePrediction, Prediction

from .made_up import categorical, mixture

CORNERS = ([0.0, 0.1, 0.3, 0.8, 1.0], [0.0, 0.25, 0.4, 0.7, 1.0])
STRAIGHT = ([0.0, 1.0], [0.0, 1.0])


@pytest.mark.parametrize("df", [None, 4.0])
def test_density_is_that_of_scipy(df) -> None:
    pred, y = mixture((3, 4, 2), df=df), torch.linspace(-2, 2, 8).view(4, 2).double()
    of_scipy = stats.norm.pdf if df is None else lambda *args: stats.t.pdf(args[0], df, *args[1:])
    expected = of_scipy(y.numpy(), pred.loc.numpy(), pred.scale.numpy()).mean(0)
    np.testing.assert_allclose(pred.density(y).numpy(), expected, rtol=1e-10)
    one = MixturePrediction(pred.loc[..., :1], pred.scale[..., :1], df)
    torch.testing.assert_close(one.density(y[:, :1])[:, 0].log(), one.log_prob(y[:, 0]))


@pytest.mark.parametrize("df", [None, 4.0])
def test_draws_have_the_mixtures_distribution(df) -> None:
    """Kolmogorov-Smirnov of 4,000 draws for two outputs; false alarms 1e-3 each. Outputs of a draw
    come from one component: far from each other, they are equal in sign."""
    pred = mixture((3, 1, 2), df=df)
    draws = pred.sample(4000, seed=1)
    assert draws.shape == (4000, 1, 2) and torch.equal(draws, pred.sample(4000, seed=1))
    assert not torch.equal(draws, pred.sample(4000, seed=2))
    for d in range(2):
        shape = (3, 4000, 1)
        loc, scale = (t[..., d : d + 1].expand(shape) for t in (pred.loc, pred.scale))
        levels = MixturePrediction(loc, scale, df).cdf(draws[:, 0, d])[:, 0]
        assert stats.kstest(levels.numpy(), "uniform").pvalue > 1e-3
    far = MixturePrediction(torch.tensor([-9.0, 9.0]).view(2, 1, 1).expand(2, 1, 2), 1.0)
    signs = far.sample(50).sign()
    assert torch.equal(signs[..., 0], signs[..., 1]) and 0 < signs.gt(0).sum() < 100


def test_drawn_labels_have_the_mean_probabilities() -> None:
    """Chi-square of 5,000 draws of four classes; false alarms 1e-3."""
    pred = categorical((3, 2, 4), sharpness=1.0)
    draws = pred.sample(5000, seed=3)
    assert draws.shape == (5000, 2)
    counts = torch.bincount(draws[:, 1], minlength=4).numpy()
    assert stats.chisquare(counts, 5000 * pred.mean[1].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("df", [None, 5.0])
def test_mapped_against_quadrature(df) -> None:
    """Mean, variance, entropy and CRPS of one mapped mixture against SciPy's integrals."""
    base = mixture((3, 2, 1), seed=2, df=df)
    pred = MappedPrediction.of(base, [CORNERS])
    edges = [-40.0, *base.quantile(torch.tensor(CORNERS[0][1:-1]))[:, 0, 0].tolist(), 40.0]

    def integral(function) -> float:
        pieces = zip(edges, edges[1:], strict=False)
        return sum(quad(function, a, b, epsabs=1e-11, limit=400)[0] for a, b in pieces)

    def at(name: str, y: float) -> float:
        return getattr(pred, name)(float(y))[0, 0].item()

    assert integral(lambda y: at("density", y)) == pytest.approx(1.0, abs=1e-5)
    mean = integral(lambda y: y * at("density", y))
    assert pred.mean[0, 0].item() == pytest.approx(mean, abs=1e-4)
    square = integral(lambda y: (y - mean) ** 2 * at("density", y))
    assert pred.variance[0, 0].item() == pytest.approx(square, rel=3e-3)
    entropy = integral(lambda y: -at("density", y) * math.log(max(at("density", y), 1e-300)))
    assert pred.predictive_entropy[0, 0].item() == pytest.approx(entropy, abs=2e-3)
    value = 0.7
    below = quad(lambda y: at("cdf", y) ** 2, -40, value, points=edges[1:-1], limit=400)[0]
    above = quad(lambda y: (1 - at("cdf", y)) ** 2, value, 40, points=edges[1:-1], limit=400)[0]
    scored = pred.crps(torch.full((2, 1), value))[0, 0].item()
    assert scored == pytest.approx(below + above, rel=1e-4)


def test_a_straight_map_changes_nothing() -> None:
    base = mixture((3, 5, 2))
    pred, y = MappedPrediction.of(base, [STRAIGHT, STRAIGHT]), torch.randn(5, 2).double()
    for name in ("mean", "variance", "predictive_entropy"):
        torch.testing.assert_close(getattr(pred, name), getattr(base, name), rtol=1e-3, atol=1e-4)
    for name in ("cdf", "density", "log_prob"):
        torch.testing.assert_close(getattr(pred, name)(y), getattr(base, name)(y))
    levels = torch.tensor([0.01, 0.5, 0.99])
    torch.testing.assert_close(pred.quantile(levels), base.quantile(levels))
    assert crps(pred, y).value == pytest.approx(crps(base, y).value, rel=1e-5)


def test_mapped_draws_and_joint_density_keep_the_dependence() -> None:
    """Two outputs with different maps: the joint density of draws integrates to one (importance
    sampling from a wide Gaussian, 4 standard errors: 6e-5 false alarms); each output has its law
    (Kolmogorov-Smirnov, 1e-3)."""
    base = MixturePrediction(torch.tensor([[-1.0, -1], [1, 1]]).double().view(2, 1, 2), 0.7)
    pred = MappedPrediction.of(base, [CORNERS, STRAIGHT])
    draws = pred.sample(2000, seed=0)
    for d in range(2):
        filled = torch.zeros(2000, 2, dtype=torch.float64)
        filled[:, d] = draws[:, 0, d]
        many = MappedPrediction.of(
            MixturePrediction(base.loc.expand(2, 2000, 2), 0.7), [CORNERS, STRAIGHT]
        )
        assert stats.kstest(many.cdf(filled)[:, d].numpy(), "uniform").pvalue > 1e-3
    wide = 3.0 * torch.randn(20000, 2, generator=torch.Generator().manual_seed(1)).double()
    many = MappedPrediction.of(
        MixturePrediction(base.loc.expand(2, 20000, 2), 0.7), [CORNERS, STRAIGHT]
    )
    proposal = torch.distributions.Normal(0.0, 3.0).log_prob(wide).sum(-1)
    ratio = (many.log_prob(wide) - proposal).exp()
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(20000)


def test_mapped_is_stored_taken_and_refused() -> None:
    pred = MappedPrediction.of(mixture((4, 5, 2)), [CORNERS, STRAIGHT])
    tensors, rest = pred.to_arrays()
    again = Prediction.from_arrays(tensors, json.loads(json.dumps(rest)))
    torch.testing.assert_close(again.mean, pred.mean)
    torch.testing.assert_close(pred[1:3].mean, pred.mean[1:3])
    torch.testing.assert_close(Prediction.cat([pred[:2], pred[2:]]).std, pred.std)
    torch.testing.assert_close(pred.rescale(1.0, 2.0).mean, 1 + 2 * pred.mean)
    assert not pred.has_epistemic and "S=4" in repr(pred) and "95 %" in pred._repr_html_()
    with pytest.raises(ValueError, match="whole mixture"):
        pred.take_modes([0])
    with pytest.raises(ValueError, match="not defined of a mapped prediction"):
        epistemic_std(pred)
    with pytest.raises(ValueError, match="rise strictly from 0 to 1"):
        MappedPrediction.of(mixture((1, 2, 1)), [([0.0, 0.5, 0.5, 1.0], [0.0, 0.2, 0.3, 1.0])])
    with pytest.raises(ValueError, match="one pair per output, 2"):
        MappedPrediction.of(mixture((1, 2, 2)), [CORNERS])


def test_pinball_by_hand_and_its_integral_is_half_the_crps() -> None:
    one = MixturePrediction(torch.zeros(1, 1, 1), 1.0)
    q90 = stats.norm.ppf(0.9)
    assert pinball(one, torch.tensor([3.0]), 0.9).value == pytest.approx(0.9 * (3 - q90), rel=1e-6)
    assert pinball(one, torch.tensor([-1.0]), 0.9).value == pytest.approx(0.1 * (1 + q90), rel=1e-6)
    pred, y = mixture((3, 6, 2)), torch.randn(6, 2).double()
    levels = (torch.arange(400).double() + 0.5) / 400
    assert 2 * pinball(pred, y, levels.tolist()).value == pytest.approx(
        crps(pred, y).value, rel=2e-3
    )
    mapped = MappedPrediction.of(pred, [CORNERS, CORNERS])
    halves = 2 * pinball(mapped, y, levels.tolist()).value
    assert halves == pytest.approx(crps(mapped, y).value, rel=2e-3)
    assert nll(mapped, y).value == pytest.approx(-mapped.log_prob(y).mean().item())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pred: pred.cdf("a"), "Values must be numbers, got 'a'"),
        (lambda pred: pred.density(None), "Values must be numbers, got None"),
        (lambda pred: pred.quantile("a"), r"in \(0, 1\), got 'a'"),
        (lambda pred: pred.quantile(None), r"in \(0, 1\), got None"),
        (lambda pred: pred.quantile([0.1, 1.0]), r"in \(0, 1\), got"),
        (lambda pred: pred.interval("a"), r"`level` of an interval must be in \(0, 1\), got 'a'"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(call, message) -> None:
    mixture = MixturePrediction(torch.zeros(2, 3, 1), 1.0)
    mapped = MappedPrediction.of(mixture, [([0.0, 0.5, 1.0], [0.0, 0.4, 1.0])])
    for pred in (mixture, mapped):
        with pytest.raises(ValueError, match=message) as caught:
            call(pred)
        assert "\n" not in str(caught.value)
