"""Stochastic gradient Hamiltonian Monte Carlo: chains that sample the posterior as they train.

    U(θ) = −Σ_n log p(y_n | f_θ(x_n)) + (λ/2) ‖θ‖²,        λ = `prior_precision`
    m ← m − lr ∇Ũ(θ) / N
    θ ← θ + m/2,   m ← c m + √((1 − c²) T lr / N) ε,   θ ← θ + m/2

∇Ũ is the gradient on a batch, N times its mean, so `lr` multiplies a mean gradient as in SGD with
momentum c = 1 − `friction`. ε ~ N(0, I), one stream per member. T is the `temperature`: 1 samples
the posterior exp(−U) with the true N; libraries that scale their noise down, or N up, sample
something colder. In physical units the step is h = √(lr / N) and the momentum is h times a velocity
of unit mass.

The step is the splitting BAOAB, its two half steps of the force merged, in place of the Euler step
of the paper. It costs the same single gradient, its error is of second order in h, and for Gaussian
targets it has the exact covariance at every stable step: lr times the largest curvature of U/N must
stay below 4. The paper's estimate of the gradient noise (β̂ in its equation 15) is taken as 0, as in
its experiments: noise of small batches adds to T, the less the smaller `lr`. `Info.temperature`
shows what it comes to; far above T, `finish` warns.

A likelihood's own parameters (learned noise) are sampled with the rest, under a flat prior.
Running statistics of normalisation layers are kept as they are at the moment of each sample. Random
layers (dropout) stay on in the steps: their noise is one more of the gradient.

Limits: samples of one chain are correlated, and a chain stays near the mode it finds: `num_modes`
chains see more. Without many steps after `burn_in` it is an ensemble along a noisy trajectory.
Reference: T. Chen, E. Fox, C. Guestrin, Stochastic gradient Hamiltonian Monte Carlo, ICML 2014.
    B. Leimkuhler, C. Matthews, Rational construction of stochastic numerical methods for molecular
    sampling, AMRX 2013 (BAOAB).

Shapes: `M` modes (chains), `L` samples per mode, `B` batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from polymode.core.options import option
from polymode.core.warn import warn
from polymode.methods.map import add_noise
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.chains import (
    Chains,
    first_metric,
    force,
    steps_kept,
)
from polymode.methods.sampling.integrators import baoab, kinetic_temperature
from polymode.methods.sampling.keeping import keep_sample, kept_samples, room_for
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch

_MEASURED, _HOT = 100, 1.5  # steps, and times the temperature, from which on a chain is warned of


@dataclass(frozen=True, kw_only=True)
class SGHMC(Chains):
    """Options of `sghmc`: those of `Chains`, and"""

    friction: float = option(
        0.1,
        gt=0,
        le=1,
        doc="share 1 − c of the momentum that noise replaces in each step",
        more="With 1 the momentum is forgotten, and the chain is a Langevin one.",
    )


class State(NamedTuple):
    """What the next step needs: `momentum` of all leaves, a row per chain, what scales the steps,
    the sum of kinetic temperatures since the first sample (M,), and the samples so far, `kept`
    (L, M, ...)."""

    stack: Stack
    momentum: Tensor
    metric: Tensors
    heat: Tensor
    kept: Tensors
    step: int


class Info(NamedTuple):
    """What a step tells: each chain's U/N on the batch, prior included, (M,) nats, and its
    kinetic temperature (M,), which is `temperature` on average."""

    loss: Tensor
    temperature: Tensor


def init(config: SGHMC, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    scale = math.sqrt(config.temperature * config.lr / problem.num_examples)
    momentum = scale * stack.normal_rows("sghmc", "start")
    samples = room_for(len(steps_kept(config, problem)), stack)
    heat = momentum.new_zeros(stack.num_modes)
    return State(
        stack,
        momentum,
        first_metric(config, stack),
        heat,
        samples,
        step=0,
    )


def step(config: SGHMC, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every chain, and keep a sample where it is time."""
    stack, momentum, metric, heat, samples, number = state
    losses, grads, scales = force(config, problem, state, batch)
    variance = config.lr / problem.num_examples  # of the momentum at temperature 1
    keeps = 1 - config.friction
    baoab(
        stack.leaves(),
        grads,
        momentum,
        stack.as_leaves(momentum),
        stack.normal_rows("sghmc", number),
        lr=config.lr,
        keeps=keeps,
        scale=math.sqrt((1 - keeps**2) * config.temperature * variance),
        metric=scales,
    )
    steps = steps_kept(config, problem)
    keep_sample(stack, samples, steps, number + 1)
    temperature = kinetic_temperature(momentum, variance)
    if number + 1 >= steps.start:
        heat.add_(temperature)
    return State(stack, momentum, metric, heat, samples, number + 1), Info(losses, temperature)


def finish(config: SGHMC, problem: Problem, state: State) -> Samples:
    """Return the samples that were kept; the networks themselves where no step was taken."""
    steps = steps_kept(config, problem)
    measured = state.step + 1 - steps.start
    if steps and measured >= _MEASURED:
        temperature = float(state.heat.mean()) / measured
        if temperature > _HOT * config.temperature:
            warn(
                f"the chains ran at a kinetic temperature of {temperature:.2g}, not"
                f" {config.temperature:g}: noise of batches, or steps too large for the curvature,"
                f" heat them. Try lr={config.lr / 10:g}, larger batches, or sgnht",
            )
    return kept_samples(state.stack, state.kept, steps, state.step)


METHODS.register(
    "sghmc",
    summary="chains that sample the posterior with noisy gradients and momentum",
    kind="one mode",
    equation="m ← m − lr ∇U/N,  θ ← θ + m/2,  m ← c m + √((1−c²) T lr/N) ε,  θ ← θ + m/2",
    cost="1 × training, L × prediction",
    limits="Samples of one chain are correlated, and a chain stays near the mode it finds; noise of"
    " small batches makes it hotter than it says.",
    paper="Chen et al. 2014",
    bibtex="""@inproceedings{chen2014stochastic,
  title={Stochastic gradient {Hamiltonian} {Monte} {Carlo}},
  author={Chen, Tianqi and Fox, Emily and Guestrin, Carlos},
  booktitle={International Conference on Machine Learning}, year={2014}}""",
)(Method(SGHMC, init, step, finish))
