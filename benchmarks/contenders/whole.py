"""Chains on the whole data: leapfrog and microcanonical steps against their gradients alone."""

from __future__ import annotations

import torch

from polymode.likelihoods.kinds import Categorical
from polymode.methods.full_batch.leapfrog import Point, leapfrog
from polymode.methods.full_batch.microcanonical import directions, langevin_step
from polymode.methods.full_batch.target import LogPosterior, rows_of
from polymode.methods.method import Problem
from polymode.stack.stack import Stack

from ..cases import Case, data
from . import Job

GRADIENTS, STEP = 200, 1e-3


def _stack(case: Case) -> Stack:
    return Stack(case.members(), execution="batched").eval()


def gradients(case: Case) -> Job:
    """The gradients of all members on the whole data, and nothing else."""
    x, y = data(case)
    stack = _stack(case)

    def run() -> None:
        for _ in range(GRADIENTS):
            stack.gradients(Categorical().nll, x, y, step=0)

    return Job(run, GRADIENTS)


def _target(case: Case) -> tuple[LogPosterior, Point]:
    x, y = data(case)
    problem = Problem(Categorical(), len(x), case.num_classes, 1)
    target = LogPosterior(_stack(case), problem, [(x, y)], 1.0, 1.0)
    rows = rows_of(target.stack)
    return target, Point(rows, *target(rows))


def leapfrog_steps(case: Case) -> Job:
    """As many leapfrog steps of `hmc`."""
    target, point = _target(case)
    momentum = torch.randn_like(point.position)
    step_size = torch.full((len(momentum), 1), STEP)
    inverse_mass = torch.ones_like(momentum)

    def run() -> None:
        leapfrog(target, point, momentum, step_size, inverse_mass, GRADIENTS)

    return Job(run, GRADIENTS)


def langevin_steps(case: Case) -> Job:
    """Half as many steps of `mile`, two gradients each, with their noise."""
    target, begin = _target(case)
    sizes = [torch.full((len(begin.position), 1), value) for value in (STEP, 1.0)]

    def run() -> None:
        point, velocity = begin, directions(target.stack.normal_rows("start"))
        for number in range(GRADIENTS // 2):
            noise = target.stack.normal_rows("mile", number)
            point, velocity, *_ = langevin_step(target, point, velocity, noise, *sizes)

    return Job(run, GRADIENTS)
