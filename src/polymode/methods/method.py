"""What a method is, and the table of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from polymode.core.likelihoods import Likelihood
from polymode.core.registry import Registry
from polymode.core.training import Training
from polymode.posterior import Posterior


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


class Search(NamedTuple):
    """A choice among options: `fit` trains every candidate, from one seed, and keeps the best.

    Attributes:
        candidates: what is tried, such as {"alpha": 0.2}, and the options to train it with; one
            pair each.
        score: of a candidate's posterior, a finite number; the lowest is the best, the first of
            equal ones.
        criterion: what the score is, for people.
    """

    candidates: Sequence[tuple[dict[str, Any], Training]]
    score: Callable[[Posterior], float]
    criterion: str


class Method(NamedTuple):
    """A method: its options and its functional core.

    Attributes:
        config: the dataclass of options.
        init: (config, problem, stack) -> State, a named tuple with the fields `stack` and `step`.
        step: (config, problem, state, batch) -> (State, Info); Info has the members' losses `loss`
            (M,).
        search: (config, task) -> Search, or None where these options leave nothing to choose. It
            refuses a task that it cannot choose on; nothing is trained before. None for a method
            that never chooses.
    """

    config: type[Training]
    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Any]]
    search: Callable[..., Search | None] | None = None


METHODS: Registry[Method] = Registry("method")
