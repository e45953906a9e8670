"""Steps of SG-MCMC against what any of them needs, and SWAG against plain training.

The bare contender has no library around it: `autograd.grad` of the network (of a vmapped stack of
them where there are several), one fused noise and foreach updates on all parameters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from polymode.likelihoods.kinds import Categorical
from polymode.methods import METHODS
from polymode.methods.method import Problem
from polymode.posterior import Gaussian
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from ..cases import Case, data
from . import Job
from .polymode_stack import fit, pm
from .vmap import stacked

FRICTION, RATE, DRAWS = 0.1, 1e-3, 100


def bare(case: Case) -> Job:
    """SGHMC by hand: gradient, prior, momentum, noise, position."""
    x, y = data(case)
    nets = case.members()
    if len(nets) == 1:
        params, forward = list(nets[0].parameters()), nets[0]
    else:
        by_name, forward = stacked(nets)
        params = list(by_name.values())
    momentum = [torch.zeros_like(p) for p in params]
    sizes = [p.numel() for p in params]
    scale = math.sqrt((1 - (1 - FRICTION) ** 2) * RATE / len(x))

    def run() -> None:
        for inputs, labels in case.batches(x, y):
            logits = forward(inputs)
            if len(nets) == 1:
                loss = F.cross_entropy(logits, labels)
            else:
                loss = len(nets) * F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(nets)))
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                noise = torch.randn(sum(sizes)).split(sizes)
                noise = [n.view_as(p) for n, p in zip(noise, params, strict=True)]
                torch._foreach_mul_(momentum, 1 - FRICTION)
                torch._foreach_add_(momentum, grads, alpha=-RATE)
                torch._foreach_add_(momentum, params, alpha=-RATE / len(x))
                torch._foreach_add_(momentum, noise, alpha=scale)
                torch._foreach_add_(params, momentum)

    return Job(run, case.num_steps)


def _steps(case: Case, name: str, **options: Any) -> Job:
    """The method's own steps."""
    x, y = data(case)
    method = METHODS.get(name).value
    options |= {"lr": RATE, "epochs": 10**6, "samples_per_mode": 1, "step_limit": None}
    config = method.config(**options)
    problem = Problem(Categorical(), len(x), case.num_classes, case.num_steps)
    state = method.init(config, problem, Stack(case.members()).train())

    def run() -> None:
        nonlocal state
        for inputs, labels in case.batches(x, y):
            state, _ = method.step(config, problem, state, Batch(inputs, labels))

    return Job(run, case.num_steps)


def sgld(case: Case) -> Job:
    return _steps(case, "sgld")


def sghmc(case: Case) -> Job:
    return _steps(case, "sghmc", friction=FRICTION)


def sgnht(case: Case) -> Job:
    return _steps(case, "sgnht", friction=FRICTION)


def preconditioned(case: Case) -> Job:
    """`sghmc` while its preconditioner learns."""
    return _steps(case, "sghmc", friction=FRICTION, preconditioner="rmsprop")


def plain_training(case: Case) -> Job:
    """`map` with the optimiser of SWAG."""
    return Job(lambda: _train(case, "map"), case.num_steps)


def swag_training(case: Case) -> Job:
    return Job(lambda: _train(case, "swag"), case.num_steps)


def _train(case: Case, method: str) -> Any:
    post = pm.fit(
        method,
        net=case.make_net,
        task=pm.Task(train=data(case), likelihood="categorical"),
        num_modes=case.num_modes,
        epochs=case.epochs,
        batch_size=case.batch_size,
        execution="loop",  # not chosen: two choices would differ by more than is measured
        optimizer="sgd",
        momentum=0.9,
        lr=case.lr,
        holdout=0,
        progress="silent",
    )
    return post.stack


def _gaussian(case: Case) -> Gaussian:
    """A SWAG posterior of rank 20 around untrained networks."""
    stack = fit(case, net=case.members(), epochs=0).stack
    std = {name: 0.01 * torch.ones_like(t.detach()) for name, t in stack.params.items()}
    few = {n: 0.01 * torch.randn(len(t), 20, *t.shape[1:]) for n, t in stack.params.items()}
    return Gaussian(stack, std, few, DRAWS)


def one_by_one(case: Case) -> Job:
    """Each draw made, run over the data, and forgotten."""
    x, _ = data(case)
    weights = _gaussian(case)

    @torch.no_grad()
    def run() -> None:
        total = torch.zeros(len(x), case.num_classes)
        for number in range(DRAWS):
            drawn = weights.draw(number, 0)
            outputs = torch.cat([drawn(part) for part in x.split(256)], 1)
            total += outputs.softmax(-1).mean(0) / DRAWS

    return Job(run, DRAWS)


def predict(case: Case) -> Job:
    """`Posterior.predict` with 100 draws."""
    x, _ = data(case)
    posterior = fit(case, net=case.members(), epochs=0)
    posterior.weights = _gaussian(case)

    def run() -> None:
        posterior.predict(x)

    return Job(run, DRAWS)
