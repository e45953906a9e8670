"""What a fit costs, in passes over the training data, said before it is paid.

A pass is a forward and a backward pass of one network over all examples, as in an epoch of
training.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from polymode.core.warn import warn

TIMES = 20  # as long as the training, from which on it is said
_OPERATIONS = 2e11  # about ten seconds of one core; below, nobody waits
_PER_WEIGHT = 6  # operations of a pass for each example and weight, at least


class Work(NamedTuple):
    """An estimate.

    Attributes:
        passes: over the training data, for each mode, beside those of ordinary training.
        what: what takes them. cheaper: what to take instead.
    """

    passes: float
    what: str
    cheaper: str


def that_of_training(config: Any, problem: Any, stack: Any, /) -> None:
    """A method whose cost is that of its training."""
    return None


def tell_work(work: Work | None, epochs: int, num_examples: float, num_weights: int) -> None:
    """Warn of a fit that takes more than 20 times its training; of 20 passes with networks that are
    given, for which the `epochs` of a training are 0."""
    if work is None or work.passes <= TIMES * max(epochs, 1):
        return
    if _PER_WEIGHT * num_examples * num_weights * work.passes < _OPERATIONS:
        return
    training = f", where a training takes {epochs:,}" if epochs else ""
    warn(
        f"{work.what} takes about {work.passes:,.0f} passes over the data per mode{training}."
        f" Cheaper: {work.cheaper}"
    )
