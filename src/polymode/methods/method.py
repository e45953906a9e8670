"""What a method is, and the table of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor

from polymode.core.likelihoods import Likelihood
from polymode.core.registry import Registry
from polymode.core.training import Training


class Problem(NamedTuple):
    """What a method must know of the data.

    Attributes:
        likelihood: how targets depend on the network's outputs.
        num_examples: N, so that a prior weighs as it should beside a batch mean.
        target_size: number of classes, or of regression targets.
        steps_per_epoch: batches in one pass.
        inputs: a function that returns the training inputs in batches (B, ...), for methods that
            must have seen them before they start.
    """

    likelihood: Likelihood
    num_examples: int
    target_size: int
    steps_per_epoch: int
    inputs: Callable[[], Iterable[Tensor]] | None = None


class Method(NamedTuple):
    """A method: its options and its functional core.

    Attributes:
        config: the dataclass of options.
        init: (config, problem, stack) -> State, a named tuple with the fields `stack` and `step`.
        step: (config, problem, state, batch) -> (State, Info); Info has the members' losses `loss`
            (M,).
    """

    config: type[Training]
    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]]


METHODS: Registry[Method] = Registry("method")
