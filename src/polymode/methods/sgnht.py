"""Stochastic gradient Nosé-Hoover thermostat: chains whose friction finds the gradient noise.

    m ← m − lr ∇Ũ(θ)/N
    θ ← θ + m/2
    z ← z + γ/2 (τ − T),   m ← e^{−z} m + √(a (1 − e^{−2z})/z · T lr/N) ε,   z ← z + γ/2 (τ − T)
    θ ← θ + m/2

U, `lr`, T and N are those of `sghmc`, and so is a = −log(1 − `friction`), the friction that the
noise ε balances. τ = ‖m‖² N / (lr P) is the kinetic temperature of a chain. The gradient on a batch
has noise of its own; where it heats the chain, τ > T and the friction z grows until it is balanced,
without anybody having to know it. γ = `thermostat` says how quickly. In the extended space the law
is exp(−U/T) times a Gaussian of z about a with variance γ T/P. The paper's algorithm has γ = lr/N,
which in ordinary units is so slow that z never arrives; every γ > 0 has the same law of θ.

The step is the splitting BADODAB in place of the paper's Euler step: one gradient, order 2 in
h = √(lr/N). Only noise that is the same in all directions, and everywhere, is balanced exactly; the
thermostat is one number per chain. What is left otherwise is measured in docs/methods/sgld.md.

A likelihood's own parameters (learned noise) are sampled with the rest, under a flat prior.
Running statistics of normalisation layers are kept as they are at the moment of each sample. Random
layers (dropout) stay on in the steps: their noise is one more of the gradient.

Limits: as `sghmc`. A start far from the posterior heats the chain and drives z up; it comes back
by at most γ T per step, so `burn_in` must be some hundred steps. With γ T/P far above a², in tiny
networks, the chain slows down.
Reference: N. Ding, Y. Fang, R. Babbush, C. Chen, R. Skeel, H. Neven, Bayesian sampling using
    stochastic gradient thermostats, NeurIPS 2014. B. Leimkuhler, X. Shang, Adaptive thermostats
    for noisy gradient systems, SIAM J. Sci. Comput. 38(2), 2016 (BADODAB).

Shapes: `M` modes (chains), `L` samples per mode, `B` batch, `P` parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from polymode.core.options import option
from polymode.methods.map import add_noise
from polymode.methods.method import METHODS, Method, Problem
from polymode.methods.sampling.chains import (
    Chains,
    first_metric,
    force,
    steps_kept,
)
from polymode.methods.sampling.integrators import badodab, kinetic_temperature
from polymode.methods.sampling.keeping import keep_sample, kept_samples, room_for
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch


@dataclass(frozen=True, kw_only=True)
class SGNHT(Chains):
    """Options of `sgnht`: those of `Chains`, and"""

    friction: float = option(
        0.1,
        gt=0,
        lt=1,
        doc="share 1 − e^{−a} of the momentum that noise replaces in each step while the gradient"
        " has none",
    )
    thermostat: float = option(
        1e-2, gt=0, doc="change γ of the friction z in a step per unit of temperature"
    )

    @property
    def diffusion(self) -> float:
        """a, the friction that the noise balances."""
        return -math.log1p(-self.friction)


class State(NamedTuple):
    """What the next step needs: `momentum` of all leaves, a row per chain, `friction` z (M,), the
    state of the preconditioner, and the samples so far, `kept` (L, M, ...)."""

    stack: Stack
    momentum: Tensor
    friction: Tensor
    metric: Tensors
    kept: Tensors
    step: int


class Info(NamedTuple):
    """What a step tells: each chain's U/N on the batch, prior included, (M,) nats, its
    kinetic temperature (M,), which is `temperature` on average, and its friction z (M,)."""

    loss: Tensor
    temperature: Tensor
    friction: Tensor


def init(config: SGNHT, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    scale = math.sqrt(config.temperature * config.lr / problem.num_examples)
    momentum = scale * stack.normal_rows("sgnht", "start")
    friction = momentum.new_full((stack.num_modes,), config.diffusion)
    samples = room_for(len(steps_kept(config, problem)), stack)
    return State(
        stack,
        momentum,
        friction,
        first_metric(config, stack),
        samples,
        step=0,
    )


def step(config: SGNHT, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every chain, and keep a sample where it is time."""
    stack, momentum, friction, metric, samples, number = state
    losses, grads, scales = force(config, problem, state, batch)
    variance = config.lr / problem.num_examples  # of the momentum at temperature 1
    badodab(
        stack.leaves(),
        grads,
        momentum,
        stack.as_leaves(momentum),
        friction,
        stack.normal_rows("sgnht", number),
        lr=config.lr,
        rate=config.thermostat,
        diffusion=config.diffusion,
        temperature=config.temperature,
        variance=variance,
        metric=scales,
    )
    keep_sample(stack, samples, steps_kept(config, problem), number + 1)
    info = Info(losses, kinetic_temperature(momentum, variance), friction.clone())
    return State(stack, momentum, friction, metric, samples, number + 1), info


def finish(config: SGNHT, problem: Problem, state: State) -> Samples:
    """Return the samples that were kept; the networks themselves where no step was taken."""
    return kept_samples(state.stack, state.kept, steps_kept(config, problem), state.step)


METHODS.register(
    "sgnht",
    summary="chains whose friction adapts to the noise of the gradients",
    kind="one mode",
    equation="m ← m − lr ∇U/N,  m ← e^{−z} m + noise,  z ← z + γ (‖m‖² N/(lr P) − T),  θ ← θ + m",
    cost="1 × training, L × prediction",
    limits="Balances gradient noise that is the same in all directions; samples of one chain are"
    " correlated, and a chain stays near the mode it finds.",
    paper="Ding et al. 2014",
    bibtex="""@inproceedings{ding2014bayesian,
  title={Bayesian sampling using stochastic gradient thermostats},
  author={Ding, Nan and Fang, Youhan and Babbush, Ryan and Chen, Changyou and Skeel, Robert D. and
    Neven, Hartmut},
  booktitle={Advances in Neural Information Processing Systems}, year={2014}}""",
)(Method(SGNHT, init, step, finish))
