"""A draw from a Gaussian process, with the posterior of that process as the exact answer.

With the Matern-3/2 kernel of variance v and lengthscale l,

    k(r) = v (1 + sqrt(3) r / l) exp(-sqrt(3) r / l),    f ~ GP(0, k),    y = f(x) + sigma e,

the posterior of f given N observations is again a Gaussian process (C. E. Rasmussen, C. K. I.
Williams, "Gaussian Processes for Machine Learning" (2006), equations 2.25, 2.26 and 2.30). The data
are those of J. Antoran, J. U. Allingham, J. M. Hernandez-Lobato, "Depth Uncertainty in Neural
Networks" (NeurIPS 2020), numbers as in the authors' code. `N` examples, `B` batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.core.checks import Count, Positive
from polymode.core.rng import generator
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task
from polymode.tasks.toy.functions import NoiseKind, by_length, evenly, noisy_function
from polymode.training.data import Arrays

VARIANCE, LENGTHSCALE = 1.0, 0.5
LEFT, RIGHT = (-2.0, -1.0), (0.5, 2.5)
OUTER = (-3.5, 4.0)
SPACING = 0.01  # of the places where f is drawn; between them its standard deviation is < 0.0014


def matern_32(distance: Tensor, variance: float, lengthscale: float) -> Tensor:
    """Return k(r), elementwise, of distances r >= 0."""
    scaled = math.sqrt(3) * distance / lengthscale
    return variance * (1 + scaled) * torch.exp(-scaled)


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """Posterior of a Gaussian process with known kernel and noise.

    Attributes:
        x: (N, 1), the inputs of the observations. lengthscale: > 0, in the units of x.
        variance: v > 0. noise: sigma > 0, in the units of y.
        log_evidence: log p(y) in nats, of all N observations.
        root, solution: Cholesky root L (N, N) of K + sigma^2 I, and (K + sigma^2 I)^-1 y (N, 1).
    """

    x: Tensor
    lengthscale: float
    variance: float
    noise: float
    log_evidence: float
    root: Tensor
    solution: Tensor

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, *, lengthscale: float, variance: float, noise: float
    ) -> GaussianProcess:
        """Return the posterior given inputs x (N, 1) and targets y (N, 1), in float64."""
        x, y = x.double(), y.double()
        covariance = matern_32((x - x.T).abs(), variance, lengthscale)
        covariance = covariance + noise**2 * torch.eye(len(x), dtype=torch.float64)
        root = torch.linalg.cholesky(covariance)
        solution = torch.cholesky_solve(y, root)
        log_evidence = (
            -(y * solution).sum().item() / 2
            - root.diagonal().log().sum().item()
            - len(x) / 2 * math.log(2 * math.pi)
        )
        return cls(x, lengthscale, variance, noise, log_evidence, root, solution)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of a new observation y at x (B, 1), both (B, 1) in float64.

        The variance holds the noise; without it, `variance - noise**2`, it is that of the function.
        """
        cross = matern_32((x.double() - self.x.T).abs(), self.variance, self.lengthscale)
        half = torch.linalg.solve_triangular(self.root, cross.T, upper=False)
        variance = self.variance - half.square().sum(0)[:, None] + self.noise**2
        return cross @ self.solution, variance


@toy_task(
    "matern",
    description="a rough curve drawn from a Gaussian process, seen on two stretches, standardised;"
    " the process's posterior is the exact answer",
    source="own code after Antoran, Allingham and Hernandez-Lobato (2020)",
    size="400 / 100 / 400",
)
def matern(
    *,
    seed: int = 0,
    noise: NoiseKind = "known",
    noise_std: Positive = 0.15,
    num_train: Count = 400,
    num_val: Count = 100,
    num_test: Count = 400,
) -> Task:
    """Return a draw of a Matern-3/2 process with variance 1 and lengthscale 0.5, plus noise.

    Half of the inputs are uniform on [-2, -1], half on [0.5, 2.5]; then they are standardised with
    the statistics of the training set, as the targets are for training. OOD sets with targets, 200
    examples each: `gap`, [-1, 0.5] (near), and `outside`, [-3.5, -2] and [2.5, 4] (far; ours).

    `task.exact` is the posterior of the process, a `GaussianProcess` that takes inputs as the task
    has them and answers in the units of the targets; over seeds it is calibrated. The curve is
    drawn at places 0.01 apart and goes between them as the process's mean does, so that
    `task.truth` has a value everywhere; this lacks a variance below 2e-6, against 0.0225 of the
    noise.

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0, before standardising.
    """
    places = torch.arange(OUTER[0], OUTER[1] + SPACING / 2, SPACING, dtype=torch.float64)[:, None]
    root = torch.linalg.cholesky(matern_32((places - places.T).abs(), VARIANCE, LENGTHSCALE))
    stream = generator(seed, "matern", "function")
    white = torch.randn(len(places), 1, generator=stream, dtype=torch.float64)
    weights = torch.linalg.solve_triangular(root.T, white, upper=True)  # K^-1 f, for f = L white

    def function(x: Tensor) -> Tensor:
        return matern_32((x - places.T).abs(), VARIANCE, LENGTHSCALE) @ weights

    task = noisy_function(
        "matern",
        function,
        {
            "seen": evenly((LEFT, RIGHT)),
            "gap": by_length([(LEFT[1], RIGHT[0])]),
            "outside": by_length([(OUTER[0], LEFT[0]), (RIGHT[1], OUTER[1])]),
        },
        seed=seed,
        sizes=(num_train, num_val, num_test),
        noise=noise,
        noise_std=noise_std,
        near_ood=("gap",),
        standardise=True,
        description="a draw of a Matern-3/2 process",
    )
    assert isinstance(task.train, Arrays) and task.input_scaling is not None
    unit = task.input_scaling.scale.item()
    task.exact = GaussianProcess.of(
        task.train.x,
        task.train.y,
        lengthscale=LENGTHSCALE / unit,
        variance=VARIANCE,
        noise=noise_std,
    )
    return task
