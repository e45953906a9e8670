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
shows what it comes to.

A likelihood's own parameters (learned noise) are sampled with the rest, under a flat prior.
Running statistics of normalisation layers are kept as they are at the moment of each sample.

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
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from polymode.core.loop import Batch
from polymode.core.memory import free_bytes, human
from polymode.core.modules import Tensors
from polymode.core.options import Sampling, is_number
from polymode.core.stack import Stack
from polymode.methods.map import add_noise, add_prior_gradient, require_modes_and_prior
from polymode.methods.method import METHODS, Method, Problem
from polymode.posterior.weights import Samples, changing_tensors


@dataclass(frozen=True, kw_only=True)
class SGHMC(Sampling):
    """Options of `sghmc`: those of `Sampling`, and

    Args:
        num_modes: chains, each from its own initialisation, ≥ 1. None is the number of modules that
            are given, or 1 if a factory is given.
        prior_precision: λ of the Gaussian prior over the weights, ≥ 0.
        friction: share 1 − c of the momentum that noise replaces in each step, in (0, 1]; with 1
            the momentum is forgotten, and the chain is a Langevin one.
    """

    usual_modes: ClassVar[int] = 1
    num_modes: int | None = None
    prior_precision: float = 1.0
    lr: float = 1e-2
    friction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_modes_and_prior(self)
        valid = is_number(self.friction) and 0 < self.friction <= 1
        self._require(valid, "friction", "in (0, 1]")


class State(NamedTuple):
    """What the next step needs: `momentum` of all leaves, a row per chain, and the samples so far,
    `kept` (L, M, ...)."""

    stack: Stack
    momentum: Tensor
    kept: Tensors
    step: int


class Info(NamedTuple):
    """What a step tells: each chain's mean negative log-likelihood on the batch, (M,) nats, and its
    kinetic temperature (M,), which is `temperature` on average."""

    loss: Tensor
    temperature: Tensor


def init(config: SGHMC, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    scale = math.sqrt(config.temperature * config.lr / problem.num_examples)
    momentum = scale * stack.normal_rows("sghmc", "start")
    kept = _steps(config, problem)
    changing = changing_tensors(stack)
    need = len(kept) * sum(t.numel() * t.element_size() for t in changing.values())
    if need > 0.5 * free_bytes(stack.device):
        raise ValueError(
            f"{len(kept)} samples of {stack.num_modes} chains need {human(need)};"
            f" {human(free_bytes(stack.device))} free. Keep fewer samples_per_mode"
        )
    samples = {name: t.new_zeros(len(kept), *t.shape) for name, t in changing.items()}
    return State(stack, momentum, samples, step=0)


def step(config: SGHMC, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step of every chain, and keep a sample where it is time."""
    stack, momentum, kept, number = state
    losses = stack.gradients(problem.likelihood.nll, batch.x, batch.y, own=batch.own, step=number)
    add_prior_gradient(stack, config.prior_precision / problem.num_examples)
    leaves, momenta = stack.leaves(), stack.as_leaves(momentum)
    variance = config.lr / problem.num_examples  # of the momentum at temperature 1
    keeps = 1 - config.friction
    with torch.no_grad():
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        torch._foreach_add_(momenta, gradients, alpha=-config.lr)
        torch._foreach_add_(leaves, momenta, alpha=0.5)
        scale = math.sqrt((1 - keeps**2) * config.temperature * variance)
        momentum.mul_(keeps).add_(stack.normal_rows("sghmc", number), alpha=scale)
        torch._foreach_add_(leaves, momenta, alpha=0.5)
        keep_sample(_steps(config, problem), number + 1, state)
        energy = torch.linalg.vector_norm(momentum, dim=1).square_()
    temperature = energy / (momentum.shape[1] * variance)
    return State(stack, momentum, kept, number + 1), Info(losses, temperature)


def _steps(config: SGHMC, problem: Problem) -> range:
    """Return the numbers of steps after which a sample is kept."""
    return config.kept_steps(config.total_steps(problem.steps_per_epoch))


def keep_sample(steps: range, done: int, state: State) -> None:
    """Copy the present networks to their place among the samples, if this step is one of them."""
    if done in steps:
        place = steps.index(done)
        for name, tensor in changing_tensors(state.stack).items():
            state.kept[name][place].copy_(tensor)


def finish(config: SGHMC, problem: Problem, state: State) -> Samples:
    """Return the samples that were kept; the networks themselves where no step was taken."""
    steps = _steps(config, problem)
    number = sum(each <= state.step for each in steps)
    return Samples(state.stack, {name: t[:number] for name, t in state.kept.items() if number})


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
