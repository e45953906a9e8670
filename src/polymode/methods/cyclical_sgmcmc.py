"""Cyclical SG-MCMC: one chain that leaves its mode again and again.

    lr_k = lr · ½ (1 + cos(π r)),   r = place of step k in its cycle, in [0, 1)
    m ← √(lr_k / lr_{k−1}) m − lr_k ∇Ũ(θ)/N
    θ ← θ + m/2,   m ← c m + √((1 − c²) T_k lr_k/N) ε,   θ ← θ + m/2

U, N and c = 1 − `friction` are those of `sghmc`. A cycle begins with large steps: it explores, by
descent with momentum and without noise (T_k = 0) while r < β = `exploration`, then samples with
T_k = T = `temperature`, ever more finely as the step shrinks. Each of `num_cycles` cycles keeps
`samples_per_cycle` samples, evenly spread over its sampling stage, the last at its end.
`friction=1` is the paper's cSGLD (`lr` is then twice the rate of Langevin dynamics), less is its
cSGHMC. A momentum is in units of the step, hence the root in front of it.

With a step that falls within the cycle and samples that weigh the same, the law is that of the
posterior within a mode up to the error of the steps; how often a mode is visited depends on where
exploration ends, not on its mass. Without any noise it would be `snapshot`.

Where paper and code differ: the step is BAOAB, as in `sghmc`; cycles have equal length up to one
step where their number does not divide the steps. The preconditioner is an addition: it is learnt
while a cycle explores and frozen while it samples, so the law stays the same.

A likelihood's own parameters (learned noise) are sampled with the rest, under a flat prior.
Running statistics of normalisation layers are kept as they are at the moment of each sample.
Limits: `lr` must be large enough to leave a mode, which only trying shows.
Reference: R. Zhang, C. Li, J. Zhang, C. Chen, A. Wilson, Cyclical stochastic gradient MCMC for
    Bayesian deep learning, ICLR 2020.

Shapes: `M` modes (chains), `L` samples per mode, `B` batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.options import option, rule
from polymode.methods.map import add_noise
from polymode.methods.method import METHODS, Members, Method, Problem
from polymode.methods.sampling.chains import STEP_LIMIT, Metric, first_metric, force_with
from polymode.methods.sampling.cycles import cycle_ends, place
from polymode.methods.sampling.integrators import baoab, kinetic_temperature
from polymode.methods.sampling.keeping import keep_sample, kept_samples, room_for
from polymode.methods.sampling.preconditioning import FROZEN
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch
from polymode.training.optimiser import clip_each_member
from polymode.training.options import NOT_ZERO, Passes

_SAMPLES = 5  # of a cycle, where nothing is said


@dataclass(frozen=True, kw_only=True)
class CyclicalSGMCMC(Members, Passes):
    """Options of `cyclical_sgmcmc`: those of `Passes` and `Members`, and"""

    lr: float = option(
        0.1, gt=0, doc="step at the beginning of each cycle, in the units of `sghmc`"
    )
    temperature: float = option(
        1.0,
        gt=0,
        because=NOT_ZERO,
        doc="temperature of the sampling stages",
        more="1 is the posterior itself, less is colder.",
    )
    friction: float = option(
        0.1,
        gt=0,
        le=1,
        doc="share 1 − c of the momentum that is replaced in each step",
        more="With 1 it is forgotten: the paper's cSGLD, at twice the rate.",
    )
    num_cycles: int = option(4, ge=1, doc="cycles of the step size, of equal length up to one step")
    exploration: float = option(
        0.5, ge=0, lt=1, doc="share β of each cycle without noise", more="The paper's is 0.8."
    )
    samples_per_cycle: int | None = option(
        None,
        ge=1,
        doc="samples that each cycle keeps, the last at its end",
        none="is 5, or as many as its sampling stage has steps",
    )
    preconditioner: str | None = option(
        None,
        choices=(FROZEN,),
        doc="steps that suit the size of each parameter's gradients",
        none="has none",
        more=f"'{FROZEN}' learns it while cycles explore, and freezes it while they sample.",
    )
    step_limit: float | None = option(
        STEP_LIMIT,
        gt=0,
        doc="largest step times curvature; longer steps are cut, chain by chain",
        none="takes `lr` as it is",
        more="The curvature is measured while cycles explore.",
    )
    clip_norm: float | None = option(
        1.0,
        gt=0,
        doc="largest norm of a chain's gradient of U/N while a cycle explores",
        none="does not clip",
        more="Gradients of the sampling stages are never clipped, so their law stays the same.",
    )
    rules = (
        rule(
            "`preconditioner` '{config.preconditioner}' of {name} is learnt during exploration,"
            " which is 0 of a cycle; take exploration=0.8, or None",
            lambda config: config.preconditioner is None or config.exploration > 0,
        ),
    )

    @property
    def advice(self) -> str:
        rate = min(self.lr / 10, type(self).lr)
        return f"Try lr={rate:g} instead of {self.lr:g}, and check the scale of the inputs"


class State(NamedTuple):
    """What the next step needs: `momentum` of all leaves, a row per chain, the state of the
    preconditioner, and the samples so far, `kept` (L, M, ...)."""

    stack: Stack
    momentum: Tensor
    metric: Tensors
    kept: Tensors
    step: int


class Info(NamedTuple):
    """What a step tells: each chain's U/N on the batch, prior included, (M,) nats, its
    kinetic temperature (M,), which comes to `temperature` in the sampling stage, and the step `lr`
    that was taken."""

    loss: Tensor
    temperature: Tensor
    lr: float


class Stage(NamedTuple):
    """Step and temperature of one step of the run, and whether it explores."""

    lr: float
    temperature: float
    explores: bool


def stage(config: CyclicalSGMCMC, total_steps: int, number: int) -> Stage:
    """Return the stage of step `number`, from 0."""
    before, length = place(cycle_ends(total_steps, config.num_cycles), number)
    lr = config.lr * 0.5 * (1 + math.cos(math.pi * before / length))
    explores = before < length - _sampling_steps(length, config.exploration)
    return Stage(lr, 0.0 if explores else config.temperature, explores)


def _sampling_steps(length: int, exploration: float) -> int:
    """Return how many steps of a cycle sample; at least the last."""
    return max(length - math.ceil(exploration * length - 1e-9), 1)


def steps_kept(config: CyclicalSGMCMC, total_steps: int) -> tuple[int, ...]:
    """Return the numbers of steps after which a sample is kept.

    >>> steps_kept(CyclicalSGMCMC(num_cycles=2, exploration=0.5, samples_per_cycle=2), 16)
    (6, 8, 14, 16)
    """
    how = config.num_cycles, config.exploration, config.samples_per_cycle
    return _steps_kept(total_steps, *how)


@cache
def _steps_kept(
    total_steps: int, num_cycles: int, exploration: float, samples_per_cycle: int | None
) -> tuple[int, ...]:
    ends = cycle_ends(total_steps, num_cycles)
    steps: list[int] = []
    for start, end in zip((0, *ends), ends, strict=False):
        sampling = _sampling_steps(end - start, exploration)
        number = samples_per_cycle or min(_SAMPLES, sampling)
        if number > sampling:
            raise ValueError(
                f"{number} samples per cycle, but of the {end - start} steps of a cycle"
                f" {sampling} are left after exploration={exploration:g}; take more epochs, or less"
                " of num_cycles, samples_per_cycle or exploration"
            )
        apart = sampling // number
        steps += range(end - (number - 1) * apart, end + 1, apart)
    return tuple(steps)


def _total(config: CyclicalSGMCMC, problem: Problem) -> int:
    return config.total_steps(problem.steps_per_epoch)


def init(config: CyclicalSGMCMC, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    momentum = torch.zeros_like(stack.normal_rows("cyclical", "start"))
    samples = room_for(len(steps_kept(config, _total(config, problem))), stack)
    return State(
        stack,
        momentum,
        first_metric(config, stack),
        samples,
        step=0,
    )


def step(
    config: CyclicalSGMCMC, problem: Problem, state: State, batch: Batch
) -> tuple[State, Info]:
    """Take one step of every chain, and keep a sample where it is time."""
    stack, momentum, metric, samples, number = state
    total = _total(config, problem)
    lr, temperature, explores = stage(config, total, number)
    how = Metric(config.preconditioner, config.step_limit, lr, learns=explores, measures=explores)
    losses, grads, scales = force_with(how, config.prior_precision, problem, state, batch)
    if explores and config.clip_norm is not None:
        clip_each_member(stack.leaves(), config.clip_norm)
    if number:
        momentum.mul_(math.sqrt(lr / stage(config, total, number - 1).lr))
    keeps, variance = 1 - config.friction, lr / problem.num_examples
    baoab(
        stack.leaves(),
        grads,
        momentum,
        stack.as_leaves(momentum),
        stack.normal_rows("cyclical", number),
        lr=lr,
        keeps=keeps,
        scale=math.sqrt((1 - keeps**2) * temperature * variance),
        metric=scales,
    )
    keep_sample(stack, samples, steps_kept(config, total), number + 1)
    info = Info(losses, kinetic_temperature(momentum, variance), lr)
    return State(stack, momentum, metric, samples, number + 1), info


def finish(config: CyclicalSGMCMC, problem: Problem, state: State) -> Samples:
    """Return the samples that were kept; the networks themselves where no step was taken."""
    steps = steps_kept(config, _total(config, problem))
    return kept_samples(state.stack, state.kept, steps, state.step)


METHODS.register(
    "cyclical_sgmcmc",
    summary="a chain that explores with large steps and samples with small ones, in cycles",
    kind="one mode",
    equation="lr_k = lr ½ (1 + cos πr);  sghmc with T = 0 while r < β, then with T",
    cost="1 × training, L × prediction",
    limits="How often a mode is visited depends on where exploration ends, not on its mass; the"
    " first step of a cycle must be large enough to leave a mode.",
    paper="Zhang et al. 2020",
    bibtex="""@inproceedings{zhang2020cyclical,
  title={Cyclical stochastic gradient {MCMC} for {Bayesian} deep learning},
  author={Zhang, Ruqi and Li, Chunyuan and Zhang, Jianyi and Chen, Changyou and
    Wilson, Andrew Gordon},
  booktitle={International Conference on Learning Representations}, year={2020}}""",
)(Method(CyclicalSGMCMC, init, step, finish))
