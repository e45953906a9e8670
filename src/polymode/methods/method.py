"""What a method is, and the table of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from polymode.core.options import Config, option
from polymode.core.registry import Registry
from polymode.likelihoods.kinds import Likelihood
from polymode.methods.work import Work, that_of_training
from polymode.nets.conversion.conversion import Conversion, Sample
from polymode.posterior import Posterior, Samples, Weights
from polymode.stack.stack import Stack
from polymode.training.data import Data
from polymode.training.holdout import Selection
from polymode.training.loop import Batch
from polymode.training.options import Passes


class Problem(NamedTuple):
    """What a method must know of the data.

    Attributes:
        likelihood: how targets depend on the network's outputs.
        num_examples: N, so that a prior weighs as it should compared with a batch mean: how many
            observations there are, one per example unless examples have positions or weights.
        target_size: number of classes, or of regression targets.
        steps_per_epoch: batches in one pass.
        data: the training data, targets scaled; `data.batches(size)` yields (x, y) in order. None
            in a loop of one's own that has no use for it.
        seed: of what is random in the method itself.
        selection: scores members on held-out examples, for a method that keeps the best weights of
            intervals; None where nothing is held out.
        validation: the validation data of the task, targets scaled, for a method that chooses a
            number on them; None where there are none.
    """

    likelihood: Likelihood
    num_examples: float
    target_size: int
    steps_per_epoch: int
    data: Data | None = None
    seed: int = 0
    selection: Selection | None = None
    validation: Data | None = None

    def inputs(self, batch_size: int) -> Iterator[Tensor]:
        """Yield the training inputs in batches (B, ...)."""
        if self.data is None:
            raise ValueError("this needs the training data: give Problem(..., data=task.train)")
        return (x for x, _ in self.data.batches(batch_size))


@dataclass(frozen=True, kw_only=True)
class Members(Config):
    """Options of networks under a Gaussian prior:"""

    usual_modes: ClassVar[int] = 1
    num_modes: int | None = option(
        None,
        ge=1,
        doc="how many networks, each from its own initialisation",
        more="None is the number of modules that are given; for a factory, what the method usually"
        " takes.",
    )
    prior_precision: float = option(
        1.0,
        ge=0,
        choices=("auto",),
        doc="λ of the Gaussian prior over the weights",
        more="1 is the usual prior of Bayesian neural networks. 'auto' is where the evidence of the"
        " training data is largest: in closed form for a linear layer on frozen features, otherwise"
        " by one training more, of a copy of the first member, as by `laplace_map`.",
    )


class Search(NamedTuple):
    """A choice among options: `fit` trains every candidate, from one seed, and keeps the best.

    Attributes:
        candidates: what is tried, such as {"alpha": 0.2}, and the options to train it with; one
            pair each.
        score: of a candidate's posterior, a finite number; the lowest is the best, the first of
            equal ones.
        criterion: what the score is, for people.
    """

    candidates: Sequence[tuple[dict[str, Any], Passes]]
    score: Callable[[Posterior], float]
    criterion: str


class Init(Protocol):
    def __call__(self, config: Any, problem: Problem, stack: Stack, /) -> Any: ...


class Step(Protocol):
    def __call__(self, config: Any, problem: Problem, state: Any, batch: Batch, /) -> Any: ...


class Finish(Protocol):
    def __call__(self, config: Any, problem: Problem, state: Any, /) -> Weights: ...


def networks_as_they_are(config: Passes, problem: Problem, state: Any) -> Weights:
    """Each network of the state is one sample of its mode."""
    return Samples(state.stack)


def hands_inputs_on(config: Any) -> bool:
    """Networks see the inputs, and nothing else does."""
    return False


class Method(NamedTuple):
    """A method: its options and its functional core.

    Attributes:
        config: the dataclass of options.
        init: (config, problem, stack) -> State, a named tuple with the fields `stack` and `step`.
        step: (config, problem, state, batch) -> (State, Info); Info has `loss` (M,), what each
            member minimises by itself, or the energy that it samples, in nats per example: the mean
            of −log p over the batch plus −log prior / N. What members do to each other is a field
            of its own.
        finish: (config, problem, state) -> Weights, what the last state means. It may take a while:
            passes over `problem.data` are shown as progress. A function of its arguments, so that a
            run that is killed in it resumes at the last checkpoint of the training.
        search: (config, task) -> Search, or None where these options leave nothing to choose. It
            refuses a task that it cannot choose on; nothing is trained before. None for a method
            that never chooses.
        uses_inputs: (config) -> whether the method does more with inputs than to hand them to the
            network, such as to differentiate by them; then a frozen trunk is not cut off.
        work: (config, problem, stack) -> Work, an estimate where it is more than the training, or
            None.
        convert: (config, num_modes, sample) -> Conversion or None, how the method changes networks
            before they are stacked (`nets/conversion`).
        post_hoc: whether networks that are given (modules, or a posterior) are taken as they are,
            so that `step` is not called. Factories are trained first.
    """

    config: type[Passes]
    init: Init
    step: Step
    finish: Finish = networks_as_they_are
    search: Callable[..., Search | None] | None = None
    post_hoc: bool = False
    convert: Callable[[Any, int, Sample], Conversion | None] | None = None
    uses_inputs: Callable[[Any], bool] = hands_inputs_on
    work: Callable[[Any, Problem, Stack], Work | None] = that_of_training


METHODS: Registry[Method] = Registry("method")


def on_all_data(method: str) -> dict[str, Any]:
    """Return the option by which a method trains on all data to the last step, where it has a
    choice.

    >>> on_all_data("deep_ensemble")
    {'holdout': 0}
    """
    return {"holdout": 0} if hasattr(METHODS.get(method).value.config, "holdout") else {}
