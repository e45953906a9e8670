"""Classifications in the plane: five_gaussians, tiny_nets, donuts, two_moons."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from polymode.core.rng import generator
from polymode.likelihoods.kinds import Bernoulli, Categorical
from polymode.nets import mlp
from polymode.tasks import task
from polymode.tasks.toy.plane import annulus, moon_probs

PLACES = {
    "five_gaussians": [
        (5 * math.cos(math.radians(degrees)), 5 * math.sin(math.radians(degrees)))
        for degrees in (90, 162, 234, 306, 378)
    ],
    "tiny_nets": [(-2, -2), (2, 2)],
}


@pytest.mark.parametrize("name", PLACES)
def test_class_posterior_by_bayes_rule(name):
    own = task(name)
    x = torch.cat([own.test.x, own.ood["ring"]]).double()
    densities = [stats.multivariate_normal(mean).logpdf(x.numpy()) for mean in PLACES[name]]
    expected = torch.tensor(np.stack(densities, axis=1)).softmax(1)
    torch.testing.assert_close(own.truth(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", PLACES)
def test_clouds_have_their_means_and_unit_variance(name):
    """4 standard errors for each class and coordinate (rate 6e-5 each, 14 means, 14 variances)."""
    own = task(name, num_test=5000)
    for label, mean in enumerate(PLACES[name]):
        x = own.test.x[own.test.y == label].double()
        assert (x.mean(0) - torch.tensor(mean)).abs().max() < 4 / math.sqrt(len(x))
        assert (x.var(0) - 1).abs().max() < 4 * math.sqrt(2 / len(x))


def test_classes_are_balanced_as_published():
    five, tiny, donuts = (task(name) for name in ("five_gaussians", "tiny_nets", "donuts"))
    assert five.train.y.bincount().tolist() == [40] * 5
    assert five.test.y.bincount().tolist() == [20] * 5
    assert tiny.train.y.bincount().tolist() == [200] * 2
    assert donuts.train.y.bincount().tolist() == [100] * 2
    assert (five.likelihood, donuts.likelihood) == (Categorical(), Categorical())
    assert tiny.likelihood == Bernoulli() and tiny.num_outputs == 1
    net = mlp(tiny.input_shape, tiny.num_outputs, hidden=(2,))
    assert sum(p.numel() for p in net.parameters()) == 9


def test_bayes_error_of_tiny_nets():
    """Share of points on the wrong side of x_1 + x_2 = 0 is Phi(-2 sqrt 2) = 0.0023.

    Binomial bounds of 20,000 points: 46.8 expected, false-alarm rate 1e-4.
    """
    own = task("tiny_nets", num_test=20_000)
    wrong = int(((own.test.x.sum(1) > 0).long() != own.test.y).sum())
    law = stats.binom(20_000, stats.norm.cdf(-2 * math.sqrt(2)))
    assert law.ppf(5e-5) <= wrong <= law.isf(5e-5)


@pytest.mark.parametrize(
    "name, key, inner, outer",
    [
        ("five_gaussians", "ring", 11, 30),
        ("tiny_nets", "ring", 10, 12),
        ("donuts", "ring", 11, 30),
        ("donuts", "between", 5, 8),
    ],
)
def test_rings_lie_where_they_should(name, key, inner, outer):
    own = task(name)
    radius = own.ood[key].norm(dim=1)
    assert own.ood[key].shape == (200, 2)
    assert float(radius.min()) > inner - 1e-5 and float(radius.max()) < outer + 1e-5


def test_rings_are_uniform_by_area():
    """Squared radius and angle of 5,000 points, Kolmogorov-Smirnov; false-alarm rate 0.001 each."""
    x = annulus(11.0, 30.0, 5000, generator(0, "ring")).double()
    share = (x.square().sum(1) - 11**2) / (30**2 - 11**2)
    angle = torch.atan2(x[:, 1], x[:, 0]) / (2 * math.pi) % 1
    assert stats.kstest(share, "uniform").pvalue > 0.001
    assert stats.kstest(angle, "uniform").pvalue > 0.001


@pytest.mark.parametrize("name", ["five_gaussians", "donuts"])
def test_centre_has_variance_0_4(name):
    """Sum of squares of 50 points is 0.4 chi-square of 100; false-alarm rate 1e-4."""
    own = task(name)
    law = stats.chi2(100)
    assert own.ood["centre"].shape == (50, 2) and "centre" in own.near_ood
    total = float(own.ood["centre"].square().sum()) / 0.4
    assert law.ppf(5e-5) < total < law.isf(5e-5)


def test_donuts_are_rings_and_their_truth_tells_them_apart():
    own = task("donuts")
    for data in (own.train, own.val, own.test):
        radius = data.x.norm(dim=1)
        outer = (radius > 9 - 1e-5) & (radius < 10 + 1e-5)
        inner = (radius > 3 - 1e-5) & (radius < 4 + 1e-5)
        assert torch.equal(outer, data.y == 0) and torch.equal(inner, data.y == 1)
        assert torch.equal(own.truth(data.x).argmax(1), data.y)
    assert own.near_ood == ("centre", "between")


def test_numbers_do_not_change_from_release_to_release():
    own = task("two_moons")
    expected = torch.tensor([[0.0463108, 0.9775873], [0.0380200, 0.1543839]])
    torch.testing.assert_close(own.train.x[:2], expected, rtol=0, atol=1e-6)


def test_moons_without_noise_lie_on_their_circles():
    own = task("two_moons", noise=0.0)
    x, y = own.train.x, own.train.y
    centre = torch.where(y[:, None] == 1, torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.0]))
    torch.testing.assert_close((x - centre).norm(dim=1), torch.ones(len(x)))
    assert (x[y == 0, 1] >= 0).all() and (x[y == 1, 1] <= 0.5).all()
    assert y.bincount().tolist() == [100, 100]
    assert own.likelihood == Categorical() and own.num_outputs == 2
    assert own.truth is None


def test_moons_noise_has_the_stated_size():
    """Distance from the circle has this standard deviation up to curvature; 4 standard errors."""
    own = task("two_moons", noise=0.05, num_test=4000)
    upper = own.test.x[own.test.y == 0]
    spread = float((upper.norm(dim=1) - 1).std())
    assert spread == pytest.approx(0.05, abs=4 * 0.05 / math.sqrt(2 * 2000) + 0.05**2)


def test_ring_is_far_from_every_training_point():
    own = task("two_moons")
    assert float(torch.cdist(own.ood["ring"], own.train.x).min()) > 3


def log_odds_by_adaptive_quadrature(x: np.ndarray, noise: float) -> float:
    def log_density(sign: float, centre: tuple[float, float]) -> float:
        def exponent(t: float) -> float:
            place = sign * np.array([math.cos(t), math.sin(t)]) + centre
            return -float(((x - place) ** 2).sum()) / (2 * noise**2)

        top = max(np.linspace(0, math.pi, 2001), key=exponent)
        peak = exponent(top)
        edges = np.clip([0.0, top - 8 * noise, top, top + 8 * noise, math.pi], 0, math.pi)
        pieces = [
            integrate.quad(lambda t: math.exp(exponent(t) - peak), a, b, epsabs=0, epsrel=1e-12)[0]
            for a, b in zip(edges, edges[1:], strict=False)
            if b > a
        ]
        return peak + math.log(sum(pieces))

    return log_density(-1, (1.0, 0.5)) - log_density(1, (0.0, 0.0))


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.5])
def test_class_posterior_against_adaptive_quadrature(noise):
    points = np.array([[0.5, 0.25], [0.0, 0.4], [1.0, 0.1], [-0.2, 0.1], [1.4, 0.5]])
    probs = moon_probs(torch.tensor(points), noise)
    expected = [log_odds_by_adaptive_quadrature(x, noise) for x in points]
    log_odds = probs[:, 1].log() - probs[:, 0].log()
    np.testing.assert_allclose(log_odds, expected, rtol=0, atol=1e-9)


def test_bad_noise():
    with pytest.raises(ValueError, match="`noise` of two_moons must be >= 0, got -0.1"):
        task("two_moons", noise=-0.1)
