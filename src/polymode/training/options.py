"""The options that methods share: how data are passed over, and how samples of a chain are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import shown
from polymode.core.registry import suggest

_EPOCHS, _STEPS = 50, 1000  # 200 values of a noisy sine are not learnt in 400 steps of Adam
NOT_ZERO = " (the maximum of the posterior is found by `map`)"  # of a temperature
Augment = Callable[[Tensor, torch.Generator], Tensor]


def is_number(value: Any) -> bool:
    """Whether an option is a finite number, and not a truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Options of passes over the training data.

    Args:
        epochs: passes over the training data, ≥ 0; None is 50, or as many as make 1,000 steps
            where that is more: small data sets have few steps per pass.
        batch_size: examples per step, ≥ 1; a `DataLoader` keeps its own.
        data_order: whether members share their batches: "shared": all see the same ones; "own":
            each member shuffles the data with its own random stream.
        augment: augmentation of every training batch: a name such as 'crop+flip' (see
            `tasks/augment.py`), or a function (inputs (B, ...), generator) -> inputs; None is none.
            With a method `pairs` (inputs, targets, generator) -> both, it may change targets too.
    """

    epochs: int | None = None
    batch_size: int = 128
    data_order: str = "shared"
    augment: Augment | str | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None:
            self._require_integer("epochs", 0)
        self._require_integer("batch_size", 1)
        self._require_name("data_order", ("shared", "own"))
        named = isinstance(self.augment, (str, dict))
        if self.augment is not None and not named and not callable(self.augment):
            rule = "a name such as 'crop+flip', a function (inputs, generator) -> inputs, or None"
            self._require(False, "augment", rule)

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

    def _require(self, holds: bool, field: str, rule: str) -> None:
        """Raise in the one form in which options are refused."""
        if not holds:
            name = type(self).__name__
            raise ValueError(
                f"`{field}` of {name} must be {rule}, got {shown(getattr(self, field))}"
            )

    def _require_integer(self, field: str, least: int) -> None:
        value = getattr(self, field)
        whole = isinstance(value, int) and not isinstance(value, bool)
        self._require(whole and value >= least, field, f"an integer of at least {least}")

    def _require_positive(self, field: str, instead: str = "") -> None:
        value = getattr(self, field)
        self._require(is_number(value) and value > 0, field, f"> 0{instead}")

    def _require_name(self, field: str, names: Sequence[str]) -> None:
        value = getattr(self, field)
        if value not in names:
            raise ValueError(
                f"`{field}` of {type(self).__name__} must be one of {', '.join(names)}, got"
                f" {shown(value)}.{suggest(str(value), names)}"
            )


@dataclass(frozen=True, kw_only=True)
class Sampling(Passes):
    """Options of Markov chains: those of `Passes`, and

    Args:
        lr: step size in the units of the method, > 0.
        temperature: temperature of the posterior that is sampled, > 0: 1 is the posterior itself,
            less is colder (narrower).
        burn_in: steps before the first sample that is kept, ≥ 0; None is half of all.
        thinning: steps from one kept sample to the next, ≥ 1; None spreads the samples evenly over
            the steps after `burn_in`.
        samples_per_mode: samples L that each chain keeps, ≥ 1; None is 20, or as many as there are
            steps after `burn_in` where these are fewer.
    """

    lr: float = 1e-4
    temperature: float = 1.0
    burn_in: int | None = None
    thinning: int | None = None
    samples_per_mode: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_positive("lr")
        self._require_positive("temperature", NOT_ZERO)
        for field, least in (("burn_in", 0), ("thinning", 1), ("samples_per_mode", 1)):
            if getattr(self, field) is not None:
                self._require_integer(field, least)

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
