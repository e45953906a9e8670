"""Hamiltonian Monte Carlo on the whole data: the reference posterior of small networks.

    H(θ, p) = −log π(θ) + ½ Σ_i v_i p_i²,    log π as in `full_batch/target.py`

A step is one trajectory of every chain: fresh momenta, some leapfrog steps on the whole training
data, and Metropolis' decision, so the chain has the posterior as its law at any step size. During
`burn_in` each chain tunes its own step size by dual averaging and its own diagonal mass from the
variances it sees (`full_batch/adaptation.py`); both then stay, and only then are samples kept. The
number of leapfrog steps is drawn anew for each trajectory, uniformly from half of `leapfrog_steps`
to one and a half of it, the same for all chains: no direction can then come back to where it began
every time.

`burn_in`, `thinning` and `epochs` count trajectories: one epoch is one of them as long as
`batch_size` holds all data, as its default does up to 8,192 examples; of more data an epoch has as
many trajectories as batches. The gradient is that of the whole data in any case.

A likelihood's own parameters (learned noise) are sampled with the rest, as log σ with a flat prior,
which is Jeffreys' prior of a scale. Random layers are off. Running statistics of normalisation
layers are taken once, over the training inputs with the networks that the chains begin at, and
stay: the target must be a function of the weights.

Limits: every leapfrog step costs a gradient on all data. Chains rarely pass from one mode to
another, and weights have symmetries, so judge convergence by predictions: the examination `chains`.
Reference: R. Neal, MCMC using Hamiltonian dynamics, 2011. M. Hoffman, A. Gelman, JMLR 15, 2014.
    P. Izmailov, S. Vikram, M. Hoffman, A. Wilson, What are Bayesian neural network posteriors
    really like?, ICML 2021.

Shapes: `M` modes (chains), `L` samples per mode, `P` parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option
from polymode.core.rng import generator
from polymode.core.warn import warn
from polymode.methods.full_batch.adaptation import adapt, start, step_size, windows
from polymode.methods.full_batch.leapfrog import DIVERGED, point_of, transition
from polymode.methods.full_batch.target import (
    FIXED_EXAMPLES,
    LogPosterior,
    freeze_statistics,
    rows_of,
    whole,
)
from polymode.methods.map import add_noise
from polymode.methods.method import METHODS, Members, Method, Problem
from polymode.methods.sampling.chains import burn_in_of, steps_kept
from polymode.methods.sampling.keeping import keep_sample, kept_samples, room_for
from polymode.methods.work import Work
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.options import Sampling

MASSES = ("diagonal", "identity")
TUNED = 50  # trajectories of burn-in from which chains are expected to have found their step


@dataclass(frozen=True, kw_only=True)
class HMC(Members, Sampling):
    """Options of `hmc`: those of `Sampling`, in which a step is a trajectory, of `Members`, and"""

    usual_modes = 4
    lr: float = option(
        1e-2, doc="step size ε at the start", more="From there it is tuned during burn-in."
    )
    batch_size: int = 8192
    data_order: str = "shared"
    leapfrog_steps: int = option(
        20,
        ge=1,
        doc="mean number of leapfrog steps, and gradients, of a trajectory",
        more="The number is drawn uniformly from half of it to one and a half.",
    )
    target_acceptance: float | None = option(
        0.8,
        gt=0,
        lt=1,
        doc="acceptance that the step size is tuned for",
        none="tunes nothing: the step is `lr`, and the mass the identity",
    )
    mass: str = option(
        "diagonal",
        choices=MASSES,
        doc="inverse variances of the parameters during burn-in, or the identity",
    )
    rules = (FIXED_EXAMPLES,)

    @property
    def advice(self) -> str:
        return (
            f"Try lr={self.lr / 10:g} instead of {self.lr:g} for the first step, and check the"
            " scale of the inputs"
        )


class State(NamedTuple):
    """What the next step needs: log π of the networks and its gradient, unknown before the first
    step; the `tuning` of every chain; the samples so far, `kept` (L, M, ...); and of the
    trajectories after burn-in the summed acceptance and the number that diverged, (M,) each."""

    stack: Stack
    log_density: Tensor | None
    gradient: Tensor | None
    tuning: Tensors
    kept: Tensors
    acceptance: Tensor
    divergences: Tensor
    step: int


class Info(NamedTuple):
    """What a trajectory tells of each chain, (M,): U/N = −T log π/N where it is now, nats per
    example; acceptance probability; energy error H' − H; whether it diverged; step size;
    and the number of leapfrog steps of all."""

    loss: Tensor
    acceptance: Tensor
    energy_error: Tensor
    diverged: Tensor
    step_size: Tensor
    num_steps: int


def init(config: HMC, problem: Problem, stack: Stack) -> State:
    """Return the state before the first trajectory; adds the likelihood's own parameters."""
    add_noise(config, problem, stack)
    samples = room_for(len(steps_kept(config, problem)), stack)
    burn_in = burn_in_of(config, problem)
    if config.mass != HMC.mass and not windows(burn_in):
        warn(
            f"mass='{config.mass}' has no effect: a burn-in of {burn_in} trajectories is too short"
            " to tune a mass",
        )
    if config.data_order == "own":
        warn("data_order='own' has no effect: the whole data have no order")
    freeze_statistics(problem, stack)
    rows = rows_of(stack)
    counts = torch.zeros(2, len(rows), dtype=torch.float64, device=rows.device)
    return State(stack, None, None, start(rows, config.lr), samples, counts[0], counts[1], step=0)


