"""Conjugate Bayesian linear regression: a task whose posterior is known exactly.

With features x in R^D, design rows phi(x) = (x, 1) of P = D + 1 columns, and

    w ~ N(0, I / alpha),    y | x, w ~ N(phi(x) . w, sigma^2)

(alpha = `prior_precision`, sigma = `noise`) the posterior is N(m, S) with

    S^-1 = alpha I + Phi^T Phi / sigma^2,    m = S Phi^T y / sigma^2,

the predictive N(phi(x) . m, phi(x) . S phi(x) + sigma^2), and the log evidence

    log p(y) = P/2 log alpha - N log sigma - N/2 log 2 pi + 1/2 log det S
               - |y - Phi m|^2 / (2 sigma^2) - alpha |m|^2 / 2.

Source: C. M. Bishop, "Pattern Recognition and Machine Learning" (2006), equations 3.53, 3.54, 3.58,
3.59 and 3.86. `N` examples, `D` features, `P` parameters, `B` batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.checks import Count, Positive
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Gaussian
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """Posterior over the parameters of `nn.Linear(D, 1)`: the weights in order, then the bias.

    Attributes:
        mean: (P,) float64. covariance: (P, P) float64. log_evidence: log p(y) in nats, of all N.
        prior_precision: alpha > 0, of weights and bias alike. noise: sigma > 0.
    """

    mean: Tensor
    covariance: Tensor
    log_evidence: float
    prior_precision: float
    noise: float

    @classmethod
    def of(cls, x: Tensor, y: Tensor, *, prior_precision: float, noise: float) -> ExactPosterior:
        """Return the posterior given features x (N, D) and targets y (N, 1), in float64."""
        phi, y = design(x), y.double().flatten()
        num_examples, num_parameters = phi.shape
        prior = prior_precision * torch.eye(num_parameters, dtype=torch.float64)
        root = torch.linalg.cholesky(prior + phi.T @ phi / noise**2)
        mean = torch.cholesky_solve((phi.T @ y / noise**2)[:, None], root)[:, 0]
        misfit = (y - phi @ mean).square().sum() / noise**2 + prior_precision * mean.square().sum()
        log_evidence = (
            num_parameters / 2 * math.log(prior_precision)
            - num_examples * math.log(noise)
            - num_examples / 2 * math.log(2 * math.pi)
            - root.diagonal().log().sum().item()
            - misfit.item() / 2
        )
        covariance = torch.cholesky_inverse(root)
        return cls(mean, covariance, log_evidence, prior_precision, noise)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a new observation y at x (B, D), both (B, 1) in float64.

        The variance holds the noise; without it, `variance - noise**2`, it is that of the function.
        """
        phi = design(x)
        variance = (phi @ self.covariance * phi).sum(1, keepdim=True) + self.noise**2
        return (phi @ self.mean)[:, None], variance


def design(x: Tensor) -> Tensor:
    """Return the rows (x, 1) in float64."""
    x = x.double()
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def correlated_features(name: str, split: str, num: int, num_features: int) -> Tensor:
    """Return the fixed design (N, D) of a task: standard normal features, correlated by 0.8."""
    stream = generator(0, name, "design", split)
    common = torch.randn(num, 1, generator=stream)
    separate = torch.randn(num, num_features, generator=stream)
    return math.sqrt(0.8) * common + math.sqrt(0.2) * separate


@toy_task(
    "linear_regression",
    description="conjugate Bayesian linear regression with its exact posterior and evidence",
    source="own code after Bishop (2006), section 3.3",
    size="50 / 50 / 200",
)
def linear_regression(
    *,
    seed: int = 0,
    num_features: Count = 3,
    noise: Positive = 0.5,
    prior_precision: Positive = 1.0,
    num_train: Count = 50,
    num_val: Count = 50,
    num_test: Count = 200,
) -> Task:
    """Return data drawn from the conjugate linear model, with `task.exact`.

    The features are a fixed design: standard normal with correlation 0.8 between any two, the same
    for every seed. The seed draws the weights from the prior, and the noise; so over seeds the
    exact posterior is calibrated. The network that it belongs to is linear with a bias,
    `nets.mlp((D,), 1, hidden=())`.

    Args:
        num_features: D >= 1.
        noise: known standard deviation of the targets, > 0.
        prior_precision: of the normal prior on weights and bias, > 0.
    """
    stream = generator(seed, "linear_regression", "weights")
    weights = torch.randn(num_features + 1, 1, generator=stream, dtype=torch.float64)
    weights = weights / math.sqrt(prior_precision)

    def truth(x: Tensor) -> Tensor:
        return (design(x) @ weights).to(x.dtype)

    def draw(split: str, num: int) -> tuple[Tensor, Tensor]:
        x = correlated_features("linear_regression", split, num, num_features)
        stream = generator(seed, "linear_regression", split)
        return x, truth(x) + noise * torch.randn(num, 1, generator=stream)

    train = draw("train", num_train)
    return Task(
        name="linear_regression",
        train=train,
        val=draw("val", num_val),
        test=draw("test", num_test),
        likelihood=Gaussian(noise=noise),
        target_scaling=None,
        description=f"linear in {num_features} features; noise {noise:g},"
        f" prior precision {prior_precision:g}",
        truth=truth,
        exact=ExactPosterior.of(*train, prior_precision=prior_precision, noise=noise),
    )
