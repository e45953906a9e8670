"""Training with the evidence, against linear regression, where everything is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian
from polymode.methods.laplace_map import LaplaceMAP, due
from polymode.methods.method import Problem

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=STREAM, dtype=torch.float64)
TRUTH = torch.tensor([[0.8], [-0.5], [0.3], [0.0]], dtype=torch.float64)
NOISE = 0.4
Y = X @ TRUTH + NOISE * torch.randn(60, 1, generator=STREAM, dtype=torch.float64)


def linear(size: int = 4):
    return lambda: nn.Linear(size, 1, bias=False).double()


def regression(x: torch.Tensor, y: torch.Tensor) -> pm.Task:
    return pm.Task(train=(x, y), likelihood=Gaussian(noise=NOISE), target_scaling=None)


def mackay(x: torch.Tensor, y: torch.Tensor) -> tuple[float, torch.Tensor, float]:
    """λ, mean and log evidence of Bayesian linear regression at the evidence's maximum."""
    size = x.shape[1]
    curvature, precision = x.T @ x / NOISE**2, torch.tensor(1.0, dtype=torch.float64)
    unit = torch.eye(size, dtype=torch.float64)
    for _ in range(1000):
        inverse = torch.linalg.inv(curvature + precision * unit)
        mean = inverse @ x.T @ y / NOISE**2
        precision = (size - precision * inverse.trace()) / mean.square().sum()
    covariance = NOISE**2 * torch.eye(len(x), dtype=torch.float64) + x @ x.T / precision
    zero = torch.zeros(len(x), dtype=torch.float64)
    value = torch.distributions.MultivariateNormal(zero, covariance).log_prob(y[:, 0])
    return float(precision), mean, float(value)


def fit(x: torch.Tensor = X, y: torch.Tensor = Y, **options) -> pm.Posterior:
    how = {"epochs": 300, "batch_size": 60, "lr": 0.05, "evidence_every": 10, "progress": "silent"}
    return pm.fit("laplace_map", net=linear(x.shape[1]), task=regression(x, y), **(how | options))


@pytest.mark.parametrize("prior", ["single", "per_layer", "per_group"])
def test_linear_regression_ends_at_mackays_fixed_point(prior) -> None:
    """λ, the weights, the variance of predictions and the evidence itself are the exact ones."""
    post = fit(prior=prior)
    precision, mean, value = mackay(X, Y)
    assert float(post.weights.precision["weight"]) == pytest.approx(precision, rel=1e-3)
    torch.testing.assert_close(post.members[0].weight.detach().T, mean, rtol=0, atol=1e-3)
    assert post.weights.log_evidence[0] == pytest.approx(value, abs=1e-3)
    inverse = torch.linalg.inv(X.T @ X / NOISE**2 + precision * torch.eye(4).double())
    expected = (X @ inverse * X).sum(1) + NOISE**2
    torch.testing.assert_close(post.predict(X).variance[:, 0], expected, rtol=1e-3, atol=0)


def test_the_evidence_chooses_the_model() -> None:
    """Occam's razor: a cubic's data; a line cannot, a polynomial of degree nine need not."""
    stream = torch.Generator().manual_seed(3)
    t = torch.linspace(-1, 1, 40, dtype=torch.float64)
    y = (2 * t**3 - t)[:, None] + NOISE * 0.25 * torch.randn(40, 1, generator=stream).double()
    values = {}
    for degree in (1, 3, 9):
        x = torch.stack([t**power for power in range(degree + 1)], 1)
        post = pm.fit(
            "laplace_map", net=linear(degree + 1), task=pm.Task(
                train=(x, y), likelihood=Gaussian(noise=NOISE * 0.25), target_scaling=None
            ), epochs=600, batch_size=40, lr=0.1, evidence_every=20, progress="silent",
        )  # fmt: skip
        values[degree] = post.weights.log_evidence[0]
    assert values[3] > values[1] + 3 and values[3] > values[9]


def test_when_the_prior_is_updated() -> None:
    problem = Problem(Gaussian(noise=1.0), 100, 1, 10)
    usual = LaplaceMAP(epochs=50)
    steps = [done for done in range(1, 501) if due(usual, problem, done)]
    assert steps == list(range(100, 501, 50))  # none in the first fifth, then every five epochs
    at_once = LaplaceMAP(epochs=50, evidence_every=3, burn_in=1)
    assert [done for done in range(1, 9) if due(at_once, problem, done)] == [1, 4, 7]
    unchanged = fit(burn_in=10**6, prior_precision=2.5)
    assert float(unchanged.weights.precision["weight"]) == 2.5


def test_options_that_cannot_be_right_are_refused() -> None:
    for options, said in (
        ({"prior_precision": 0.0}, "prior_precision.*> 0"),
        ({"structure": "full"}, "one of kron, diag"),
        ({"evidence_every": 0}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            LaplaceMAP(**options)


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def test_with_classes_the_gaussian_at_the_end_is_over_the_last_layer() -> None:
    """The networks and their evidence are those of a Gaussian over all weights."""
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=stream)
    task = pm.Task(train=(x, (x[:, 0] > 0).long()), likelihood="categorical")
    how = {"net": two_layers, "task": task, "epochs": 150, "lr": 0.02, "progress": "silent"}
    last, whole = pm.fit("laplace_map", **how), pm.fit("laplace_map", spread="all", **how)
    assert sorted(last.weights.precision) == ["2.bias", "2.weight"]
    assert sorted(whole.weights.precision) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert last.weights.log_evidence == whole.weights.log_evidence
    regression_fit = fit(epochs=20)
    assert sorted(regression_fit.weights.precision) == ["weight"]


def test_learned_noise_ends_where_its_evidence_is_largest() -> None:
    """A linear layer, whose factors are exact: σ² = ‖y − X θ‖² / (N − γ(σ)) by eigenvalues."""
    stream = torch.Generator().manual_seed(3)
    x = torch.randn(30, 8, generator=stream, dtype=torch.float64)
    y = x[:, :1] + 0.5 * torch.randn(30, 1, generator=stream, dtype=torch.float64)
    task = pm.Task(train=(x, y), likelihood=Gaussian(noise="learned"), target_scaling=None)
    post = pm.fit(
        "laplace_map", net=lambda: torch.nn.Linear(8, 1, bias=False), task=task, prior="single",
        epochs=300, lr=0.05, dtype=torch.float64, progress="silent",
    )  # fmt: skip
    (precision,) = set(post.config["trained_precisions"][0].values())
    scales = torch.linalg.eigvalsh(x.mT @ x)
    with torch.no_grad():
        squares = float((post.members[0](x) - y).square().sum())
    variance = float(post.stack.extra["log_noise"].detach().exp().square())
    shares = scales / variance
    gamma = float((shares / (shares + precision)).sum())
    assert 5 < gamma < 8
    assert variance == pytest.approx(squares / (30 - gamma), rel=1e-6)
