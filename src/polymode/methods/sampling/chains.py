"""Options that Markov chains on minibatch gradients share, and the gradients they follow."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from polymode.core.options import option, rule
from polymode.methods.map import add_prior
from polymode.methods.method import Members, Problem
from polymode.methods.sampling.preconditioning import FROZEN, MOVING, adapt, no_metric
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.options import Sampling


@dataclass(frozen=True, kw_only=True)
class Chains(Members, Sampling):
    """Options of chains: those of `Sampling` and `Members`, and"""

    lr: float = option(
        1e-2, doc="step size", more="lr times the largest curvature of U/N must stay below 4."
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


def first_metric(preconditioner: str | None, stack: Stack) -> Tensors:
    """Return the state of the preconditioner before the first step, empty where there is none."""
    return {} if preconditioner is None else no_metric(stack)


def metric_of(
    config: Chains, problem: Problem, state: Tensors, stack: Stack, grads: list[Tensor], number: int
) -> list[Tensor] | None:
    """Return √G like `stack.leaves()` for step `number`, which learns first if it is time."""
    if not state:
        return None
    learns = config.preconditioner == MOVING or number < burn_in_of(config, problem)
    return scales(state, stack, grads, number, learns)


def scales(
    state: Tensors, stack: Stack, grads: list[Tensor], number: int, learns: bool
) -> list[Tensor]:
    """Return √G like `stack.leaves()`, after it has learnt from the gradients if it does."""
    if learns:
        adapt(state, grads, number)
    return stack.as_leaves(state["scale"])
