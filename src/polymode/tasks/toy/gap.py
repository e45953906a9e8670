"""A curve with nothing seen in its middle: the smallest regression with an inside to be unsure of.

Every set of a task is drawn from its own random stream, so that its size does not change the
others. `N` examples.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.likelihoods.kinds import Gaussian
from polymode.tasks.registry import TASKS
from polymode.tasks.task import Task
from polymode.tasks.toy.options import check_noise, check_sizes

GAP, EDGE, BEYOND = 0.7, 2.0, 3.5  # |x| in [GAP, EDGE] is seen; OOD lies below and above


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
    same law, 200 examples each: `gap`, |x| < 0.7 (near), and `outside`, 2 < |x| < 3.5 (far). The
    curve is `task.truth`.

    Args:
        noise: "known" (the likelihood is told the true standard deviation) or "learned".
        noise_std: standard deviation of the noise in y, > 0.
    """
    check_sizes("gap_regression", num_train=num_train, num_val=num_val, num_test=num_test)
    check_noise("gap_regression", noise, noise_std)

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
        near_ood=("gap",),
        likelihood=Gaussian(noise=noise_std if noise == "known" else "learned"),
        target_scaling=None,
        description=f"sin(3x) + x/2 with noise of standard deviation {noise_std:g}, {noise}",
        truth=gap_truth,
    )
