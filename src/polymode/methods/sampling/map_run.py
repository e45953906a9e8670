"""A run of `map` along which networks are kept: what snapshots and checkpoints share.

Shapes: `M` modes (runs), `L` samples per mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polymode.methods import map as map_
from polymode.methods.map import MAP, Info
from polymode.methods.method import Problem
from polymode.methods.sampling.chains import posterior_gradients
from polymode.methods.sampling.keeping import keep_sample, room_for
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization


class State(NamedTuple):
    """What the next step needs, and the networks so far, `kept` (L, M, ...)."""

    stack: Stack
    optimization: Optimization
    kept: Tensors
    step: int


def start(config: MAP, problem: Problem, stack: Stack, steps: Sequence[int]) -> State:
    """Return the state before the first step of a run that keeps networks after these steps."""
    stack, optimization, first = map_.init(config, problem, stack)
    return State(stack, optimization, room_for(len(steps), stack), first)


def go_on(
    config: MAP,
    problem: Problem,
    state: State,
    batch: Batch,
    steps: Sequence[int],
    done: float | None = None,
) -> tuple[State, Info]:
    """Take one step on the log-posterior of every run, and keep networks where it is time.

    Args:
        done: share of a named schedule that lies before this step; by default that of the run.
    """
    stack, optimization, samples, number = state
    losses, _ = posterior_gradients(config.prior_precision, problem, stack, number, batch)
    optimization.update(number, done)
    if problem.selection is not None:
        problem.selection.add_within(number + 1, stack, steps)
    keep_sample(stack, samples, steps, number + 1)
    return State(stack, optimization, samples, number + 1), Info(losses)
