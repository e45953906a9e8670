"""PGD in L∞ by foolbox, on a module that returns the log of the networks' mean probability."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from ..cases import Case, in_the_box
from . import Job

EPS, STEP = 0.02, 0.004  # as in `attacking`, which a peer's interpreter need not import


class Mixture(nn.Module):
    """The mixture as one network; its outputs are their own log-softmax."""

    def __init__(self, nets: list[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        logs = torch.stack([net(x).log_softmax(-1) for net in self.nets])
        return logs.logsumexp(0) - math.log(len(self.nets))


def attack(case: Case) -> Job:
    """foolbox's own loop, without a random start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox

    x, y = in_the_box(case)
    model = foolbox.PyTorchModel(Mixture(case.members()).eval(), bounds=(0, 1), device="cpu")
    pgd = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=case.epochs, random_start=False)

    def run() -> float:
        _, _, fooled = pgd(model, x, y, epsilons=EPS)
        return 1 - fooled.double().mean().item()

    return Job(run, case.epochs)
