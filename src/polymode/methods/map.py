"""The maximum of the posterior (MAP): one network, trained with its prior.

    θ* = argmax_θ  Σ_n log p(y_n | f_θ(x_n)) − (λ/2) ‖θ‖²,        λ = `prior_precision`

The prior is θ ~ N(0, λ⁻¹ I) over all trainable parameters, biases included. A step follows the
gradient of the mean over the batch of −log p(y | f_θ(x)), plus λ θ / N: the prior weighs as one
N-th, whatever the batch size. With Adam this is the gradient of the log-posterior, not decoupled
weight decay. `prior_precision=0` is maximum likelihood.

Limits: a point, so no epistemic uncertainty; it is the baseline and the start of post-hoc methods.
Reference: D. MacKay, A practical Bayesian framework for backpropagation networks, Neural
    Computation 4(3), 1992.

Shapes: `M` modes, `B` batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.likelihoods.kinds import Likelihood
from polymode.methods.method import METHODS, Members, Method, Problem
from polymode.stack.stack import Stack
from polymode.training.data import Pair
from polymode.training.holdout import HeldOut
from polymode.training.loop import Batch
from polymode.training.optimiser import Optimization, Training
from polymode.training.options import Passes


@dataclass(frozen=True, kw_only=True)
class Trained(Members, Training):
    """Options of networks that are trained by gradients: those of `Training`, and of `Members`."""


@dataclass(frozen=True, kw_only=True)
class MAP(HeldOut, Trained):
    """Options of `map`: those of `Training`, of `Members`, and of `HeldOut`."""


class State(NamedTuple):
    """What the next step needs."""

    stack: Stack
    optimization: Optimization
    step: int


class Info(NamedTuple):
    """What a step tells: each member's mean of −log p(y | f_θ(x)) over the batch plus (λ/2N) ‖θ‖²,
    which is what it minimises, (M,) nats per example."""

    loss: Tensor


def init(config: Trained, problem: Problem, stack: Stack) -> State:
    """Return the state before the first step; adds the likelihood's own parameters to the stack."""
    add_noise(config, problem, stack)
    per_epoch = problem.steps_per_epoch
    total, leaves = config.total_steps(per_epoch), stack.all_leaves()
    return State(stack, Optimization(config, leaves, per_epoch, total, len(stack.extra)), step=0)


def add_noise(config: Passes, problem: Problem, stack: Stack) -> None:
    """Add the likelihood's own parameters to the stack, unless they are there.

    Learned noise begins as large as the errors of the networks as they are: with new ones about the
    targets' standard deviation, with trained ones its maximum-likelihood estimate.
    """
    if stack.extra:
        return
    spread = None
    if problem.likelihood.learns and problem.data is not None:
        spread = errors(stack, problem.likelihood, problem.data.batches(config.batch_size))
    size = problem.target_size
    stack.add_parameters(problem.likelihood.init(stack.num_modes, size, stack.dtype, spread))


@torch.no_grad()
def errors(stack: Stack, likelihood: Likelihood, batches: Iterable[Pair]) -> Tensor:
    """Return the root mean square error of each member and output in evaluation mode, (M, D)."""
    mode, pinned = stack.mode, stack.pinned
    stack.set_mode("eval")
    squares, count = torch.zeros(()), 0.0
    for x, y in batches:
        outputs = torch.stack([stack.module(k)(x) for k in range(stack.num_modes)])
        squares = squares + likelihood.squared_errors(outputs, y).cpu()
        count += likelihood.num_observations(y)
    stack.set_mode(mode, pinned)
    return (squares / count).sqrt()


def step(config: Trained, problem: Problem, state: State, batch: Batch) -> tuple[State, Info]:
    """Take one step on the log-posterior of every member."""
    stack, optimization, number = state
    loss = problem.likelihood.nll
    losses = stack.gradients(loss, batch.x, batch.y, own=batch.own, step=number)
    losses = add_prior(losses, stack, config.prior_precision / problem.num_examples)
    optimization.update(number)
    return State(stack, optimization, number + 1), Info(losses)


@torch.no_grad()
def add_prior(losses: Tensor, stack: Stack, strength: float) -> Tensor:
    """Return the losses (M,) with (strength / 2) ‖θ‖² of the network's parameters, whose gradient
    is added to `.grad`."""
    if not strength or not stack.params:
        return losses.detach()
    add_prior_gradient(stack, strength)
    return losses.detach() + 0.5 * strength * squared_norms(stack)


@torch.no_grad()
def add_prior_gradient(stack: Stack, strength: float) -> None:
    """Add the gradient of (strength / 2) ‖θ‖² over the network's parameters."""
    if strength:
        parameters = list(stack.params.values())
        grads = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_add_(grads, parameters, alpha=strength)


@torch.no_grad()
def squared_norms(stack: Stack) -> Tensor:
    """Return ‖θ‖² of every member's network, (M,)."""
    rows = (p.reshape(len(p), -1) for p in stack.params.values())
    return torch.stack([torch.linalg.vector_norm(row, dim=1).square() for row in rows]).sum(0)


METHODS.register(
    "map",
    summary="one network at the maximum of its posterior",
    kind="one mode",
    equation="θ* = argmax Σₙ log p(yₙ | f(xₙ; θ)) − (λ/2) ‖θ‖²",
    cost="1 × training, 1 × prediction",
    limits="A point estimate: it models the noise but not its own uncertainty, so its epistemic"
    " uncertainty is zero everywhere.",
    paper="MacKay 1992",
    bibtex="""@article{mackay1992practical,
  title={A practical {Bayesian} framework for backpropagation networks},
  author={MacKay, David J. C.}, journal={Neural Computation}, volume={4}, number={3},
  year={1992}}""",
)(Method(MAP, init, step))
