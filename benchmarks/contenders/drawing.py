"""Posteriors that draw, and gradients through predictions, each against its bare parts.

The bare contenders do what cannot be left out: gradients and update of a chain's step, a draw and
its forward pass, the gradient of each network's loss with respect to its inputs.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.likelihoods.kinds import Categorical
from polymode.methods import sghmc
from polymode.methods.method import Problem
from polymode.posterior import Gaussian
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from ..cases import Case, data
from . import Job
from .polymode_stack import fit

DRAWS = 10
FRICTION, RATE = 0.1, 1e-3


def _stack(case: Case) -> Stack:
    stack = Stack(case.members(), execution="batched").train()
    return stack


def chain_parts(case: Case) -> Job:
    """Gradients of all members, and an update with momentum and noise on flat tensors."""
    x, y = data(case)
    stack = _stack(case)
    momenta = [torch.zeros_like(leaf) for leaf in stack.leaves()]
    scale = math.sqrt((1 - (1 - FRICTION) ** 2) * RATE / len(x))

    def run() -> None:
        for inputs, labels in case.batches(x, y):
            stack.gradients(Categorical().nll, inputs, labels, step=0)
            with torch.no_grad():
                leaves = stack.leaves()
                grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
                torch._foreach_add_(grads, leaves, alpha=1 / len(x))
                torch._foreach_add_(momenta, grads, alpha=-RATE)
                torch._foreach_add_(leaves, momenta, alpha=0.5)
                torch._foreach_mul_(momenta, 1 - FRICTION)
                noise = [torch.randn_like(momentum) for momentum in momenta]
                torch._foreach_add_(momenta, noise, alpha=scale)
                torch._foreach_add_(leaves, momenta, alpha=0.5)

    return Job(run, case.num_steps)


def sghmc_steps(case: Case) -> Job:
    """The method's own step."""
    x, y = data(case)
    config = sghmc.SGHMC(lr=RATE, friction=FRICTION, epochs=10**6, samples_per_mode=1)
    problem = Problem(Categorical(), len(x), case.num_classes, case.num_steps)
    state = sghmc.init(config, problem, _stack(case))

    def run() -> None:
        nonlocal state
        for inputs, labels in case.batches(x, y):
            state, _ = sghmc.step(config, problem, state, Batch(inputs, labels))

    return Job(run, case.num_steps)


def _gaussian(case: Case) -> Gaussian:
    posterior = fit(case, net=case.members(), epochs=0)
    stack = posterior.stack
    std = {name: 0.01 * torch.ones_like(t.detach()) for name, t in stack.params.items()}
    return Gaussian(stack, std, None, DRAWS)


def draw_and_forward(case: Case) -> Job:
    """Each draw made, and run batch by batch by a stack that knows how."""
    x, _ = data(case)
    weights = _gaussian(case)

    @torch.no_grad()
    def run() -> None:
        for number in range(DRAWS):
            drawn = weights.stack.normal("draw", 0, number)
            values = {
                name: torch.addcmul(mean.detach(), weights.std[name], drawn[name])
                for name, mean in weights.stack.params.items()
            }
            scratch.load_tensors({f"network/{name}": value for name, value in values.items()})
            for inputs in x.split(256):
                scratch(inputs)

    scratch = weights.stack.clone()
    return Job(run, DRAWS * math.ceil(len(x) / 256))


def predict_draws(case: Case) -> Job:
    """`predict` of a posterior that draws."""
    x, _ = data(case)
    posterior = fit(case, net=case.members(), epochs=0)
    posterior.weights = _gaussian(case)

    def run() -> None:
        posterior.predict(x)

    return Job(run, DRAWS * math.ceil(len(x) / 256))


def attack_loop(case: Case) -> Job:
    """The mixture's log-probability by a loop over the networks, and its gradient."""
    x, y = data(case)
    nets = [net.eval() for net in case.members()]

    def run() -> None:
        for inputs, labels in case.batches(x, y):
            inputs = inputs.clone().requires_grad_()
            logs = torch.stack([F.log_softmax(net(inputs), -1) for net in nets])
            chosen = logs.logsumexp(0)[torch.arange(len(labels)), labels]
            torch.autograd.grad(chosen.sum(), inputs)

    return Job(run, case.num_steps)


def attack(case: Case) -> Job:
    """The same through `predict_batch`."""
    x, y = data(case)
    posterior = fit(case, net=case.members(), epochs=0)

    def gradient(inputs: Tensor, labels: Tensor) -> Tensor:
        prediction = posterior.predict_batch(inputs, seed=0)
        return torch.autograd.grad(prediction.log_prob(labels).sum(), inputs)[0]

    def run() -> None:
        for inputs, labels in case.batches(x, y):
            gradient(inputs.clone().requires_grad_(), labels)

    return Job(run, case.num_steps)
