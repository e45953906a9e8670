from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.linear_model import LogisticRegression

from polymode.nets import mlp
from polymode.tasks import task
from polymode.tasks.toy.logistic import LogisticPosterior


def design(x: torch.Tensor) -> np.ndarray:
    return np.hstack([x.double().numpy(), np.ones((len(x), 1))])


def log_joint(own, weights: np.ndarray) -> np.ndarray:
    """log p(y, w) of rows of weights, from scratch."""
    signs = 2 * own.train.y.numpy() - 1
    logits = weights @ design(own.train.x).T * signs
    std = 1 / math.sqrt(own.exact.prior_precision)
    return special.log_expit(logits).sum(1) + stats.norm.logpdf(weights, scale=std).sum(1)


@pytest.fixture(scope="module")
def own():
    return task("logistic_regression")


@pytest.fixture(scope="module")
def small():
    return task("logistic_regression", seed=2, num_features=1, num_train=20, prior_precision=0.5)


@pytest.mark.cpu_seconds(6)
def test_against_a_brute_force_grid(small):
    """Two parameters on a grid of the prior's own axes, 1,201 x 1,201 nodes: to 1e-8."""
    axis = np.linspace(-14, 14, 1201)
    weights = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    values = np.concatenate([log_joint(small, some) for some in np.array_split(weights, 40)])
    log_evidence = special.logsumexp(values) + 2 * math.log(axis[1] - axis[0])
    probs = np.exp(values - special.logsumexp(values))
    assert small.exact.log_evidence == pytest.approx(log_evidence, abs=1e-8)
    np.testing.assert_allclose(small.exact.mean, probs @ weights, atol=1e-8)
    covariance = np.cov(weights.T, aweights=probs, ddof=0)
    np.testing.assert_allclose(small.exact.covariance, covariance, atol=1e-8)
    kept = probs > 1e-16
    rows = design(small.test.x[:20])
    predictive = probs[kept] @ special.expit(weights[kept] @ rows.T)
    np.testing.assert_allclose(small.exact.predict(small.test.x[:20])[:, 1], predictive, atol=1e-8)


def test_against_gauss_hermite_around_the_laplace_approximation(own):
    """Another rule, 48 nodes in each of three dimensions: to 1e-8."""
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(48)
    steps = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    log_weights = np.log(node_weights)
    log_weights = sum(np.meshgrid(log_weights, log_weights, log_weights, indexing="ij")).ravel()
    kept = log_weights > log_weights.max() - 60
    steps, log_weights = steps[kept], log_weights[kept]
    covariance = 1.4 * own.exact.laplace_covariance.numpy()
    root = np.linalg.cholesky(covariance)
    weights = own.exact.mean.numpy() + steps @ root.T
    values = np.concatenate([log_joint(own, some) for some in np.array_split(weights, 10)])
    values += log_weights + (steps**2).sum(1) / 2 + np.log(np.diag(root)).sum()
    assert own.exact.log_evidence == pytest.approx(special.logsumexp(values), abs=1e-8)
    probs = np.exp(values - special.logsumexp(values))
    np.testing.assert_allclose(own.exact.mean, probs @ weights, atol=1e-7)


def test_against_importance_sampling(own):
    """40,000 draws of a Student-t around the Laplace approximation; evidence, mean and predictive
    within 4 standard errors (24 comparisons, false-alarm rate 0.0015)."""
    shape = own.exact.laplace_covariance.numpy()
    proposal = stats.multivariate_t(own.exact.mode.numpy(), 1.3 * shape, df=5, seed=0)
    weights = proposal.rvs(40_000)
    values = np.exp(log_joint(own, weights) - proposal.logpdf(weights) - own.exact.log_evidence)
    assert values.mean() == pytest.approx(1, abs=4 * values.std() / 200)
    probs = own.exact.predict(own.test.x[:20])[:, 1].numpy()
    for found, expected in [
        *zip(weights.T, own.exact.mean.numpy(), strict=True),
        *zip(special.expit(weights @ design(own.test.x[:20]).T).T, probs, strict=True),
    ]:
        errors = values * (found - expected)
        assert abs(errors.mean()) < 4 * errors.std() / 200
    assert (values.std() < 1).all()


