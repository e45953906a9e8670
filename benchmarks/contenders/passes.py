"""Noisy passes: a plain loop against passes that share what comes before the noise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from polymode.likelihoods.kinds import Categorical
from polymode.methods import dropout
from polymode.methods.method import Problem
from polymode.posterior import Noisy
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from ..cases import Case, data
from . import Job

PASSES, TRAINED = 100, 10
ROWS = 256


def predict_loop(case: Case) -> Job:
    """Each network run `PASSES` times in training mode."""
    x, _ = data(case)
    nets = [net.train() for net in case.members()]

    @torch.no_grad()
    def run() -> None:
        for inputs in x.split(ROWS):
            torch.stack([torch.stack([net(inputs) for _ in range(PASSES)]) for net in nets])

    return Job(run, math.ceil(len(x) / ROWS))


def predict(case: Case) -> Job:
    """The outputs of all draws of a posterior."""
    x, _ = data(case)
    weights = Noisy(Stack(case.members()), PASSES)

    @torch.no_grad()
    def run() -> None:
        outputs = weights.outputs(PASSES, seed=0)
        for inputs in x.split(ROWS):
            outputs(inputs)

    return Job(run, math.ceil(len(x) / ROWS))


def tenfold_batch(case: Case) -> Job:
    """A step of plain dropout on a batch ten times as large: gradients and fused Adam."""
    x, y = data(case)
    net = case.members()[0].train()
    optimizer = torch.optim.Adam(net.parameters(), lr=case.lr, fused=True)

    def run() -> None:
        for inputs, labels in case.batches(x, y):
            optimizer.zero_grad()
            rows = inputs.repeat(TRAINED, *(1,) * (inputs.dim() - 1))
            F.cross_entropy(net(rows), labels.repeat(TRAINED)).backward()
            optimizer.step()

    return Job(run, case.num_steps)


def alpha_steps(case: Case) -> Job:
    """The method's own step with ten passes."""
    x, y = data(case)
    config = dropout.Dropout(lr=case.lr, alpha=0.5, num_passes=TRAINED, epochs=10**6)
    problem = Problem(Categorical(), len(x), case.num_classes, case.num_steps)
    stack = Stack(case.members()).train()
    state = dropout.map_.init(config, problem, stack)

    def run() -> None:
        nonlocal state
        for inputs, labels in case.batches(x, y):
            state, _ = dropout.step(config, problem, state, Batch(inputs, labels))

    return Job(run, case.num_steps)
