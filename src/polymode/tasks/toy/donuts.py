"""Two rings around the same point, a class each: no line parts them. `N` examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.likelihoods.kinds import Categorical
from polymode.tasks.registry import TASKS
from polymode.tasks.task import Task
from polymode.tasks.toy.options import check_sizes
from polymode.tasks.toy.plane import annulus

RINGS = ((9.0, 10.0), (3.0, 4.0))  # inner and outer radius of each class
MIDDLE = 6.5  # halfway between the rings


def donut_probs(x: Tensor) -> Tensor:
    """Return the class probabilities (N, 2) at x (N, 2): 1 for the ring that is nearer.

    On the rings this is exact; elsewhere neither class has density, and it is a convention.
    """
    outer = (x.norm(dim=1) > MIDDLE).to(x.dtype)
    return torch.stack([outer, 1 - outer], dim=1)


@TASKS.register(
    "donuts",
    description="two concentric rings in the plane, two classes; OOD in the hole, between and"
    " around them",
    source="own code after D'Angelo and Fortuin (2021)",
    licence="Apache-2.0 (generated)",
    kind="toy",
    size="200 / 100 / 400",
)
def donuts(*, seed: int = 0, num_train: int = 200, num_val: int = 100, num_test: int = 400) -> Task:
    """Return points at distance 9 to 10 (class 0) and 3 to 4 (class 1) of the origin.

    They are uniform by area on their ring; classes alternate, so they are balanced. The paper's
    code splits 100 points a class into 134 for training and 66 for test; here train has 100 a
    class. OOD sets: `centre`, 50 points from N(0, 0.4 I), 0.4 being the variance (near); `between`,
    200 points at distance 5 to 8 (near; ours); `ring`, 200 points at distance 11 to 30 (far). The
    classes do not overlap, so `task.truth` is 0 or 1.
    """
    check_sizes("donuts", num_train=num_train, num_val=num_val, num_test=num_test)

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
