"""Stochastic gradient Langevin dynamics: descent with as much noise as samples the posterior.

    U(θ) = −Σ_n log p(y_n | f_θ(x_n)) + (λ/2) ‖θ‖²,        λ = `prior_precision`
    θ ← θ − lr ∇Ũ(θ)/N + √(2 lr T/N) (ε + ε')/2

∇Ũ is the gradient on a batch, N times its mean, so `lr` multiplies a mean gradient as in SGD; the
step ε_t of the paper's equation 4 is 2 lr/N. ε ~ N(0, I), one stream per member; ε' is that of the
step before. T is the `temperature`: 1 samples the posterior exp(−U) with the true N.

The paper takes ε alone (`integrator="euler"`). Along curvature κ of U/N its stationary variance is
1 / (1 − lr κ/2) times that of the posterior. The mean of two successive ε costs nothing, is exact
for Gaussian targets at every stable step, lr κ < 2, and of order 2 in `lr` otherwise; it is the
limit of BAOAB at high friction, `sghmc` with `friction=1` and twice the `lr`. `Info.temperature` is
the kinetic temperature of the latter's momentum between its half kicks, √(2 lr T/N) ε' − lr ∇Ũ/N:
it is T (1 − lr κ/2) on a Gaussian (Euler: T / (1 − lr κ/2)), plus N lr C/(2 − lr κ) where gradients
of U/N have noise of the variance C: what that adds to the temperature of θ, too.

The paper lets the step fall to 0 and weighs samples by it. Here it is constant and samples weigh
the same: the noise of small batches adds to T, in proportion to `lr`, see docs/methods/sgld.md.

A likelihood's own parameters (learned noise) are sampled with the rest, under a flat prior.
Running statistics of normalisation layers are kept as they are at the moment of each sample. Random
layers (dropout) stay on in the steps: their noise is one more of the gradient.

Limits: without momentum a chain diffuses: it needs about condition-number many steps to forget its
past. It stays near the mode it finds.
Reference: M. Welling, Y. W. Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML
    2011. B. Leimkuhler, C. Matthews, AMRX 2013. Preconditioner: `sampling/preconditioning.py`.

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
from polymode.methods.sampling.integrators import langevin
from polymode.methods.sampling.keeping import keep_sample, kept_samples, room_for
from polymode.methods.sampling.preconditioning import FROZEN, MOVING
from polymode.posterior.weights import Samples
from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors
from polymode.training.loop import Batch

INTEGRATORS = ("leimkuhler_matthews", "euler")


@dataclass(frozen=True, kw_only=True)
class SGLD(Chains):
    """Options of `sgld`: those of `Chains`, and"""

    lr: float = option(
        0.05, doc="step size", more="lr times the largest curvature of U/N must stay below 2."
    )
    step_limit: float | None = 1.0
    integrator: str = option(
        "leimkuhler_matthews",
        choices=INTEGRATORS,
        doc="how noise is added",
        more="'leimkuhler_matthews' is exact for Gaussians, 'euler' is the paper's step, with ε"
        " alone.",
    )
    preconditioner: str | None = option(
        None,
        choices=(FROZEN, MOVING),
        more=f"'{FROZEN}' learns it during `burn_in` and then freezes it; '{MOVING}' never does,"
        " as in Li et al., which is biased.",
    )


class State(NamedTuple):
    """What the next step needs: the last `noise` (M, P), the state of the preconditioner, and the
    samples so far, `kept` (L, M, ...)."""

    stack: Stack
    noise: Tensor
    metric: Tensors
    kept: Tensors
    step: int


class Info(NamedTuple):
    """What a step tells: each chain's U/N on the batch, prior included, (M,) nats, and its
    kinetic temperature (M,), that of the equivalent step of `sghmc` in its middle. It is
    `temperature` on average for small steps on the whole data; noise of batches adds to it."""

    loss: Tensor
    temperature: Tensor


def init(config: SGLD, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    noise = stack.normal_rows("sgld", "start")
    samples = room_for(len(steps_kept(config, problem)), stack)
    return State(stack, noise, first_metric(config, stack), samples, step=0)


def step(config: SGLD, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every chain, and keep a sample where it is time."""
    stack, noise, metric, samples, number = state
    losses, grads, scales = force(config, problem, state, batch)
    new = stack.normal_rows("sgld", number)
    scale = math.sqrt(2 * config.lr * config.temperature / problem.num_examples)
    if config.integrator == "euler":
        change = None
        noise.copy_(new)
    else:
        change = new - noise
    temperature = langevin(
        stack.leaves(),
        grads,
        noise.mul_(scale),
        stack.as_leaves(noise),
        change,
        lr=config.lr,
        scale=scale,
        variance=2 * config.lr / problem.num_examples,
        metric=scales,
    )
    noise.copy_(new)
    keep_sample(stack, samples, steps_kept(config, problem), number + 1)
    return State(stack, noise, metric, samples, number + 1), Info(losses, temperature)


def finish(config: SGLD, problem: Problem, state: State) -> Samples:
    """Return the samples that were kept; the networks themselves where no step was taken."""
    return kept_samples(state.stack, state.kept, steps_kept(config, problem), state.step)


METHODS.register(
    "sgld",
    summary="chains that sample the posterior by noisy descent",
    kind="one mode",
    equation="θ ← θ − lr ∇U/N + √(2 lr T/N) (ε + ε')/2",
    cost="1 × training, L × prediction",
    limits="Samples of one chain are correlated, the more so without momentum, and a chain stays"
    " near the mode it finds; noise of small batches makes it hotter than it says.",
    paper="Welling & Teh 2011",
    bibtex="""@inproceedings{welling2011bayesian,
  title={Bayesian learning via stochastic gradient {Langevin} dynamics},
  author={Welling, Max and Teh, Yee Whye},
  booktitle={International Conference on Machine Learning}, year={2011}}""",
)(Method(SGLD, init, step, finish))