def step(config: HMC, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one trajectory of every chain, and keep a sample where it is time."""
    stack, number = state.stack, state.step
    batches = whole(problem, batch)
    target = LogPosterior(stack, problem, batches, config.prior_precision, config.temperature)
    point = point_of(target, rows_of(stack), state.log_density, state.gradient)
    burn_in = burn_in_of(config, problem)
    length = step_size(state.tuning, burnt_in=number >= burn_in)
    draws = [torch.rand((), generator=generator(seed, "hmc", number)) for seed in stack.seeds]
    move = transition(
        target,
        point,
        stack.normal_rows("hmc", number),
        torch.stack(draws).double().to(stack.device),
        length[:, None].to(stack.dtype),
        state.tuning["inverse_mass"],
        num_steps := leapfrog_steps(config.leapfrog_steps, problem.seed, number),
    )
    target.move(move.point.position)
    state = state._replace(
        log_density=move.point.log_density, gradient=move.point.gradient, step=number + 1
    )
    state = _tuned(config, state, move.point.position, move.acceptance, burn_in)
    if number >= burn_in:
        state.acceptance.add_(move.acceptance)
        state.divergences.add_(move.diverged)
    keep_sample(stack, state.kept, steps_kept(config, problem), number + 1)
    losses = target.energy(move.point.log_density)
    return state, Info(losses, move.acceptance, move.energy_error, move.diverged, length, num_steps)


def leapfrog_steps(mean: int, seed: int, number: int) -> int:
    """Return how many steps trajectory `number` has: uniform on [mean/2, 3 mean/2]."""
    least = -(-mean // 2)
    most = 2 * mean - least
    stream = generator(seed, "hmc", "length", number)
    return int(torch.randint(least, most + 1, (), generator=stream))


def _tuned(config: HMC, state: State, rows: Tensor, acceptance: Tensor, burn_in: int) -> State:
    """Return the state whose tuning has seen this step, during burn-in."""
    if state.step > burn_in or config.target_acceptance is None:
        return state
    tuning = adapt(
        state.tuning, rows, acceptance, state.step, burn_in, config.target_acceptance,
        masses=config.mass == "diagonal",
    )  # fmt: skip
    return state._replace(tuning=tuning)


def finish(config: HMC, problem: Problem, state: State) -> Samples:
    """Return the samples that were kept, with the acceptance, divergences and step size of each
    chain; the networks themselves where no trajectory was taken."""
    burn_in = burn_in_of(config, problem)
    count = max(state.step - burn_in, 0)
    facts: Tensors = {}
    if count:
        _warn(config, state, count, tuned=burn_in >= TUNED)
        facts = {
            "acceptance": state.acceptance / count,
            "divergences": state.divergences,
            "step_size": step_size(state.tuning, burnt_in=True),
        }
    return kept_samples(state.stack, state.kept, steps_kept(config, problem), state.step, facts)


def _warn(config: HMC, state: State, count: int, tuned: bool) -> None:
    """Warn of chains whose samples cannot be trusted; of single faults only those that were tuned,
    or were not to be."""
    worst = int(state.divergences.argmax())
    number = int(state.divergences[worst])
    least = float(state.acceptance.min()) / count
    goal = config.target_acceptance
    if goal is None:
        remedy = f"lr={config.lr / 3:.2g}"
    else:
        remedy = f"target_acceptance={(1 + goal) / 2:.2g} or a longer burn_in"
    judged = tuned or goal is None
    if number and (judged or 2 * number > count):
        warn(
            f"chain {worst}: {number} of {count} trajectories after burn-in diverged, with energy"
            f" errors above {DIVERGED:g}: its step is too long for where it went, and the samples"
            f" leave such places out; try {remedy}",
        )
    elif least < 0.1 and judged:
        warn(
            f"a chain accepted {100 * least:.2g} % of {count} trajectories after burn-in: it hardly"
            f" moved; try {remedy}",
        )


def work_of(config: HMC, problem: Problem, stack: Stack) -> Work:
    """Return what the trajectories take: a gradient on all data per leapfrog step."""
    passes = config.total_steps(problem.steps_per_epoch) * config.leapfrog_steps
    return Work(float(passes), "hmc", "sghmc, one pass per epoch, or fewer `epochs`")


METHODS.register(
    "hmc",
    summary="full-batch Hamiltonian Monte Carlo, the reference posterior of small networks",
    kind="one mode",
    equation="p ~ N(0, 1/v),  (θ, p) → leapfrog of H = −log π(θ) + ½ Σ v p²,"
    "  taken with min(1, exp(−ΔH))",
    cost="leapfrog_steps gradients on all data per step, L × prediction",
    limits="Every leapfrog step takes all data; chains rarely pass from mode to mode, and only"
    " predictions can tell whether they have mixed.",
    paper="Neal 2011",
    bibtex="""@incollection{neal2011mcmc,
  title={{MCMC} using {Hamiltonian} dynamics}, author={Neal, Radford M.},
  booktitle={Handbook of {Markov} Chain {Monte} {Carlo}}, publisher={CRC Press}, year={2011}}""",
)(Method(HMC, init, step, finish, work=work_of))
