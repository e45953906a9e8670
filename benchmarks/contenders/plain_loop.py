"""Plain PyTorch: a Python loop over the members, one optimiser over all their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cases import Case, data, uncertainty
from . import Job

TOY_SAMPLE = 50


def train(case: Case) -> Job:
    """Each step: the loss of every member backward on its own, then one Adam step.

    Each member shuffles the data for itself, as ensembles do here by default.
    """
    x, y = data(case)

    def run() -> Callable[[Tensor], Tensor]:
        nets = case.members()
        optimizer = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=case.lr)
        for inputs, labels in case.own_batches(x, y):
            optimizer.zero_grad()
            for k, net in enumerate(nets):
                F.cross_entropy(net(inputs[k]), labels[k]).backward()
            optimizer.step()
        return lambda inputs: torch.stack([net.eval()(inputs) for net in nets])

    return Job(run, case.num_steps)


def train_shared(case: Case) -> Job:
    """The same on batches that members share, as repulsion needs them."""
    x, y = data(case)

    def run() -> Callable[[Tensor], Tensor]:
        nets = case.members()
        optimizer = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=case.lr)
        for inputs, labels in case.batches(x, y):
            optimizer.zero_grad()
            for net in nets:
                F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        return lambda inputs: torch.stack([net.eval()(inputs) for net in nets])

    return Job(run, case.num_steps)


def train_one(case: Case) -> Job:
    """One member only; its memory stands for each of the M."""
    return replace(train(replace(case, num_modes=1)), scale=float(case.num_modes))


def train_toy(case: Case) -> Job:
    """The toy network by network, on a sample of the networks, scaled to all of them."""
    x, y = data(case)
    targets = y.float()[:, None]
    sample = replace(case, num_modes=min(TOY_SAMPLE, case.num_modes))

    def run() -> Callable[[Tensor], Tensor]:
        nets = sample.members()
        optimizers = [torch.optim.SGD(net.parameters(), lr=case.lr) for net in nets]
        for inputs, labels in sample.own_batches(x, targets):
            for k, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(net(inputs[k]), labels[k]).backward()
                optimizer.step()
        return lambda inputs: torch.stack([net(inputs) for net in nets])

    return Job(run, case.num_steps, scale=case.num_modes / sample.num_modes)


def predict(case: Case) -> Job:
    """Mean probabilities, entropy and mutual information, batch by batch."""
    x, _ = data(case)
    nets = [net.eval() for net in case.members()]

    @torch.inference_mode()
    def run() -> list[Tensor]:
        parts = [
            uncertainty(torch.stack([net(inputs) for net in nets]))
            for inputs in x.split(case.batch_size)
        ]
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    return Job(run, case.num_steps)
