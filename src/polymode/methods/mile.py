"""MILE: microcanonical Langevin ensembles, chains of MCLMC from the members of a deep ensemble.

    1. training:   θ_m = MAP from initialisation m, on batches, as `deep_ensemble`
    2. tuning:     step size ε_m by the energy variance, decoherence length L_m
    3. sampling:   θ_m moves by MCLMC on log π, samples are kept

Members train as in a deep ensemble; each is then the start of a chain on the whole data, of the law
log π in `full_batch/target.py`. Steps are those of `full_batch/microcanonical.py`, two gradients
each, tuned as in `full_batch/microcanonical_tuning.py`. Every chain has an ε and an L of its own
and sees no other, so chain k of 3 is chain k of 10. A step of the run is one of training, tuning or
sampling: `burn_in` counts the first two.

Where the paper and its code leave a choice: the goal of the energy variance, E ΔE²/d, falls to
5·10⁻⁴ (Robnik et al.), in place of the 0.1 that is usual with the method: ε is 2.4 times shorter,
and the bias, which has no Metropolis decision to remove it, far smaller. Members are trained for a
number of steps, without early stopping. Parameters are not preconditioned, as in the paper.

A likelihood's own parameters (learned noise) are sampled with the rest, as log σ with a flat prior.
While sampling, random layers are off and running statistics are those of the training inputs at the
end of training.

Limits: no Metropolis decision, so a bias of the size of the energy variance remains; every step
takes all data twice; a chain stays near the mode that it begins at. A network of one parameter is
refused: in one dimension a direction cannot turn, and the equations divide by d − 1.
Reference: E. Sommer, J. Robnik, G. Nozadze, U. Seljak, D. Rügamer, Microcanonical Langevin
    ensembles: advancing the sampling of Bayesian neural networks, ICLR 2025.

Shapes: `M` modes (chains), `L` samples per mode, `P` parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option, rule
from polymode.core.warn import warn
from polymode.methods import map as map_
from polymode.methods.full_batch.leapfrog import point_of
from polymode.methods.full_batch.microcanonical import directions, langevin_step
from polymode.methods.full_batch.microcanonical_tuning import start, tune
from polymode.methods.full_batch.target import (
    FIXED_EXAMPLES,
    LogPosterior,
    freeze_statistics,
    rows_of,
    whole,
)
from polymode.methods.map import Trained, add_noise
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.keeping import keep_sample, kept_samples, room_for
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization
from polymode.training.options import NOT_ZERO, kept_steps

SHORT = 10  # steps in which the step size cannot come to what it should be


@dataclass(frozen=True, kw_only=True)
class MILE(Trained):
    """Options of `mile`: those of `map`, for the training of the members, and"""

    usual_modes = 8
    ends_sampling = True
    burn_in: int | None = option(
        None, ge=0, doc="steps of training and tuning", none="is three quarters of all"
    )
    training_steps: int | None = option(
        None,
        ge=0,
        doc="steps of training among them",
        none="is two thirds of `burn_in`",
        more="With 0 the chains begin at the networks as they are given.",
    )
    thinning: int | None = option(
        None, ge=1, doc="steps from one kept sample to the next", none="spreads the samples evenly"
    )
    samples_per_mode: int | None = option(
        None,
        ge=1,
        doc="samples L that each chain keeps",
        none="is 20, or as many as there are steps after `burn_in` where these are fewer",
    )
    energy_variance: float = option(5e-4, gt=0, doc="mean of ΔE²/d that the step size is tuned for")
    temperature: float = option(
        1.0,
        gt=0,
        because=NOT_ZERO,
        doc="T of the posterior that is sampled",
        more="1 is the posterior itself, less is colder.",
    )
    rules = (
        FIXED_EXAMPLES,
        rule(
            "`training_steps` of {name} must be at most burn_in={config.burn_in}, got"
            " {config.training_steps}",
            lambda config: (
                None in (config.burn_in, config.training_steps)
                or config.training_steps <= config.burn_in
            ),
        ),
    )


class Phases(NamedTuple):
    """Numbers of steps: of training, of tuning, and those after which a sample is kept."""

    training: int
    tuning: int
    kept: range


class State(NamedTuple):
    """What the next step needs: the optimiser of the training; of each chain its direction, log π
    and gradient, unknown before the first step of tuning; the `tuning`; the samples so far, `kept`
    (L, M, ...); and the sum of ΔE²/d and the number of lost steps after burn-in, (M,) each."""

    stack: Stack
    optimization: Optimization
    velocity: Tensor
    log_density: Tensor | None
    gradient: Tensor | None
    tuning: Tensors
    kept: Tensors
    energy: Tensor
    lost: Tensor
    step: int

    @property
    def mode_axes(self) -> dict[str, int | None]:
        """Traces are kept step by step."""
        return {"tuning/trace": 1}


class Info(NamedTuple):
    """What a step tells of each chain, (M,): U/N = −T log π/N, nats per example; energy
    change ΔE, 0 in training; step size ε and decoherence length L."""

    loss: Tensor
    energy_change: Tensor
    step_size: Tensor
    decoherence: Tensor


def phases(config: MILE, problem: Problem) -> Phases:
    """Return how many steps each phase has."""
    total = config.total_steps(problem.steps_per_epoch)
    burn_in = 3 * total // 4 if config.burn_in is None else config.burn_in
    training = -(-2 * burn_in // 3) if config.training_steps is None else config.training_steps
    kept = kept_steps(total, burn_in, config.thinning, config.samples_per_mode)
    if training > burn_in:
        raise ValueError(
            f"`training_steps` of MILE must be at most burn_in, which is {burn_in} of {total}"
            f" steps, got {training}"
        )
    return Phases(training, burn_in - training, kept)


def init(config: MILE, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    rows = rows_of(stack)
    if rows.shape[1] < 2:
        raise ValueError(
            "mile needs at least 2 parameters per network, among which a direction can turn, and"
            " this network has 1; take hmc or sghmc"
        )
    plan = phases(config, problem)
    samples = room_for(len(plan.kept), stack)
    per_epoch = problem.steps_per_epoch
    if callable(config.schedule) and config.schedule_unit == "epoch" and plan.training <= per_epoch:
        warn(
            f"schedule has no effect: training takes {plan.training} steps, and an epoch, after"
            f" which it would change the rate, {per_epoch}; take schedule_unit='step'",
        )
    if config.energy_variance != MILE.energy_variance and plan.tuning < SHORT:
        warn(
            f"energy_variance has hardly an effect: {plan.tuning} steps of tuning are too few to"
            " change the step size by much; take more epochs or a longer burn_in",
        )
    optimization = Optimization(config, stack.leaves(), per_epoch, plan.training, len(stack.extra))
    counts = torch.zeros(2, len(stack), dtype=torch.float64, device=stack.device)
    velocity = directions(stack.normal_rows("mile", "start"))
    tuning = start(rows, plan.tuning)
    if not plan.training:
        freeze_statistics(problem, stack)
    return State(
        stack, optimization, velocity, None, None, tuning, samples, counts[0], counts[1], step=0
    )


def step(config: MILE, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of training, tuning or sampling, and keep a sample where it is time."""
    plan = phases(config, problem)
    if state.step < plan.training:
        return _train(config, problem, state, batch, plan)
    return _sample(config, problem, state, batch, plan)


