"""Stochastic weight averaging (SWA): the mean of the weights along a run, one network per mode.

    θ̄ = (1/T) Σ_i θ_i,   θ_i the weights after steps `burn_in` + `thinning`, ..., to the last one

SGD with a constant or cyclic rate moves around its minimum; the mean of its path lies nearer to the
centre of the flat region than any point of it. Only snapshots are averaged, never the weights from
before. A likelihood's own parameters (learned noise) are averaged, too. Networks with running
statistics (BatchNorm) get those of one pass over the training inputs: the path's belong to other
weights.

Where examples are held out (see `map`), each snapshot has the weights that were best on them since
the one before, as for `swag`, and learned noise is set to what fits the errors of the mean there.
`holdout=0` is the paper's SWA. It is the mean of `swag`, without the covariance.

Limits: a point, so no epistemic uncertainty within a mode; weights are averaged, which means
something only along one run, in one basin; the gain shrinks with a rate that ends near 0.
Reference: P. Izmailov, D. Podoprikhin, T. Garipov, D. Vetrov, A. Wilson, Averaging weights leads to
    wider optima and better generalization, UAI 2018.

Shapes: `M` modes, `T` snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.methods import map as map_
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import require_room
from polymode.posterior import Samples
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import MakeOptimizer, Optimization
from polymode.training.options import kept_steps


@dataclass(frozen=True, kw_only=True)
class SWA(MAP):
    """Options of `swa`: those of `map`, by default with SGD of a constant rate, and"""

    keeps_best_of_intervals: ClassVar[bool] = True
    optimizer: str | MakeOptimizer = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    clip_norm: float | None = 10.0
    burn_in: int | None = option(
        None, ge=0, doc="steps before the first snapshot", none="is half of all"
    )
    thinning: int | None = option(
        None, ge=1, doc="steps from one snapshot to the next", none="spreads them evenly"
    )
    num_snapshots: int | None = option(
        None, ge=1, doc="snapshots T", none="is 20, or as many as there are steps for"
    )


class State(NamedTuple):
    """What the next step needs, and the `average` of weights so far, by number of the leaf."""

    stack: Stack
    optimization: Optimization
    average: Tensors
    step: int


def init(config: SWA, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    snapshot_steps(config, problem)
    return start(config, problem, stack)


def start(config: MAP, problem: Problem, stack: Stack) -> State:
    """Return the state of a run whose weights are averaged, before its first step."""
    stack, optimization, first = map_.init(config, problem, stack)
    size = sum(leaf.numel() * leaf.element_size() for leaf in stack.leaves())
    require_room(size, stack, "averages of all weights")
    average = {str(n): torch.zeros_like(leaf) for n, leaf in enumerate(stack.leaves())}
    return State(stack, optimization, average, first)


def snapshot_steps(config: SWA, problem: Problem) -> range:
    """Return the numbers of steps after which a snapshot is taken."""
    total = config.total_steps(problem.steps_per_epoch)
    return kept_steps(total, config.burn_in, config.thinning, config.num_snapshots)


def step(config: SWA, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of SGD, and a snapshot where it is time."""
    plain = map_.State(state.stack, state.optimization, state.step)
    plain, info = map_.step(config, problem, plain, batch)
    steps = snapshot_steps(config, problem)
    if problem.selection is not None:
        problem.selection.add_within(plain.step, plain.stack, steps)
    if plain.step in steps:
        average_in(state, 1 / (steps.index(plain.step) + 1))
    return state._replace(step=plain.step), info


@torch.no_grad()
def average_in(state: State, weight: float) -> None:
    """Move the averages to the present weights by this share of the way."""
    for leaf, mean in zip(state.stack.leaves(), state.average.values(), strict=True):
        mean += weight * (leaf - mean)


def finish(config: SWA, problem: Problem, state: State) -> Samples:
    """Return the averaged networks; those of the state where no snapshot was taken."""
    if not any(number <= state.step for number in snapshot_steps(config, problem)):
        return Samples(state.stack)
    return averaged(state.stack, list(state.average.values()), config, problem)


@torch.no_grad()
def averaged(stack: Stack, average: list[Tensor], config: MAP, problem: Problem) -> Samples:
    """Return networks with averaged weights, in memory of their own: with running statistics of the
    training inputs, and noise that fits the errors on held-out examples if there are any.

    Args:
        average: of `stack.leaves()`.
    """
    stack = stack.clone()
    for leaf, mean in zip(stack.leaves(), average, strict=True):
        leaf.copy_(mean)
    if stack.has_statistics:
        stack.recompute_statistics(problem.inputs(config.batch_size))
    if problem.selection is not None:
        problem.selection.set_noise(stack)
    return Samples(stack)


METHODS.register(
    "swa",
    summary="the mean of the weights along a run of SGD",
    kind="one mode",
    equation="θ̄ = (1/T) Σᵢ θᵢ,  θᵢ snapshots along SGD",
    cost="1 × training, 1 × prediction",
    limits="A point estimate: no epistemic uncertainty within a mode; weights can be averaged only"
    " along one run.",
    paper="Izmailov et al. 2018",
    bibtex="""@inproceedings{izmailov2018averaging,
  title={Averaging weights leads to wider optima and better generalization},
  author={Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, Dmitry and
    Wilson, Andrew Gordon},
  booktitle={Conference on Uncertainty in Artificial Intelligence}, year={2018}}""",
)(Method(SWA, init, step, finish))
