"""Options that Markov chains on minibatch gradients share, and the gradients they follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from polymode.core.options import option, rule
from polymode.methods.map import add_prior
from polymode.methods.method import Members, Problem
from polymode.methods.sampling.preconditioning import FROZEN, MOVING, adapt, no_metric
from polymode.methods.sampling.step_limit import (
    DIRECTION,
    is_due,
    measure_curvature,
    no_curvature,
    shortening,
)
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.options import Sampling

STEP_LIMIT = 2.0  # half of what is stable


@dataclass(frozen=True, kw_only=True)
class Chains(Members, Sampling):
    """Options of chains: those of `Sampling` and `Members`, and"""

    lr: float = option(
        1e-2, doc="step size", more="lr times the largest curvature of U/N must stay below 4."
    )
    step_limit: float | None = option(
        STEP_LIMIT,
        gt=0,
        doc="largest lr times curvature; longer steps are cut, chain by chain",
        none="takes `lr` as it is",
        more="The curvature is measured during `burn_in`.",
    )
    preconditioner: str | None = option(
        None,
        choices=(FROZEN,),
        doc="steps that suit the size of each parameter's gradients",
        none="has none",
        more=f"'{FROZEN}' learns it during `burn_in` and then freezes it.",
    )
    rules = (
        rule(
            f"`preconditioner` '{FROZEN}' of {{name}} is learnt during burn_in, which is 0 steps;"
            " take burn_in >= 1, or None for half of all steps",
            lambda config: config.preconditioner != FROZEN or config.burn_in != 0,
        ),
    )


def burn_in_of(config: Sampling, problem: Problem) -> int:
    """Return how many steps come before the first that may be kept."""
    total = config.total_steps(problem.steps_per_epoch)
    return total // 2 if config.burn_in is None else config.burn_in


def steps_kept(config: Sampling, problem: Problem) -> range:
    """Return the numbers of steps after which a sample is kept."""
    return config.kept_steps(config.total_steps(problem.steps_per_epoch))


def posterior_gradients(
    prior_precision: float, problem: Problem, stack: Stack, number: int, batch: Batch
) -> tuple[Tensor, list[Tensor]]:
    """Return U/N of each chain (M,) on the batch of step `number`, the prior with it, and its
    gradients like `stack.leaves()`."""
    losses = stack.gradients(problem.likelihood.nll, batch.x, batch.y, own=batch.own, step=number)
    losses = add_prior(losses, stack, prior_precision / problem.num_examples)
    return losses, [leaf.grad for leaf in stack.leaves() if leaf.grad is not None]


class Force(NamedTuple):
    """What drives the chains in one step: U/N of each (M,), its gradients like `stack.leaves()`,
    and what scales them, alike, or None."""

    losses: Tensor
    gradients: list[Tensor]
    scales: list[Tensor] | None


class Driven(Protocol):
    """The part of a chain's state and of its step that the force is made of."""

    @property
    def stack(self) -> Stack: ...
    @property
    def metric(self) -> Tensors: ...
    @property
    def step(self) -> int: ...


class Metric(NamedTuple):
    """How steps are scaled.

    Attributes:
        preconditioner, step_limit: the options.
        lr: step size.
        learns, measures: whether the preconditioner and the curvature may change in this step.
    """

    preconditioner: str | None
    step_limit: float | None
    lr: float
    learns: bool
    measures: bool


class Scaled(Protocol):
    """Options that say how steps are scaled."""

    @property
    def preconditioner(self) -> str | None: ...
    @property
    def step_limit(self) -> float | None: ...


def first_metric(config: Scaled, stack: Stack) -> Tensors:
    """Return what scales steps before the first one: of the preconditioner and of the limit, empty
    where there is neither."""
    return {
        **({} if config.preconditioner is None else no_metric(stack)),
        **({} if config.step_limit is None else no_curvature(stack)),
    }


def force(config: Chains, problem: Problem, state: Driven, batch: Batch) -> Force:
    """Return what drives the chains of `config` in the present step."""
    burning_in = state.step < burn_in_of(config, problem)
    learns = config.preconditioner == MOVING or burning_in
    metric = Metric(config.preconditioner, config.step_limit, config.lr, learns, burning_in)
    return force_with(metric, config.prior_precision, problem, state, batch)


def force_with(
    metric: Metric, prior_precision: float, problem: Problem, state: Driven, batch: Batch
) -> Force:
    """Return what drives the chains, with steps that are scaled as `metric` says."""
    stack, number, held = state.stack, state.step, state.metric
    gradients = partial(posterior_gradients, prior_precision, problem, stack, number, batch)
    losses, grads = gradients()
    scales = None
    if metric.preconditioner is not None:
        if metric.learns:
            adapt(held, grads, number)
        scales = held["scale"]
    if metric.step_limit is not None:
        if metric.measures and is_due(number):
            measure_curvature(held, stack, grads, lambda: gradients()[1], scales)
            grads = [leaf.grad for leaf in stack.leaves() if leaf.grad is not None]
        factor = shortening(held, metric.lr, metric.step_limit)
        scales = factor.expand_as(held[DIRECTION]) if scales is None else factor * scales
    return Force(losses, grads, None if scales is None else stack.as_leaves(scales.contiguous()))
