from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from polymode.likelihoods.kinds import Gaussian
from polymode.nets import mlp
from polymode.tasks import task
from polymode.tasks.toy.linear import ExactPosterior


def numbers(x: torch.Tensor, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Design with its column of ones, and targets, in float64."""
    x64, y64 = x.double().numpy(), y.double().numpy()[:, 0]
    return np.hstack([x64, np.ones((len(x64), 1))]), y64


@pytest.fixture(scope="module")
def own():
    return task("linear_regression", seed=3, noise=0.7, prior_precision=2.5, num_features=4)


def test_posterior_against_numpy(own):
    phi, y = numbers(own.train.x, own.train.y)
    precision = 2.5 * np.eye(5) + phi.T @ phi / 0.49
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(own.exact.covariance, covariance, rtol=1e-10)
    np.testing.assert_allclose(own.exact.mean, covariance @ phi.T @ y / 0.49, rtol=1e-10)


def test_posterior_by_conditioning_the_joint_normal(own):
    """Another road: (w, y) is jointly normal, and is conditioned in the space of the data."""
    phi, y = numbers(own.train.x, own.train.y)
    gain = phi.T / 2.5 @ np.linalg.inv(phi @ phi.T / 2.5 + 0.49 * np.eye(len(y)))
    np.testing.assert_allclose(own.exact.mean, gain @ y, rtol=1e-8)
    expected = np.eye(5) / 2.5 - gain @ phi / 2.5
    np.testing.assert_allclose(own.exact.covariance, expected, rtol=1e-7, atol=1e-12)


def test_evidence_against_the_marginal_normal(own):
    phi, y = numbers(own.train.x, own.train.y)
    marginal = stats.multivariate_normal(cov=phi @ phi.T / 2.5 + 0.49 * np.eye(len(y)))
    assert own.exact.log_evidence == pytest.approx(marginal.logpdf(y), rel=1e-10)


def test_evidence_and_moments_by_quadrature():
    """One feature and a bias: integrate likelihood times prior over a grid of both parameters."""
    own = task("linear_regression", num_features=1, num_train=4, noise=0.6, prior_precision=1.5)
    phi, y = numbers(own.train.x, own.train.y)
    axis = np.linspace(-6, 6, 601)
    weights = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_joint = stats.norm.logpdf(weights, scale=1 / math.sqrt(1.5)).sum(1)
    for row, target in zip(phi, y, strict=True):
        log_joint += stats.norm.logpdf(target, loc=weights @ row, scale=0.6)
    mass = np.exp(log_joint - log_joint.max()) * (axis[1] - axis[0]) ** 2
    assert own.exact.log_evidence == pytest.approx(math.log(mass.sum()) + log_joint.max(), rel=1e-8)
    probs = mass / mass.sum()
    np.testing.assert_allclose(own.exact.mean, probs @ weights, atol=1e-8)
    np.testing.assert_allclose(
        own.exact.covariance, np.cov(weights.T, aweights=probs, ddof=0), atol=1e-8
    )


def test_predictive_is_the_ratio_of_evidences(own):
    """p(y* | y) = p(y, y*) / p(y): the predictive density from two evidences."""
    x_new, y_new = own.test.x[:5], own.test.y[:5]
    mean, variance = own.exact.predict(x_new)
    assert mean.shape == variance.shape == (5, 1)
    for i in range(5):
        x = torch.cat([own.train.x, x_new[i : i + 1]])
        y = torch.cat([own.train.y, y_new[i : i + 1]])
        both = ExactPosterior.of(x, y, prior_precision=2.5, noise=0.7)
        density = stats.norm.logpdf(float(y_new[i]), float(mean[i]), math.sqrt(variance[i]))
        assert both.log_evidence - own.exact.log_evidence == pytest.approx(density, rel=1e-8)


def test_predictive_is_calibrated_over_seeds():
    """Standardised test errors over 200 seeds are standard normal: Kolmogorov-Smirnov test.

    False-alarm rate 0.001 over the choice of seeds, which are fixed.
    """
    errors = []
    for seed in range(200):
        own = task("linear_regression", seed=seed, num_train=8, num_val=1, num_test=1)
        mean, variance = own.exact.predict(own.test.x)
        errors.append(float((own.test.y - mean) / variance.sqrt()))
    assert stats.kstest(errors, "norm").pvalue > 0.001


def test_truth_noise_and_likelihood():
    """The residuals from the truth have the stated standard deviation, within 4 standard errors
    (false-alarm rate 6e-5)."""
    own = task("linear_regression", seed=1, noise=0.3, num_test=4000)
    residuals = own.test.y - own.truth(own.test.x)
    assert own.likelihood == Gaussian(noise=0.3)
    assert float(residuals.std()) == pytest.approx(0.3, abs=4 * 0.3 / math.sqrt(2 * 4000))


def test_numbers_do_not_change_from_release_to_release():
    linear = task("linear_regression")
    found = torch.cat([linear.train.x[0], linear.train.y[:2, 0]])
    expected = torch.tensor([-1.3442004, -1.8627077, -2.1208086, 0.9216637, -0.3881090])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_design_is_fixed_and_the_seed_draws_the_rest():
    first, second = task("linear_regression", seed=0), task("linear_regression", seed=1)
    assert torch.equal(first.train.x, second.train.x)
    assert not torch.equal(first.train.y, second.train.y)
    torch.testing.assert_close(first.exact.covariance, second.exact.covariance, rtol=0, atol=0)
    assert torch.equal(first.train.y, task("linear_regression", seed=0).train.y)
    assert not torch.equal(first.train.x, first.val.x)


def test_the_parameters_are_those_of_the_linear_network(own):
    """`mean`, read as weights and bias of nn.Linear, gives the predictive mean."""
    net = mlp(own.input_shape, own.num_outputs, hidden=()).double()
    torch.nn.utils.vector_to_parameters(own.exact.mean, net.parameters())
    with torch.no_grad():
        torch.testing.assert_close(net(own.test.x.double()), own.exact.predict(own.test.x)[0])


@pytest.mark.parametrize(
    "options", [{"noise": 0.0}, {"prior_precision": -1.0}, {"num_features": 0}, {"num_train": 0}]
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}.* must be a[n ]* .*>"):
        task("linear_regression", **options)
