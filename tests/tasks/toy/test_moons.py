from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from polymode.likelihoods.kinds import Categorical
from polymode.tasks import task
from polymode.tasks.toy.moons import moon_probs


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
