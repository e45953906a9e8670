"""Two interleaved half circles, with the class posterior by quadrature.

The density of a class is that of its half circle c(t) under Gaussian noise of standard deviation s,

    p(x | class) = 1/pi  integral_0^pi  N(x; c(t), s^2 I) dt,

and as the classes are balanced p(class | x) is its share of their sum. `N` examples.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.likelihoods.kinds import Categorical
from polymode.tasks.registry import TASKS
from polymode.tasks.task import Task
from polymode.tasks.toy.options import check_sizes

MOONS_CENTRE = (0.5, 0.25)
SMALLEST = 0.01  # `noise` with a truth: the nodes that the quadrature needs grow as 1 / noise


@TASKS.register(
    "two_moons",
    description="two interleaved half circles in the plane, two classes; OOD is a ring far away",
    source="own code; the set is known from scikit-learn's make_moons",
    licence="Apache-2.0 (generated)",
    kind="toy",
    size="200 / 100 / 1,000",
)
def two_moons(
    *,
    seed: int = 0,
    noise: float = 0.1,
    num_train: int = 200,
    num_val: int = 100,
    num_test: int = 1000,
) -> Task:
    """Return two half circles of radius 1 in the plane, blurred by Gaussian noise.

    Class 0 is (cos t, sin t), class 1 is (1 - cos t, 1/2 - sin t), t uniform on [0, pi], each with
    noise of standard deviation `noise` >= 0 in both coordinates; classes alternate, so they are
    balanced. OOD set `ring`: 200 points at distance 6 to 7 of the moons' common centre (1/2, 1/4).
    `task.truth` gives the class probabilities for `noise` >= 0.01.
    """
    check_sizes("two_moons", num_train=num_train, num_val=num_val, num_test=num_test)
    if noise < 0:
        raise ValueError(f"`noise` of two_moons must be >= 0, got {noise}")

    def draw(split: str, num: int) -> tuple[Tensor, Tensor]:
        stream = generator(seed, "two_moons", split)
        labels = torch.arange(num) % 2
        angle = math.pi * torch.rand(num, generator=stream)
        x = torch.stack([angle.cos(), angle.sin()], dim=1)
        x = torch.where(labels[:, None] == 1, torch.tensor([1.0, 0.5]) - x, x)
        return x + noise * torch.randn(num, 2, generator=stream), labels

    return Task(
        name="two_moons",
        train=draw("train", num_train),
        val=draw("val", num_val),
        test=draw("test", num_test),
        ood={"ring": _ring(6.0, 7.0, 200, generator(seed, "two_moons", "ring"))},
        likelihood=Categorical(),
        target_size=2,
        truth=(lambda x: moon_probs(x, noise)) if noise >= SMALLEST else None,
        description=f"two moons with noise of standard deviation {noise:g}",
    )


def moon_probs(x: Tensor, noise: float) -> Tensor:
    """Return the class probabilities (N, 2) at x (N, 2).

    Gauss-Legendre quadrature of 16 nodes on pieces of the half circle no longer than 4 `noise`; the
    log-odds agree with adaptive quadrature to 1e-9.
    """
    wide = x.double()
    nodes, weights = np.polynomial.legendre.leggauss(16)
    edges = torch.linspace(0, math.pi, math.ceil(math.pi / (4 * noise)) + 1, dtype=torch.float64)
    half, middle = edges.diff()[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
    angle = (middle + half * torch.from_numpy(nodes)).flatten()
    log_weights = (half * torch.from_numpy(weights)).log().flatten()
    arc = torch.stack([angle.cos(), angle.sin()], dim=1)
    mirrored = torch.tensor([1.0, 0.5], dtype=torch.float64) - arc
    log_densities = [
        torch.logsumexp(log_weights - torch.cdist(wide, moon).square() / (2 * noise**2), dim=1)
        for moon in (arc, mirrored)
    ]
    return torch.stack(log_densities, dim=1).softmax(1).to(x.dtype)


def _ring(inner: float, outer: float, num: int, stream: torch.Generator) -> Tensor:
    """Return points (N, 2) around the centre of the moons."""
    angle, radius = torch.rand(2, num, generator=stream)
    radius = inner + (outer - inner) * radius
    angle = 2 * math.pi * angle
    return torch.tensor(MOONS_CENTRE) + torch.stack(
        [radius * angle.cos(), radius * angle.sin()], dim=1
    )
