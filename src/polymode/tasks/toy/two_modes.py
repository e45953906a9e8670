"""One hidden unit, two modes: a network whose whole posterior is known.

The network of one tanh unit,

    f(x) = v tanh(w x + b) + c,    theta = (w, b, v, c) ~ N(0, I / alpha),    y ~ N(f(x), sigma^2)

(alpha = `prior_precision`, sigma = `noise`), is unchanged by the sign flip (w, b, v, c) -> (-w, -b,
-v, c). So the posterior has two modes that are mirror images, w > 0 and w < 0, of weight exactly
1/2. Given (w, b) the model is linear in (v, c), and those are integrated out in closed form: with
rows phi = (tanh(w x + b), 1), A = alpha I + Phi^T Phi / sigma^2 and r = Phi^T y / sigma^2,

    v, c | w, b, y ~ N(m, A^-1),    m = A^-1 r,
    log p(y | w, b) = log alpha - N log sigma - N/2 log 2 pi - 1/2 log det A
                      - |y - Phi m|^2 / (2 sigma^2) - alpha |m|^2 / 2.

The remaining two parameters are integrated by quadrature (`toy/quadrature.py`).
`N` examples, `P` = 4 parameters, `Q` nodes, `B` batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import Count, Positive
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Gaussian
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task
from polymode.tasks.toy.quadrature import NEGLIGIBLE, Nodes, climb, trapezoid

TRUE = (1.5, 0.5, 1.2, -0.3)  # w, b, v, c that the data come from
EDGE = 2.0  # |x| of the data is below
FLIP = torch.tensor([-1.0, -1.0, -1.0, 1.0], dtype=torch.float64)


def unit(x: Tensor, theta: Tensor) -> Tensor:
    """Return f(x) (B, 1) of inputs (B, 1), in float64."""
    w, b, v, c = theta.double()
    return v * torch.tanh(w * x.double() + b) + c


@dataclass(frozen=True, eq=False)
class TwoModePosterior:
    """Posterior over the parameters of `nets.mlp((1,), 1, hidden=(1,), activation="tanh")`.

    Parameters stand in the order (w, b, v, c) of that network's `parameters()`; mode 0 is w > 0,
    mode 1 its mirror image.

    Attributes:
        weights: (2,), probability of each mode: (1/2, 1/2), by symmetry.
        means: (2, P) and covariances: (2, P, P), of the posterior within each mode.
        modes: (2, P), the maxima of the posterior density. laplace_covariances: (2, P, P), inverses
            of the negative Hessian of the log density there.
        log_evidence: log p(y) in nats, of all N, both modes together.
        error: estimate of the largest error of the quadrature, relative to the posterior's standard
            deviations, <= 1e-9.
        separation: nats that the density of (w, b) with w = 0 lies below its peak; what is across,
            of the other mode, is as small.
        prior_precision: alpha. noise: sigma.
        nodes: (w, b) of mode 0 as weighted points. inner_means: (Q, 2) and inner_covariances:
            (Q, 2, 2), of (v, c) given each.
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor
    modes: Tensor
    laplace_covariances: Tensor
    log_evidence: float
    error: float
    separation: float
    prior_precision: float
    noise: float
    nodes: Nodes
    inner_means: Tensor
    inner_covariances: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean (P,) over both modes: zero for w, b and v, between the modes."""
        return self.weights @ self.means

    @property
    def covariance(self) -> Tensor:
        """Covariance (P, P) over both modes."""
        apart = self.means - self.mean
        within = torch.tensordot(self.weights, self.covariances, dims=1)
        return within + apart.T @ (self.weights[:, None] * apart)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a new observation y at x (B, 1), both (B, 1) in float64.

        The variance holds the noise; without it, `variance - noise**2`, it is that of the function.
        """
        means, variances = self._given_nodes(x)
        mean = self.nodes.mean(means)
        variance = self.nodes.mean(variances + (means - mean).square())
        return mean[:, None], variance[:, None]

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the log predictive density (B,) of observations y (B, 1) at x (B, 1)."""
        means, variances = self._given_nodes(x)
        log_probs = -(variances.log() + (y.double().T - means).square() / variances) / 2
        log_weights = self.nodes.weights.log()[:, None]
        return (log_weights + log_probs).logsumexp(0) - math.log(2 * math.pi) / 2

    def _given_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (Q, B) of y at x given each node's (w, b)."""
        w, b = self.nodes.points.T[:, :, None]
        hidden = torch.tanh(w * x.double()[:, 0] + b)
        v, c = self.inner_means.T[:, :, None]
        (vv, vc), (_, cc) = self.inner_covariances.permute(1, 2, 0)[..., None]
        variances = vv * hidden.square() + 2 * vc * hidden + cc + self.noise**2
        return v * hidden + c, variances

    @classmethod
    def of(cls, x: Tensor, y: Tensor, *, prior_precision: float, noise: float) -> TwoModePosterior:
        """Return the posterior given inputs x (N, 1) and targets y (N, 1)."""
        model = _Model(x.double()[:, 0], y.double()[:, 0], prior_precision, noise)
        mode, precision = climb(model.log_joint, torch.tensor(TRUE))
        outer_mode, outer_precision = climb(model.log_marginal, mode[:2])
        separation = model.separation(outer_mode)
        if separation < NEGLIGIBLE or outer_mode[0] <= 0:
            raise ValueError(
                "the modes of two_modes merge: between them the density is only"
                f" {separation:.1f} nats lower, reference answers need {NEGLIGIBLE:g};"
                " take more examples or less noise"
            )
        nodes = trapezoid(model.log_right_half, outer_mode, outer_precision)
        _, inner_means, inner_covariances = model.integrate_outer_layer(nodes.points)
        mean, covariance = _moments(nodes, inner_means, inner_covariances)
        laplace = torch.linalg.inv(precision)
        flip = torch.outer(FLIP, FLIP)
        return cls(
            weights=torch.full((2,), 0.5, dtype=torch.float64),
            means=torch.stack([mean, FLIP * mean]),
            covariances=torch.stack([covariance, flip * covariance]),
            modes=torch.stack([mode, FLIP * mode]),
            laplace_covariances=torch.stack([laplace, flip * laplace]),
            log_evidence=nodes.log_integral + math.log(2),
            error=nodes.error,
            separation=separation,
            prior_precision=prior_precision,
            noise=noise,
            nodes=nodes,
            inner_means=inner_means,
            inner_covariances=inner_covariances,
        )


