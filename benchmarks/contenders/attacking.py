"""PGD in L∞ on the mixture of several networks: by `pm.adversary`, and by a plain loop.

All take the same steps from the same inputs, with the cross-entropy of the mean probability, and
return the accuracy that is left.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cases import Case, in_the_box
from . import Job

EPS, STEP = 0.02, 0.004


def loop(case: Case) -> Job:
    """Network by network: log-softmax, log of the mean, its gradient with respect to the inputs."""
    x, y = in_the_box(case)
    nets = [net.eval() for net in case.members()]

    def log_probs(inputs: Tensor) -> Tensor:
        logs = torch.stack([F.log_softmax(net(inputs), -1) for net in nets])
        return logs.logsumexp(0) - math.log(len(nets))

    def run() -> float:
        moved = x.clone()
        for _ in range(case.epochs):
            moved.requires_grad_()
            (gradient,) = torch.autograd.grad(F.nll_loss(log_probs(moved), y), moved)
            with torch.no_grad():
                moved = moved + STEP * gradient.sign()
                moved = torch.minimum(torch.maximum(moved, x - EPS), x + EPS).clamp_(0, 1)
        with torch.no_grad():
            return (log_probs(moved).argmax(-1) == y).double().mean().item()

    return Job(run, case.epochs)


def polymode(case: Case) -> Job:
    """`pm.adversary.attack`, which also looks at every step and keeps the curves."""
    from polymode.adversary import attack

    from .polymode_stack import fit

    x, y = in_the_box(case)
    posterior = fit(case, net=case.members(), epochs=0)
    steps = {"steps": case.epochs, "step_size": STEP, "keep": "last", "checks": "none"}

    def run() -> float:
        found = attack(posterior, x, y, kind="bim", eps=EPS, batch_size=case.batch_size, **steps)
        return found.accuracy

    return Job(run, case.epochs)