def _train(
    config: MILE, problem: Problem, state: State, batch: Batch, plan: Phases
) -> tuple[State, Info]:
    plain = map_.State(state.stack.train(), state.optimization, state.step)
    plain, info = map_.step(config, problem, plain, batch)
    if plain.step == plan.training:
        freeze_statistics(problem, state.stack)
    tuning = state.tuning
    reported = Info(
        info.loss, torch.zeros_like(state.energy), *(tuning[n][:, 0] for n in Info._fields[2:])
    )
    return state._replace(step=plain.step), reported


def _sample(
    config: MILE, problem: Problem, state: State, batch: Batch, plan: Phases
) -> tuple[State, Info]:
    stack, number = state.stack, state.step
    batches = whole(problem, batch)
    target = LogPosterior(stack, problem, batches, config.prior_precision, config.temperature)
    point = point_of(target, rows_of(stack), state.log_density, state.gradient)
    step_size, decoherence = state.tuning["step_size"], state.tuning["decoherence"]
    move = langevin_step(
        target, point, state.velocity, stack.normal_rows("mile", number),
        step_size.to(stack.dtype), decoherence.to(stack.dtype),
    )  # fmt: skip
    target.move(move.point.position)
    tuned, tuning = number - plan.training, state.tuning
    if tuned < plan.tuning:
        tuning = tune(tuning, move, tuned, plan.tuning, config.energy_variance)
    else:
        state.energy.add_(move.energy_change.square() / point.position.shape[1])
        state.lost.add_(move.lost)
    keep_sample(stack, state.kept, plan.kept, number + 1)
    state = state._replace(
        velocity=move.velocity, log_density=move.point.log_density, gradient=move.point.gradient,
        tuning=tuning, step=number + 1,
    )  # fmt: skip
    losses = target.energy(move.point.log_density)
    return state, Info(losses, move.energy_change, step_size[:, 0], decoherence[:, 0])


def finish(config: MILE, problem: Problem, state: State) -> Samples:
    """Return the samples that were kept, with step size, decoherence length and energy variance of
    each chain; the networks themselves where no step was taken."""
    plan = phases(config, problem)
    num_samples = max(state.step - plan.training - plan.tuning, 0)
    facts: Tensors = {}
    if num_samples:
        facts = {
            "energy_variance": state.energy / num_samples,
            "step_size": state.tuning["step_size"][:, 0],
            "decoherence": state.tuning["decoherence"][:, 0],
            "divergences": state.lost,
        }
        if lost := int(state.lost.sum()):
            warn(
                f"{lost} steps of {num_samples} × {len(state.stack)} after burn-in left the finite"
                " numbers and were not taken: the step is too long where chains went; try"
                f" energy_variance={config.energy_variance / 10:.2g} or a longer burn_in",
            )
    return kept_samples(state.stack, state.kept, plan.kept, state.step, facts)


METHODS.register(
    "mile",
    summary="microcanonical Langevin chains from the members of a deep ensemble",
    kind="one mode",
    equation="dθ = u dt,  du = (I − u uᵀ)[∇log π(θ)/(d − 1) dt + η dW],  |u| = 1",
    cost="training, then 2 gradients on all data per step; L × prediction",
    limits="No Metropolis decision, so a bias of the size of the energy variance remains; a chain"
    " stays near the mode that it begins at.",
    paper="Sommer et al. 2025",
    bibtex="""@inproceedings{sommer2025microcanonical,
  title={Microcanonical {Langevin} ensembles: advancing the sampling of {Bayesian} neural
    networks},
  author={Sommer, Emanuel and Robnik, Jakob and Nozadze, Giorgi and Seljak, Uro{\\v{s}} and
    R{\\"u}gamer, David},
  booktitle={International Conference on Learning Representations}, year={2025}}""",
)(Method(MILE, init, step, finish))
