"""Toy tasks of one and two dimensions, whose truth is known and can be drawn.

Every set of a task is drawn from its own random stream, so that its size does not change the
others. `N` examples.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from polymode.core.likelihoods import Categorical, Gaussian
from polymode.core.rng import generator
from polymode.tasks.registry import TASKS
from polymode.tasks.task import Task

MOONS_CENTRE = (0.5, 0.25)
GAP, EDGE, BEYOND = 0.7, 2.0, 3.5  # |x| in [GAP, EDGE] is seen; OOD lies below and above


def check_sizes(name: str, **sizes: int) -> None:
    """Refuse sets without examples."""
    for option, size in sizes.items():
        if size < 1:
            raise ValueError(f"`{option}` of {name} must be >= 1, got {size}")


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
        description=f"two moons with noise of standard deviation {noise:g}",
    )


def _ring(inner: float, outer: float, num: int, stream: torch.Generator) -> Tensor:
    """Return points (N, 2) around the centre of the moons."""
    angle, radius = torch.rand(2, num, generator=stream)
    radius = inner + (outer - inner) * radius
    angle = 2 * math.pi * angle
    return torch.tensor(MOONS_CENTRE) + torch.stack(
        [radius * angle.cos(), radius * angle.sin()], dim=1
    )


def gap_truth(x: Tensor) -> Tensor:
    """Return f(x) = sin(3 x) + x / 2, elementwise: the truth of `gap_regression`."""
    return torch.sin(3 * x) + x / 2


@TASKS.register(
    "gap_regression",
    description="a curve of one variable, seen on both sides of a gap; OOD in the gap and outside",
    source="own code",
    licence="Apache-2.0 (generated)",
    kind="toy",
    size="100 / 50 / 200",
)
def gap_regression(
    *,
    seed: int = 0,
    noise: str = "known",
    noise_std: float = 0.1,
    num_train: int = 100,
    num_val: int = 50,
    num_test: int = 200,
) -> Task:
    """Return y = sin(3 x) + x / 2 + noise, with no training inputs in the middle.

    Train, val and test have |x| uniform on [0.7, 2] with either sign. OOD sets with targets of the
    same law, 200 examples each: `gap`, |x| < 0.7, and `outside`, 2 < |x| < 3.5. The curve is
    `task.truth`.

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0.
    """
    check_sizes("gap_regression", num_train=num_train, num_val=num_val, num_test=num_test)
    if noise not in ("known", "learned"):
        raise ValueError(
            f'`noise` of gap_regression must be "known" or "learned", got {noise!r};'
            " its standard deviation is `noise_std`"
        )
    if not noise_std > 0:
        raise ValueError(f"`noise_std` of gap_regression must be > 0, got {noise_std}")

    def draw(split: str, num: int, low: float, high: float) -> tuple[Tensor, Tensor]:
        stream = generator(seed, "gap_regression", split)
        x = low + (high - low) * torch.rand(num, 1, generator=stream)
        x = torch.where(torch.rand(num, 1, generator=stream) < 0.5, -x, x)
        return x, gap_truth(x) + noise_std * torch.randn(num, 1, generator=stream)

    seen = partial(draw, low=GAP, high=EDGE)
    return Task(
        name="gap_regression",
        train=seen("train", num_train),
        val=seen("val", num_val),
        test=seen("test", num_test),
        ood={"gap": draw("gap", 200, 0.0, GAP), "outside": draw("outside", 200, EDGE, BEYOND)},
        likelihood=Gaussian(noise=noise_std if noise == "known" else "learned"),
        description=f"sin(3x) + x/2 with noise of standard deviation {noise_std:g}, {noise}",
        truth=gap_truth,
    )
