"""Gaussian clouds in the plane, one per class: the class posterior is a softmax in closed form.

    x | class c ~ N(mu_c, I),    p(c | x) = softmax_c(-|x - mu_c|^2 / 2)

for balanced classes. Every set is drawn from its own random stream. `N` examples, `C` classes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.likelihoods.kinds import Bernoulli, Categorical, Likelihood
from polymode.tasks.registry import TASKS
from polymode.tasks.task import Task
from polymode.tasks.toy.options import check_sizes
from polymode.tasks.toy.plane import annulus

NUM_CLASSES, RADIUS = 5, 5.0
CENTRE_VARIANCE = 0.4


@TASKS.register(
    "five_gaussians",
    description="five Gaussian clouds on a ring in the plane, a class each; OOD at the centre and"
    " on a wide ring around",
    source="own code after D'Angelo and Fortuin (2021)",
    licence="Apache-2.0 (generated)",
    kind="toy",
    size="200 / 100 / 100",
)
def five_gaussians(
    *, seed: int = 0, num_train: int = 200, num_val: int = 100, num_test: int = 100
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


@TASKS.register(
    "tiny_nets",
    description="two Gaussian clouds in the plane, two classes, for networks of 2-2-1 units; OOD is"
    " a ring far away",
    source="own code after Laurent, Aldea and Franchi (2024), figure 1",
    licence="Apache-2.0 (generated)",
    kind="toy",
    size="400 / 100 / 1,000",
)
def tiny_nets(
    *, seed: int = 0, num_train: int = 400, num_val: int = 100, num_test: int = 1000
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
    check_sizes(name, **dict(zip(("num_train", "num_val", "num_test"), sizes, strict=True)))

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
