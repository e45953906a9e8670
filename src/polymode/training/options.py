"""The options that methods share: how data are passed over, and how samples of a chain are kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from polymode.core.options import Config, option, rule

_EPOCHS, _STEPS = 50, 1000  # 200 values of a noisy sine are not learnt in 400 steps of Adam
NOT_ZERO = "the maximum of the posterior is found by `map`"  # of a temperature
Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, kw_only=True)
class Passes(Config):
    """Options of passes over the training data."""

    stops_together: ClassVar[bool] = False  # whether held-out data choose one step for all members
    # whether networks that are kept along a run are the best of their intervals on held-out data
    keeps_best_of_intervals: ClassVar[bool] = False
    ends_sampling: ClassVar[bool] = False  # whether training is followed by a chain
    epochs: int | None = option(
        None,
        ge=0,
        doc="passes over the training data",
        none="is 50, or as many as make 1,000 steps where that is more",
        more="Small data sets have few steps per pass.",
    )
    batch_size: int = option(
        128, ge=1, doc="examples per step", more="A `DataLoader` keeps its own."
    )
    data_order: str = option(
        "own",
        choices=("own", "shared"),
        doc="whether each member shuffles the data for itself",
        more="'own': members see different batches, so that the noise of their last steps differs;"
        " of a map-style `DataLoader` each member makes a pass of its own, while other loaders have"
        " one order for all. 'shared': all members see the same batches, which are read once.",
    )
    augment: Augment | str | None = option(
        None,
        rule=rule(
            "a name such as 'crop+flip', a function (inputs, generator) -> inputs, or None",
            lambda value: isinstance(value, str | dict) or callable(value),
        ),
        doc="augmentation of every training batch",
        none="is none",
        more="With a method `pairs` (inputs, targets, generator) -> both, a function may change"
        " targets too. Names are in `tasks/augment.py`.",
    )

    def num_epochs(self, steps_per_epoch: int) -> int:
        """Return how many passes there are over data that come in so many batches."""
        if self.epochs is not None:
            return self.epochs
        return max(_EPOCHS, math.ceil(_STEPS / max(steps_per_epoch, 1)))

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return how many steps all passes have."""
        return steps_per_epoch * self.num_epochs(steps_per_epoch)

    @property
    def advice(self) -> str:
        """What to try where the loss leaves the finite numbers."""
        return "Try a smaller learning rate, and check the scale of the inputs"


@dataclass(frozen=True, kw_only=True)
class Sampling(Passes):
    """Options of Markov chains: those of `Passes`, and"""

    lr: float = option(1e-4, gt=0, doc="step size in the units of the method")
    temperature: float = option(
        1.0,
        gt=0,
        because=NOT_ZERO,
        doc="temperature of the posterior that is sampled",
        more="1 is the posterior itself, less is colder (narrower).",
    )
    burn_in: int | None = option(
        None, ge=0, doc="steps before the first sample that is kept", none="is half of all"
    )
    thinning: int | None = option(
        None,
        ge=1,
        doc="steps from one kept sample to the next",
        none="spreads the samples evenly over the steps after `burn_in`",
    )
    samples_per_mode: int | None = option(
        None,
        ge=1,
        doc="samples L that each chain keeps",
        none="is 20, or as many as there are steps after `burn_in` where these are fewer",
    )

    @property
    def advice(self) -> str:
        rate = min(self.lr / 10, type(self).lr)
        return f"Try lr={rate:g} instead of {self.lr:g}, and check the scale of the inputs"

    def kept_steps(self, total_steps: int) -> range:
        """Return the numbers of steps after which a sample is kept."""
        return kept_steps(total_steps, self.burn_in, self.thinning, self.samples_per_mode)


@cache
def kept_steps(
    total_steps: int, burn_in: int | None, thinning: int | None, number: int | None
) -> range:
    """Return the numbers of steps after which something is kept; the last is the last step.

    Args:
        total_steps: of the run.
        burn_in: steps before; None is half of all.
        thinning: steps from one to the next; None spreads them evenly over what is left.
        number: how many; None is 20, or as many as fit.

    >>> kept_steps(10, burn_in=4, thinning=None, number=3)
    range(6, 11, 2)
    """
    if total_steps == 0:
        return range(0)
    burn_in = total_steps // 2 if burn_in is None else burn_in
    left = total_steps - burn_in
    if left < 1:
        raise ValueError(
            f"burn_in={burn_in} leaves nothing to keep of a run of {total_steps} steps; take more"
            " epochs or a smaller burn_in"
        )
    number = min(20, left // (thinning or 1)) if number is None else number
    apart = thinning or max(left // max(number, 1), 1)
    if number < 1 or number * apart > left:
        raise ValueError(
            f"{max(number, 1)} to keep, {apart} steps apart, need {max(number, 1) * apart} steps"
            f" after burn_in={burn_in}, but of {total_steps} in all {left} are left; take more"
            " epochs, fewer to keep, or a smaller burn_in or thinning"
        )
    return range(total_steps - (number - 1) * apart, total_steps + 1, apart)
