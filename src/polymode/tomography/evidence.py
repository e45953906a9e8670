r"""The exact evidence of the linear model for one image, and what hyperparameters maximise it.

With K = A J Σ Jᵀ Aᵀ + σ² I (m, m),

    at θ̃   log M = −½ [m log 2π + log det K + |y − A f̂|² / σ² + θ̃ᵀ Σ⁻¹ θ̃]
    at θ*   log M = −½ [m log 2π + log det K + rᵀ K⁻¹ r],    r = y − A (f − J θ),

θ* = Σ Jᵀ Aᵀ K⁻¹ r the optimum of the linear model: the second is the first with θ* and its
residual in the place of θ̃ and y − A f̂, and it is the exact log marginal likelihood. See
`linear_model.py` and Antorán et al., Adapting the linearised Laplace model evidence for modern deep
learning, ICML 2022. With TV-PredCP (`tv_predcp.py`), log p(ℓ | s²) is added.

The gradient in the coefficients c of `kernels.py` is −½ tr((K⁻¹ − α αᵀ) M_c), α = K⁻¹ r (0 at θ̃);
autograd does the rest. The search is L-BFGS on the logarithms, within bounds.

Shapes: `n` pixels, `m` observations, `C` components.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.tomography.filter_prior import Hyper
from polymode.tomography.kernels import Kernels
from polymode.tomography.linearised import Linearised

MEANS = ("linear", "trained")
LOW_VARIANCE, HIGH_VARIANCE = math.log(1e-6), math.log(1e3)
LENGTHSCALES = math.log(0.05), math.log(50.0)
Penalty = Callable[[Hyper], Tensor]


class Evidence:
    """The exact evidence of a linear model; call it with hyperparameters.

    Args:
        model: the linear model. kernels: of it, see `assemble`.
        observations: y, (m,).
        mean: "linear", the evidence at θ*; "trained", that at θ̃.
        log_prior: log density of the hyperparameters, such as TV-PredCP's; added to the evidence.
    """

    def __init__(
        self,
        model: Linearised,
        kernels: Kernels,
        observations: Tensor,
        *,
        mean: str = "linear",
        log_prior: Penalty | None = None,
    ) -> None:
        if mean not in MEANS:
            raise ValueError(f"`mean` must be one of {', '.join(MEANS)}, got '{mean}'")
        check_observations(model, observations)
        self.model, self.kernels, self.mean, self.log_prior = model, kernels, mean, log_prior
        self.residual, self.misfit = residuals(model, observations)
        self.moments = model.prior.second_moments(model.point)

    def factor(self, hyper: Hyper) -> Tensor:
        """Return the Cholesky root of K, (m, m)."""
        matrix = self.kernels.covariance(self.model.prior.coefficients(hyper))
        matrix.diagonal().add_(hyper.noise)
        return _root(matrix)

    def __call__(self, hyper: Hyper) -> tuple[float, Tensor]:
        """Return the log evidence, nats, with `log_prior`, and its gradient (2 G + 1,)."""
        flat = hyper.flat().detach().double().requires_grad_()
        learnt = Hyper.from_flat(flat)
        factor = self.factor(Hyper.from_flat(flat.detach()))
        inverse = torch.cholesky_inverse(factor)
        logdet = 2 * float(factor.diagonal().log().sum())
        value = len(inverse) * math.log(2 * math.pi) + logdet
        slope = inverse
        if self.mean == "linear":
            alpha = inverse @ self.residual
            value += float(self.residual @ alpha)
            slope = inverse - torch.outer(alpha, alpha)
        by_component = self.kernels.observed.flatten(1) @ slope.flatten()
        with torch.enable_grad():
            coefficients = self.model.prior.coefficients(learnt)
            noise = learnt.log_noise.exp()
            moving = (coefficients * by_component).sum() + noise * slope.trace()
            if self.mean == "trained":
                fit = self.misfit / noise + self.model.prior.penalty(learnt, self.moments)
                moving, value = moving + fit, value + float(fit.detach())
            total = -0.5 * moving
            if self.log_prior is not None:
                extra = self.log_prior(learnt)
                total, value = total + extra, value - 2 * float(extra.detach())
            (gradient,) = torch.autograd.grad(total, flat)
        return -0.5 * value, gradient

    def optimum(self, hyper: Hyper) -> Tensor:
        """Return θ* = Σ Jᵀ Aᵀ K⁻¹ r, (P,)."""
        alpha = torch.cholesky_solve(self.residual[:, None], self.factor(hyper))[:, 0]
        pulled = self.model.weights(self.model.back(alpha[None].to(self.model.dtype)))
        prior = self.model.prior
        return prior.multiply(prior.covariances(hyper), pulled)[0]


def _root(matrix: Tensor) -> Tensor:
    """Return the Cholesky root; where rounding hides a small σ², with 1e-12 to 1e-8 of the mean.

    That is far from any optimum, where a search may come by.
    """
    size = float(matrix.diagonal().mean())
    for extra in (0.0, 1e-12, 1e-10, 1e-8):
        matrix.diagonal().add_(extra * size)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not int(failed):
            return factor
    return torch.linalg.cholesky(matrix)


def residuals(model: Linearised, observations: Tensor) -> tuple[Tensor, float]:
    """Return r = y − A (f − J θ), (m,), float64, and |y − A f̂|²."""
    y = observations.flatten().double()
    seen = model.observe(torch.stack([model.shift, model.image])).double()
    return y - seen[0], float((y - seen[1]).square().sum())


def check_observations(model: Linearised, observations: Tensor) -> None:
    """Refuse observations of another number, or that are not finite."""
    model.operator.check_observations(observations.flatten())
    if not torch.isfinite(observations).all():
        bad = int((~torch.isfinite(observations)).sum())
        raise ValueError(f"observations must be finite, got {bad} that are not")


class Fitted(NamedTuple):
    """Hyperparameters with the largest evidence.

    Attributes:
        value: log evidence in nats, with the prior of the hyperparameters if there was one.
        steps: evaluations of it. gradient: at the end, (2 G + 1,).
    """

    hyper: Hyper
    value: float
    steps: int
    gradient: Tensor


def maximise(
    evidence: Callable[[Hyper], tuple[float, Tensor]],
    start: Hyper,
    *,
    learn_noise: bool = True,
    steps: int = 60,
) -> Fitted:
    """Return the hyperparameters that maximise an evidence, from `start` on, by L-BFGS.

    Args:
        learn_noise: whether σ² is learnt as well.
        steps: at most so many iterations.
    """
    from scipy.optimize import minimize  # late: imports of polymode are cheap

    first = start.flat().double()
    groups = len(start.log_variance)
    noise = float(start.log_noise)
    bounds = [(LOW_VARIANCE, HIGH_VARIANCE)] * groups + [LENGTHSCALES] * groups
    bounds += [(noise - 7.0, noise + 7.0) if learn_noise else (noise, noise)]
    calls = 0

    def loss(vector: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal calls
        calls += 1
        value, gradient = evidence(Hyper.from_flat(torch.from_numpy(vector.copy())))
        return -value, -gradient.numpy()

    found = minimize(
        loss, first.numpy(), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": steps, "ftol": 1e-7},
    )  # fmt: skip
    flat = torch.from_numpy(np.asarray(found.x, float))
    return Fitted(Hyper.from_flat(flat), -float(found.fun), calls, -torch.from_numpy(found.jac))
