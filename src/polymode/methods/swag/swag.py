"""SWAG: a Gaussian fitted to the path of SGD, one per mode.

    θ̄ = (1/T) Σ_i θ_i,   Σ_diag = (1/T) Σ_i (θ_i − θ̄)²,   d_k = θ_{T−K+k} − θ̄,  k = 1, ..., K
    θ ~ N(θ̄, ½ Σ_diag + ½ D Dᵀ / (K − 1)),        K = `rank`

θ_i are snapshots of the weights along SGD with a constant rate, taken after `burn_in` steps and
`thinning` steps apart; they alone are averaged, never the initial weights. D has the last K of
them, and one draw of K coefficients serves all layers, so what moved together along the path moves
together in the samples. The factor ½ is the paper's. With `diagonal=False` or `rank=0` the other
part has its whole weight; with both, the mean alone is left (SWA).

Where paper and code disagree: the paper's deviations are from the running mean at the time of each
snapshot; here they are from the final mean, so that D Dᵀ / (K − 1) is the snapshots' covariance
where K holds them all. Divisors count snapshots that were taken, not those that would have fitted.

Networks with running statistics (BatchNorm) get, for each of L = `samples_per_mode` draws, the
statistics of a pass over the training inputs; the draws are then kept. A likelihood's own
parameters (learned noise) are averaged. `num_modes=10` is MultiSWAG.

Where examples are held out (see `map`), each snapshot has the weights that were best on them since
the one before, and SGD goes on from it; the first looks back to the beginning. Then Σ is not the
spread of a free path. Learned noise is set to what fits the errors of the mean network there; with
running statistics it is the average over the snapshots. `holdout=0` is the paper's SWAG.

`from_snapshots` makes the same Gaussian of networks that were trained elsewhere.

Limits: the spread is that of SGD's noise, which depends on rate and batch size; a Gaussian around
one mode.
Reference: W. Maddox, T. Garipov, P. Izmailov, D. Vetrov, A. Wilson, A simple baseline for Bayesian
    uncertainty in deep learning, NeurIPS 2019.

Shapes: `M` modes, `K` rank, `T` snapshots, `L` samples per mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch

from polymode.core.options import option, rule
from polymode.methods import map as map_
from polymode.methods.map import MAP, Info
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import require_room, require_room_for_draws
from polymode.posterior import Gaussian, Samples, Weights
from polymode.posterior.weights import with_own_statistics
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import MakeOptimizer, Optimization
from polymode.training.options import kept_steps


@dataclass(frozen=True, kw_only=True)
class SWAG(MAP):
    """Options of `swag`: those of `map`, by default with SGD of a constant rate, and"""

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
    rank: int | None = option(
        None,
        ge=0,
        doc="rank K of the low-rank part, from the last snapshots, 0 or from 2 to T",
        none="is the paper's 20, or T if that is less",
        more="0 leaves the part out.",
    )
    diagonal: bool = option(True, doc="whether the covariance has the diagonal part")
    samples_per_mode: int = option(
        30,
        ge=1,
        doc="draws L per mode in a prediction",
        more="The paper uses 30; `predict(samples_per_mode=...)` overrides it.",
    )
    rules = (
        rule(
            "`rank` of {name} must be 0 or at least 2: one deviation has no spread, got 1",
            lambda config: config.rank != 1,
        ),
    )


class State(NamedTuple):
    """What the next step needs: over the snapshots so far their `mean` and sum of squared
    `deviations` from it, by number of the leaf, and the last of them (M, K, ...)."""

    stack: Stack
    optimization: Optimization
    mean: Tensors
    squares: Tensors
    last: Tensors
    step: int


def init(config: SWAG, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step."""
    stack, optimization, first = map_.init(config, problem, stack)
    snapshots = len(snapshot_steps(config, problem))
    require_room_for_draws(config.samples_per_mode, stack)
    return State(stack, optimization, *no_snapshots(stack, rank_of(config, snapshots)), first)


def rank_of(config: SWAG, snapshots: int) -> int:
    """Return K for so many snapshots; refuses one that they cannot have."""
    if config.rank is None:
        return min(20, snapshots) if snapshots > 1 else 0
    if config.rank > snapshots > 0:
        excess, most = f"are {snapshots} snapshots", f"a rank of at most {snapshots}"
        if snapshots == 1:
            excess, most = "is 1 snapshot", "rank=0"
        raise ValueError(
            f"`rank` of SWAG is {config.rank}, but there {excess}; take more of them"
            f" (num_snapshots, epochs), or {most}"
        )
    return config.rank


