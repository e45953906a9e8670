"""Classifications of points in the plane whose class probabilities are known.

Gaussian clouds, one per class (`five_gaussians`, `tiny_nets`), have a softmax in closed form,

    x | class c ~ N(mu_c, I),    p(c | x) = softmax_c(-|x - mu_c|^2 / 2)

for balanced classes. Concentric rings (`donuts`) do not overlap. Interleaved half circles c(t)
under Gaussian noise of standard deviation s (`two_moons`) have

    p(x | class) = 1/pi  integral_0^pi  N(x; c(t), s^2 I) dt

by quadrature. Every set is drawn from its own random stream. `N` examples, `C` classes.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Generator, Tensor

from polymode.core.checks import Count
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Bernoulli, Categorical, Likelihood
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task

Real = float | Tensor


def annulus(inner: Real, outer: Real, num: int, stream: Generator) -> Tensor:
    """Return points (N, 2) around the origin at distances `inner` to `outer`, uniform by area.

    Both radii may be tensors (N,), one of them for each point.
    """
    place, angle = torch.rand(2, num, generator=stream)
    radius = (inner**2 + (outer**2 - inner**2) * place).sqrt()
    angle = 2 * math.pi * angle
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


NUM_CLASSES, RADIUS = 5, 5.0
CENTRE_VARIANCE = 0.4


@toy_task(
    "five_gaussians",
    description="five Gaussian clouds on a ring in the plane, a class each; OOD at the centre and"
    " on a wide ring around",
    source="own code after D'Angelo and Fortuin (2021)",
    size="200 / 100 / 100",
)
def five_gaussians(
    *, seed: int = 0, num_train: Count = 200, num_val: Count = 100, num_test: Count = 100
) -> Task:
    """Return unit-variance Gaussians at five even places of a circle of radius 5, from (0, 5) on.

    Classes alternate, so they are balanced: 40 a class in train, 20 in val and in test; the paper
    has no val. OOD sets: `ring`, 200 points at distance 11 to 30 of the origin, uniform by area
    (far), and `centre`, 50 points from N(0, 0.4 I), 0.4 being the variance (near). `task.truth`
    gives the class probabilities.
    """
    turns = torch.arange(NUM_CLASSES, dtype=torch.float64) / NUM_CLASSES
    angle = math.pi / 2 + 2 * math.pi * turns
    means = RADIUS * torch.stack([angle.cos(), angle.sin()], dim=1)
    centre = math.sqrt(CENTRE_VARIANCE)
    return _clouds(
        "five_gaussians",
        means,
        Categorical(),
        seed=seed,
        sizes=(num_train, num_val, num_test),
        ood={
            "ring": annulus(11.0, 30.0, 200, generator(seed, "five_gaussians", "ring")),
            "centre": centre
            * torch.randn(50, 2, generator=generator(seed, "five_gaussians", "centre")),
        },
        near_ood=("centre",),
        description="five unit-variance Gaussians on a circle of radius 5",
    )


@toy_task(
    "tiny_nets",
    description="two Gaussian clouds in the plane, two classes, for networks of 2-2-1 units; OOD is"
    " a ring far away",
    source="own code after Laurent, Aldea and Franchi (2024), figure 1",
    size="400 / 100 / 1,000",
)
def tiny_nets(
    *, seed: int = 0, num_train: Count = 400, num_val: Count = 100, num_test: Count = 1000
) -> Task:
    """Return unit-variance Gaussians at (-2, -2), class 0, and (2, 2), class 1, 200 points each.

    The data on which the paper trains 10,000 networks `nets.mlp((2,), 1, hidden=(2,))` to look at
    their two output weights. It publishes the points and not their law: their means are (-2.1,
    -1.9) and (2.2, 2.2), their variances 0.92 to 0.99, and a line separates the classes. The round
    numbers are our reading; drawn so, 0.23 % of the points lie on the wrong side of that line, and
    a set need not be separable. OOD set `ring`: 200 points at distance 10 to 12 of the origin
    (far). `task.truth` gives the class probabilities, those of the log-odds 4 (x_1 + x_2).
    """
    return _clouds(
        "tiny_nets",
        torch.tensor([[-2.0, -2.0], [2.0, 2.0]], dtype=torch.float64),
        Bernoulli(),
        seed=seed,
        sizes=(num_train, num_val, num_test),
        ood={"ring": annulus(10.0, 12.0, 200, generator(seed, "tiny_nets", "ring"))},
        near_ood=(),
        description="two unit-variance Gaussians at (-2, -2) and (2, 2)",
    )


def _clouds(
    name: str,
    means: Tensor,
    likelihood: Likelihood,
    *,
    seed: int,
    sizes: tuple[int, int, int],
    ood: dict[str, Tensor],
    near_ood: tuple[str, ...],
    description: str,
) -> Task:
    """Return a task whose classes are N(means[c], I), in turn."""

    def draw(split: str, num: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(num) % len(means)
        noise = torch.randn(num, 2, generator=generator(seed, name, split))
        return means[labels].float() + noise, labels

    def truth(x: Tensor) -> Tensor:
        return (-torch.cdist(x.double(), means).square() / 2).softmax(1).to(x.dtype)

    train, val, test = (draw(s, n) for s, n in zip(("train", "val", "test"), sizes, strict=True))
    return Task(
        name=name,
        train=train,
        val=val,
        test=test,
        ood=ood,
        near_ood=near_ood,
        likelihood=likelihood,
        target_size=len(means),
        truth=truth,
        description=description,
    )


RINGS = ((9.0, 10.0), (3.0, 4.0))  # inner and outer radius of each class
MIDDLE = 6.5  # halfway between the rings


def donut_probs(x: Tensor) -> Tensor:
    """Return the class probabilities (N, 2) at x (N, 2): 1 for the ring that is nearer.

    On the rings this is exact; elsewhere neither class has density, and it is a convention.
    """
    outer = (x.norm(dim=1) > MIDDLE).to(x.dtype)
    return torch.stack([outer, 1 - outer], dim=1)


@toy_task(
    "donuts",
    description="two concentric rings in the plane, two classes; OOD in the hole, between and"
    " around them",
    source="own code after D'Angelo and Fortuin (2021)",
    size="200 / 100 / 400",
)
def donuts(
    *, seed: int = 0, num_train: Count = 200, num_val: Count = 100, num_test: Count = 400
) -> Task:
    """Return points at distance 9 to 10 (class 0) and 3 to 4 (class 1) of the origin.

    They are uniform by area on their ring; classes alternate, so they are balanced. The paper's
    code splits 100 points a class into 134 for training and 66 for test; here train has 100 a
    class. OOD sets: `centre`, 50 points from N(0, 0.4 I), 0.4 being the variance (near); `between`,
    200 points at distance 5 to 8 (near; ours); `ring`, 200 points at distance 11 to 30 (far). The
    classes do not overlap, so `task.truth` is 0 or 1.
    """

    def draw(split: str, num: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(num) % 2
        inner, outer = torch.tensor(RINGS)[labels].T
        return annulus(inner, outer, num, generator(seed, "donuts", split)), labels

    def stream(key: str) -> torch.Generator:
        return generator(seed, "donuts", key)

    return Task(
        name="donuts",
        train=draw("train", num_train),
        val=draw("val", num_val),
        test=draw("test", num_test),
        ood={
            "centre": math.sqrt(0.4) * torch.randn(50, 2, generator=stream("centre")),
            "between": annulus(5.0, 8.0, 200, stream("between")),
            "ring": annulus(11.0, 30.0, 200, stream("ring")),
        },
        near_ood=("centre", "between"),
        likelihood=Categorical(),
        target_size=2,
        truth=donut_probs,
        description="two rings of radii 9 to 10 and 3 to 4",
    )


MOONS_CENTRE = (0.5, 0.25)
SMALLEST = 0.01  # `noise` with a truth: the nodes that the quadrature needs grow as 1 / noise


@toy_task(
    "two_moons",
    description="two interleaved half circles in the plane, two classes; OOD is a ring far away",
    source="own code; the set is known from scikit-learn's make_moons",
    size="200 / 100 / 1,000",
)
def two_moons(
    *,
    seed: int = 0,
    noise: float = 0.1,
    num_train: Count = 200,
    num_val: Count = 100,
    num_test: Count = 1000,
) -> Task:
    """Return two half circles of radius 1 in the plane, blurred by Gaussian noise.

    Class 0 is (cos t, sin t), class 1 is (1 - cos t, 1/2 - sin t), t uniform on [0, pi], each with
    noise of standard deviation `noise` >= 0 in both coordinates; classes alternate, so they are
    balanced. OOD set `ring`: 200 points at distance 6 to 7 of the moons' common centre (1/2, 1/4).
    `task.truth` gives the class probabilities for `noise` >= 0.01.
    """
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