def test_predictive_is_the_ratio_of_evidences(own):
    """p(y* = 1 | y) = p(y, y* = 1) / p(y)."""
    probs = own.exact.predict(own.test.x[:3])
    torch.testing.assert_close(probs.sum(1), torch.ones(3, dtype=torch.float64))
    for i in range(3):
        x = torch.cat([own.train.x, own.test.x[i : i + 1]])
        y = torch.cat([own.train.y, torch.tensor([1])])
        both = LogisticPosterior.of(x, y, prior_precision=own.exact.prior_precision)
        ratio = math.exp(both.log_evidence - own.exact.log_evidence)
        assert float(probs[i, 1]) == pytest.approx(ratio, abs=1e-8)


def test_mode_and_laplace_answers(own):
    """The mode against scikit-learn's ridge penalty; Hessian and evidence in closed form."""
    phi, y = design(own.train.x), own.train.y.numpy()
    alpha = own.exact.prior_precision
    twin = LogisticRegression(C=1 / alpha, fit_intercept=False, tol=1e-10, max_iter=1000)
    np.testing.assert_allclose(own.exact.mode, twin.fit(phi, y).coef_[0], atol=1e-5)
    probs = special.expit(phi @ own.exact.mode.numpy())
    gradient = phi.T @ (y - probs) - alpha * own.exact.mode.numpy()
    assert np.abs(gradient).max() < 1e-8
    hessian = alpha * np.eye(3) + phi.T @ (phi * (probs * (1 - probs))[:, None])
    np.testing.assert_allclose(own.exact.laplace_covariance, np.linalg.inv(hessian), rtol=1e-8)
    expected = log_joint(own, own.exact.mode.numpy()[None])[0]
    expected += 1.5 * math.log(2 * math.pi) - np.linalg.slogdet(hessian)[1] / 2
    assert own.exact.laplace_log_evidence == pytest.approx(expected, abs=1e-8)
    assert 0.01 < abs(own.exact.laplace_log_evidence - own.exact.log_evidence) < 0.5


@pytest.mark.cpu_seconds(8)
def test_predictive_is_calibrated_over_seeds():
    """Labels less predicted probabilities over 200 seeds have mean 0: 4 standard errors, rate 6e-5.

    With 5 examples each, so that the weights are far from known.
    """
    total, variance = 0.0, 0.0
    for seed in range(200):
        own = task("logistic_regression", seed, num_features=1, num_train=5, num_val=1, num_test=1)
        prob = float(own.exact.predict(own.test.x)[0, 1])
        sign = 1 if prob > 0.5 else -1  # else errors of both signs would cancel
        total += sign * (float(own.test.y[0]) - prob)
        variance += prob * (1 - prob)
    assert abs(total) < 4 * math.sqrt(variance)


def test_stated_accuracy_over_seeds():
    for seed in range(5):
        assert task("logistic_regression", seed).exact.error <= 1e-9


def test_design_is_fixed_and_ood_is_far(own):
    other = task("logistic_regression", seed=1)
    assert torch.equal(own.train.x, other.train.x) and not torch.equal(own.train.y, other.train.y)
    distance = own.ood["far"].norm(dim=1)
    assert float(distance.min()) > 8 - 1e-5 and float(distance.max()) < 10 + 1e-5
    assert float(own.train.x.norm(dim=1).max()) < 6


def test_the_parameters_are_those_of_the_linear_network(own):
    net = mlp(own.input_shape, own.num_outputs, hidden=()).double()
    torch.nn.utils.vector_to_parameters(own.exact.mode, net.parameters())
    with torch.no_grad():
        logits = net(own.test.x.double())[:, 0]
    np.testing.assert_allclose(logits, design(own.test.x) @ own.exact.mode.numpy(), rtol=1e-10)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"num_features": 3},
            "`num_features` of logistic_regression must be 1 or 2, for quadrature: 3",
        ),
        (
            {"num_features": 0},
            "`num_features` of logistic_regression must be an integer >= 1",
        ),
        ({"prior_precision": 0.0}, "`prior_precision` of logistic_regression must be a number > 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        task("logistic_regression", **options)