def no_snapshots(stack: Stack, rank: int) -> tuple[Tensors, Tensors, Tensors]:
    """Return mean, squares and last snapshots before the first, by number of the leaf."""
    leaves = {str(number): leaf.detach() for number, leaf in enumerate(stack.leaves())}
    size = sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
    require_room((rank + 2) * size, stack, f"mean, variance and {rank} snapshots of swag")
    mean, squares = ({n: torch.zeros_like(leaf) for n, leaf in leaves.items()} for _ in range(2))
    last = {n: leaf.new_zeros(len(leaf), rank, *leaf.shape[1:]) for n, leaf in leaves.items()}
    return mean, squares, last


def snapshot_steps(config: SWAG, problem: Problem) -> range:
    """Return the numbers of steps after which a snapshot is taken."""
    total = config.total_steps(problem.steps_per_epoch)
    return kept_steps(total, config.burn_in, config.thinning, config.num_snapshots)


def step(config: SWAG, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of SGD, and a snapshot where it is time."""
    plain = map_.State(state.stack, state.optimization, state.step)
    plain, info = map_.step(config, problem, plain, batch)
    steps = snapshot_steps(config, problem)
    if problem.selection is not None:
        problem.selection.add_within(plain.step, plain.stack, steps)
    if plain.step in steps:
        take_snapshot(state, steps.index(plain.step))
    return state._replace(step=plain.step), info


@torch.no_grad()
def take_snapshot(state: State, number: int) -> None:
    """Enter the present weights as snapshot `number`, from 0, by Welford's update."""
    for key, leaf in enumerate(state.stack.leaves()):
        mean, squares, last = (group[str(key)] for group in (state.mean, state.squares, state.last))
        delta = leaf - mean
        mean += delta / (number + 1)
        squares += delta * (leaf - mean)
        if last.shape[1]:
            last[:, number % last.shape[1]] = leaf


def finish(config: SWAG, problem: Problem, state: State) -> Weights:
    """Return the Gaussian of every mode; as kept draws where networks have running statistics, and
    the networks themselves where no snapshot was taken."""
    num_snapshots = sum(step <= state.step for step in snapshot_steps(config, problem))
    if not num_snapshots:
        return Samples(state.stack)
    stack = state.stack.clone()
    set_mean(stack, state)
    if problem.selection is not None and not stack.has_statistics:
        problem.selection.set_noise(stack)
    std, deviations = covariance(config, state, num_snapshots)
    samples = config.samples_per_mode if std or deviations else 1
    gaussian = Gaussian(stack, std, deviations, samples)
    inputs = partial(problem.inputs, config.batch_size)
    return with_own_statistics(gaussian, inputs, samples, problem.seed)


@torch.no_grad()
def set_mean(stack: Stack, state: State) -> None:
    """Put the mean of the snapshots into the stack."""
    for leaf, mean in zip(stack.leaves(), state.mean.values(), strict=True):
        leaf.copy_(mean)


def covariance(
    config: SWAG, state: State, num_snapshots: int
) -> tuple[Tensors | None, Tensors | None]:
    """Return standard deviations of the diagonal part and deviations of the low-rank part, by the
    names of the parameters, each scaled for its share of the covariance."""
    names = list(state.stack.params)
    rank = min(next(iter(state.last.values())).shape[1], num_snapshots)
    low_rank, diagonal = rank > 1, config.diagonal and num_snapshots > 1
    share = math.sqrt(0.5) if low_rank and diagonal else 1.0
    std, deviations = None, None
    if diagonal:
        std = {
            n: share * (state.squares[str(k)] / num_snapshots).sqrt() for k, n in enumerate(names)
        }
    if low_rank:
        scale = share / math.sqrt(rank - 1)
        deviations = {
            name: scale * (state.last[str(k)][:, :rank] - state.mean[str(k)].unsqueeze(1))
            for k, name in enumerate(names)
        }
    return std, deviations


METHODS.register(
    "swag",
    summary="a Gaussian fitted to the path of SGD",
    kind="one mode",
    equation="θ ~ N(θ̄, ½ Σ_diag + ½ D Dᵀ/(K − 1)) of snapshots along SGD",
    cost="1 × training, L × prediction",
    limits="The spread is that of SGD's noise, which depends on rate and batch size; a Gaussian"
    " around one mode.",
    paper="Maddox et al. 2019",
    bibtex="""@inproceedings{maddox2019simple,
  title={A simple baseline for {Bayesian} uncertainty in deep learning},
  author={Maddox, Wesley J. and Garipov, Timur and Izmailov, Pavel and Vetrov, Dmitry and
    Wilson, Andrew Gordon},
  booktitle={Advances in Neural Information Processing Systems}, year={2019}}""",
)(Method(SWAG, init, step, finish))