class _Model(NamedTuple):
    """Log densities of the parameters, given all data x, y (N,)."""

    x: Tensor
    y: Tensor
    prior_precision: float
    noise: float

    def log_joint(self, points: Tensor) -> Tensor:
        """Return log p(y, theta) (Q,) of theta (Q, 4)."""
        w, b, v, c = points.T[:, :, None]
        errors = (self.y - v * torch.tanh(w * self.x + b) - c).square().sum(1)
        constant = 2 * math.log(self.prior_precision / (2 * math.pi))
        constant -= len(self.x) * math.log(2 * math.pi * self.noise**2) / 2
        log_prior = -self.prior_precision / 2 * points.square().sum(1)
        return constant + log_prior - errors / (2 * self.noise**2)

    def log_marginal(self, points: Tensor) -> Tensor:
        """Return log p(y, w, b) (Q,) of points (w, b) (Q, 2)."""
        constant = math.log(self.prior_precision / (2 * math.pi))
        log_prior = constant - self.prior_precision / 2 * points.square().sum(1)
        return log_prior + self.integrate_outer_layer(points)[0]

    def log_right_half(self, points: Tensor) -> Tensor:
        """Return `log_marginal` of mode 0 alone."""
        return self.log_marginal(points).masked_fill(points[:, 0] <= 0, -math.inf)

    def separation(self, mode: Tensor) -> float:
        """Return how many nats the density with w = 0 lies below that at `mode`."""
        between = torch.zeros(2001, 2, dtype=torch.float64)
        reach = 10 / math.sqrt(self.prior_precision)
        between[:, 1] = torch.linspace(-reach, reach, 2001, dtype=torch.float64)
        return (self.log_marginal(mode[None])[0] - self.log_marginal(between).max()).item()

    def integrate_outer_layer(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p(y | w, b) (Q,), and mean (Q, 2) and covariance (Q, 2, 2) of (v, c)."""
        x, y, variance = self.x, self.y, self.noise**2
        hidden = torch.tanh(points[:, :1] * x + points[:, 1:])
        a = self.prior_precision + hidden.square().sum(1) / variance
        b = hidden.sum(1) / variance
        d = torch.full_like(a, self.prior_precision + len(x) / variance)
        r, s = hidden @ y / variance, y.sum() / variance
        det = a * d - b * b
        mean = torch.stack([d * r - b * s, a * s - b * r], dim=1) / det[:, None]
        covariance = torch.stack([d, -b, -b, a], dim=1).view(-1, 2, 2) / det[:, None, None]
        errors = (y - mean[:, :1] * hidden - mean[:, 1:]).square().sum(1)
        misfit = errors / variance + self.prior_precision * mean.square().sum(1)
        log_evidence = (
            math.log(self.prior_precision)
            - len(x) * math.log(2 * math.pi * variance) / 2
            - det.log() / 2
            - misfit / 2
        )
        return log_evidence, mean, covariance


def _moments(nodes: Nodes, means: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (P,) and covariance (P, P) of (w, b, v, c) within a mode."""
    points = torch.cat([nodes.points, means], dim=1)
    mean = nodes.mean(points)
    centred = points - mean
    covariance = centred.T @ (nodes.weights[:, None] * centred)
    covariance[2:, 2:] += nodes.mean(covariances)
    return mean, covariance


@toy_task(
    "two_modes",
    description="regression with one tanh unit, whose posterior of two mirrored modes is known by"
    " quadrature",
    size="30 / 30 / 200",
)
def two_modes(
    *,
    seed: int = 0,
    noise: Positive = 0.2,
    prior_precision: Positive = 1.0,
    num_train: Count = 30,
    num_val: Count = 30,
    num_test: Count = 200,
) -> Task:
    """Return y = 1.2 tanh(1.5 x + 0.5) - 0.3 + noise on |x| < 2, with `task.exact`.

    The network that the exact posterior belongs to is `nets.mlp((1,), 1, hidden=(1,),
    activation="tanh")` with its 4 parameters, the prior N(0, I / alpha) on all of them and the
    noise known. The seed draws inputs and noise; the four true parameters are the same. OOD set
    `outside`: 2 < |x| < 5, with targets (far).

    With the default options the modes are hundreds of nats apart (`task.exact.separation`); with
    few examples and much noise they merge, which is refused.

    Args:
        noise: known standard deviation of the targets, > 0.
        prior_precision: of the normal prior on all parameters, > 0.
    """

    def truth(x: Tensor) -> Tensor:
        return unit(x, torch.tensor(TRUE)).to(x.dtype)

    def draw(split: str, num: int, low: float, high: float) -> tuple[Tensor, Tensor]:
        stream = generator(seed, "two_modes", split)
        x = low + (high - low) * torch.rand(num, 1, generator=stream)
        x = torch.where(torch.rand(num, 1, generator=stream) < 0.5, -x, x)
        return x, truth(x) + noise * torch.randn(num, 1, generator=stream)

    train = draw("train", num_train, 0.0, EDGE)
    exact = TwoModePosterior.of(*train, prior_precision=prior_precision, noise=noise)
    return Task(
        name="two_modes",
        train=train,
        val=draw("val", num_val, 0.0, EDGE),
        test=draw("test", num_test, 0.0, EDGE),
        ood={"outside": draw("outside", 200, EDGE, 5.0)},
        likelihood=Gaussian(noise=noise),
        target_scaling=None,
        truth=truth,
        exact=exact,
        description=f"one tanh unit; noise {noise:g}, prior precision {prior_precision:g}",
    )
