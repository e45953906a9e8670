"""NAME: what it does, in one line.

    θ_{t+1} = θ_t − η (∇ L(θ_t) + σ ε_t),   ε ~ N(0, I)          η = `lr`, σ = `noise_scale`
    p(y | x) ≈ (1/L) Σ_{t > T − L} p(y | f_{θ_t}(x))              L = `samples_per_mode`

Say here which paper and equation this is, what was chosen where paper and code disagree, and the
limits. The example descends with noise and keeps the last L networks of its path.

Reference: A. Author, Title, Venue, year.
Shapes: `M` modes, `L` samples per mode, `B` batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from polymode.core.options import option
from polymode.methods import map as map_
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.posterior import Samples
from polymode.posterior.weights import changing_tensors
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization
from polymode.training.options import kept_steps


@dataclass(frozen=True, kw_only=True)
class Trail(MAP):
    """Options of `trail`: those of `map`, and"""

    noise_scale: float = option(0.01, ge=0, doc="σ, standard deviation of the gradient noise")
    samples_per_mode: int = option(
        5,
        ge=1,
        doc="L networks that are kept of each mode",
        more="Fewer where there are fewer steps.",
    )


class State(NamedTuple):
    """What the next step needs, and the networks so far, `kept` (L, M, ...)."""

    stack: Stack
    optimization: Optimization
    kept: Tensors
    step: int


def init(config: Trail, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    stack, optimization, first = map_.init(config, problem, stack)
    number = len(steps_kept(config, problem))
    kept = {name: t.new_zeros(number, *t.shape) for name, t in changing_tensors(stack).items()}
    return State(stack, optimization, kept, first)


def steps_kept(config: Trail, problem: Problem) -> range:
    """Return the numbers of the last L steps."""
    total = config.total_steps(problem.steps_per_epoch)
    return kept_steps(total, 0, 1, min(config.samples_per_mode, total))


def step(config: Trail, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one noisy step on the log-posterior of every member."""
    stack, optimization, kept, number = state
    loss = problem.likelihood.nll
    losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    losses = map_.add_prior(losses, stack, config.prior_precision / problem.num_examples)
    gradients = [leaf.grad for leaf in stack.leaves() if leaf.grad is not None]
    noise = stack.as_leaves(stack.normal_rows("trail", number))  # one stream per member
    torch._foreach_add_(gradients, noise, alpha=config.noise_scale)
    optimization.update(number)
    steps = steps_kept(config, problem)
    if number + 1 in steps:
        for name, tensor in changing_tensors(stack).items():
            kept[name][steps.index(number + 1)].copy_(tensor)
    return State(stack, optimization, kept, number + 1), Info(losses)


def finish(config: Trail, problem: Problem, state: State) -> Samples:
    """Return the networks that were kept; those of the state where no step was taken."""
    return Samples(state.stack, state.kept if state.step else None)


METHODS.register(
    "trail",
    summary="the last networks of a noisy descent",
    kind="one mode",
    equation="θ ← θ − η (∇L(θ) + σ ε),  ε ~ N(0, I)",
    cost="1 × training, L × prediction",
    limits="What it cannot do, and where it is known to fail.",
    paper="Author year",
    bibtex="@article{author2026title, title={Title}, author={Author, A.}, year={2026}}",
)(Method(Trail, init, step, finish))
