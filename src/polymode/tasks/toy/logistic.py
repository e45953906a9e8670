"""Bayesian logistic regression with reference answers to eight digits.

With features x in R^D, design rows phi(x) = (x, 1) of P = D + 1 columns, and

    w ~ N(0, I / alpha),    p(y = 1 | x, w) = 1 / (1 + exp(-phi(x) . w))

(alpha = `prior_precision`) the posterior has no closed form. Posterior mean and covariance, log
evidence and predictive probabilities come from quadrature over the P <= 3 parameters
(`toy/quadrature.py`). The Laplace approximation of the same posterior is

    N(m, H^-1),    m = argmax log p(y, w),    H = alpha I + Phi^T diag(p (1 - p)) Phi at m,
    log p(y) ~ log p(y, m) + P/2 log 2 pi - 1/2 log det H.

Source: C. M. Bishop, "Pattern Recognition and Machine Learning" (2006), sections 4.4 and 4.5.
`N` examples, `D` features, `P` parameters, `B` batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import Count, Positive
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Bernoulli
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task
from polymode.tasks.toy.linear import correlated_features, design
from polymode.tasks.toy.quadrature import Nodes, climb, moments, trapezoid

NUM_FAR = 200
BLOCK = 1 << 22  # numbers in memory at once in `predict`


@dataclass(frozen=True, eq=False)
class LogisticPosterior:
    """Posterior over the parameters of `nn.Linear(D, 1)`: the weights in order, then the bias.

    Attributes:
        mean: (P,) float64. covariance: (P, P) float64. log_evidence: log p(y) in nats, of all N.
        error: estimate of the largest error of these, relative to the posterior's standard
            deviations, <= 1e-9.
        mode: (P,), the maximum of the posterior density. laplace_covariance: (P, P), inverse of the
            negative Hessian of the log density there. laplace_log_evidence: by that approximation.
        prior_precision: alpha > 0, of weights and bias alike.
        nodes: the posterior as weighted points.
    """

    mean: Tensor
    covariance: Tensor
    log_evidence: float
    error: float
    mode: Tensor
    laplace_covariance: Tensor
    laplace_log_evidence: float
    prior_precision: float
    nodes: Nodes

    @classmethod
    def of(cls, x: Tensor, y: Tensor, *, prior_precision: float) -> LogisticPosterior:
        """Return the posterior given features x (N, D), D <= 2, and labels y (N,) of 0 and 1."""
        phi = design(x)
        signed = phi * (2.0 * y.double()[:, None] - 1)
        num_parameters = phi.shape[1]
        log_scale = num_parameters / 2 * math.log(prior_precision / (2 * math.pi))

        def log_joint(weights: Tensor) -> Tensor:
            log_prior = log_scale - prior_precision / 2 * weights.square().sum(1)
            return log_prior + F.logsigmoid(weights @ signed.T).sum(1)

        mode, precision = climb(log_joint, torch.zeros(num_parameters))
        nodes = trapezoid(log_joint, mode, precision)
        mean, covariance = moments(nodes)
        log_peak, log_det = log_joint(mode[None]).item(), torch.logdet(precision).item()
        return cls(
            mean=mean,
            covariance=covariance,
            log_evidence=nodes.log_integral,
            error=nodes.error,
            mode=mode,
            laplace_covariance=torch.linalg.inv(precision),
            laplace_log_evidence=log_peak
            + num_parameters / 2 * math.log(2 * math.pi)
            - log_det / 2,
            prior_precision=prior_precision,
            nodes=nodes,
        )

    def predict(self, x: Tensor) -> Tensor:
        """Return the predictive probabilities (B, 2) of both classes at x (B, D), in float64."""
        rows = design(x).split(1 + BLOCK // len(self.nodes.weights))
        probs = torch.cat([self.nodes.mean((self.nodes.points @ phi.T).sigmoid()) for phi in rows])
        return torch.stack([1 - probs, probs], dim=1)


@toy_task(
    "logistic_regression",
    description="Bayesian logistic regression; posterior, evidence and predictive by quadrature",
    source="own code after Bishop (2006), sections 4.4 and 4.5",
    size="50 / 50 / 200",
)
def logistic_regression(
    *,
    seed: int = 0,
    num_features: Count = 2,
    prior_precision: Positive = 0.25,
    num_train: Count = 50,
    num_val: Count = 50,
    num_test: Count = 200,
) -> Task:
    """Return data drawn from the logistic model, with reference answers in `task.exact`.

    The features are a fixed design: standard normal with correlation 0.8 between the two, the same
    for every seed. The seed draws the weights from the prior, and the labels; so over seeds the
    posterior is calibrated. The network that it belongs to is linear with a bias,
    `nets.mlp((D,), 1, hidden=())`. OOD set `far`: 200 inputs at distance 8 to 10 of the origin.
    `task.truth` gives the class probabilities.

    Args:
        num_features: D, 1 or 2: quadrature takes time exponential in it.
        prior_precision: of the normal prior on weights and bias, > 0.
    """
    name = "logistic_regression"
    if num_features > 2:
        raise ValueError(f"`num_features` of {name} must be 1 or 2, for quadrature: {num_features}")
    stream = generator(seed, name, "weights")
    weights = torch.randn(num_features + 1, generator=stream, dtype=torch.float64)
    weights = weights / math.sqrt(prior_precision)

    def truth(x: Tensor) -> Tensor:
        logits = design(x) @ weights
        return torch.stack([(-logits).sigmoid(), logits.sigmoid()], dim=1).to(x.dtype)

    def draw(split: str, num: int) -> tuple[Tensor, Tensor]:
        x = correlated_features(name, split, num, num_features)
        place = torch.rand(num, generator=generator(seed, name, split))
        return x, (place < truth(x)[:, 1]).long()

    far = generator(seed, name, "far")
    direction = F.normalize(torch.randn(NUM_FAR, num_features, generator=far), dim=1)
    train = draw("train", num_train)
    return Task(
        name=name,
        train=train,
        val=draw("val", num_val),
        test=draw("test", num_test),
        ood={"far": direction * (8 + 2 * torch.rand(NUM_FAR, 1, generator=far))},
        likelihood=Bernoulli(),
        target_size=2,
        truth=truth,
        exact=LogisticPosterior.of(*train, prior_precision=prior_precision),
        description=f"logistic in {num_features} features, prior precision {prior_precision:g}",
    )
