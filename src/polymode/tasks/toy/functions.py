"""A known function seen through noise: what all regressions of this folder share.

    y = f(x) + sigma e,    e ~ N(0, 1)

sigma is `noise_std`, a standard deviation. Every set is drawn from its own random stream, so that
its size does not change the others. `N` examples, `D` input features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import torch
from torch import Generator, Tensor

from polymode.core.checks import Meaning, Range
from polymode.core.rng import generator
from polymode.likelihoods.kinds import Gaussian
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.task import Task

NUM_OOD = 200

Function = Callable[[Tensor], Tensor]
Inputs = Callable[[int, Generator], Tensor]
Interval = tuple[float, float]
NoiseKind = Annotated[
    str,
    Range("", lambda word: word in ("known", "learned")),
    Meaning('"known" or "learned" (its standard deviation is `noise_std`)'),
]


def evenly(intervals: Sequence[Interval]) -> Inputs:
    """Return a law of inputs: as many in each interval, one after the other, uniform within."""
    low, high = torch.tensor(intervals).T

    def draw(num: int, stream: Generator) -> Tensor:
        which = torch.arange(num) % len(low)
        place = torch.rand(num, generator=stream)
        return (low[which] + (high - low)[which] * place)[:, None]

    return draw


def by_length(intervals: Sequence[Interval]) -> Inputs:
    """Return a law of inputs: uniform on the union of the intervals."""
    low, high = torch.tensor(intervals).T
    ends = (high - low).cumsum(0)

    def draw(num: int, stream: Generator) -> Tensor:
        place = ends[-1] * torch.rand(num, generator=stream)
        which = torch.searchsorted(ends, place).clamp(max=len(ends) - 1)
        return (high[which] - (ends[which] - place)).clamp(low[which], high[which])[:, None]

    return draw


def noisy_function(
    name: str,
    function: Function,
    inputs: Mapping[str, Inputs],
    *,
    seed: int,
    sizes: tuple[int, int, int],
    noise: str,
    noise_std: float,
    near_ood: Sequence[str] = (),
    grid: Tensor | None = None,
    standardise: bool = False,
    description: str,
) -> Task:
    """Return the task of learning `function` from noisy values.

    Args:
        function: f, elementwise in the examples: (N, D) to (N, 1), evaluated in float64.
        inputs: laws of the inputs; "seen" is that of train, val and test, but "train" may have its
            own; every other key is an OOD set of `NUM_OOD` examples with targets.
        sizes: of train, val and test.
        noise: "known" to the likelihood, or "learned". noise_std: sigma > 0, in the units of f.
        grid: inputs (N, D) of a published test set, for the shift "grid"; its targets are noisy.
        standardise: scale inputs with statistics of the training set, targets so for training.
    """
    ood = dict(inputs)
    usual = ood.pop("seen")
    first = ood.pop("train", usual)
    x_train = first(sizes[0], generator(seed, name, "train"))
    scaling = Scaling.of(x_train) if standardise else None

    def truth(x: Tensor) -> Tensor:
        wide = x.double() if scaling is None else scaling.inverse(x.double())
        return function(wide).to(x.dtype)

    def draw(split: str, law: Inputs, num: int) -> tuple[Tensor, Tensor]:
        stream = generator(seed, name, split)
        x = law(num, stream)
        x = x if scaling is None else scaling(x)
        return x, truth(x) + noise_std * torch.randn(num, 1, generator=stream)

    train = draw("train", first, sizes[0])
    target_scaling = Scaling.of(train[1]) if standardise else None
    unit = 1.0 if target_scaling is None else target_scaling.scale.item()
    return Task(
        name=name,
        train=train,
        val=draw("val", usual, sizes[1]),
        test=draw("test", usual, sizes[2]),
        ood={key: draw(key, law, NUM_OOD) for key, law in ood.items()},
        near_ood=near_ood,
        shifts={} if grid is None else {"grid": {1: draw("grid", lambda *_: grid, len(grid))}},
        likelihood=Gaussian(noise=noise_std / unit if noise == "known" else "learned"),
        input_scaling=scaling,
        target_scaling=target_scaling,
        truth=truth,
        description=f"{description}; noise of standard deviation {noise_std:g}, {noise}",
    )
