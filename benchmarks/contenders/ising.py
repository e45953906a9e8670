"""Full-batch gradient descent of an ensemble on lattices: a loop over members, and a stack."""

from __future__ import annotations

import torch

from polymode.equivariance.kernels import Dense, ReLU, Serial
from polymode.stack.stack import Stack
from polymode.studies.equivariance.theory_experiments import half_squares

from ..cases import Case
from . import Job

_LOOPED = 20


def _kernel() -> Serial:
    hidden = (Dense(2**0.5, 0.1), ReLU())
    return Serial(*hidden, *hidden, Dense(1.0, 0.1))


def _data(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(case.num_examples, *case.input_shape, generator=stream).sign()
    return x, x[:, :2].prod(1, keepdim=True)


def loop(case: Case) -> Job:
    """Member by member, each a module with its own loop; 20 of them, scaled."""
    x, y = _data(case)

    def run() -> float:
        total = 0.0
        for k in range(_LOOPED):
            torch.manual_seed(k)
            net = _kernel().network(25, int(case.option))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
            for _ in range(case.epochs):
                optimizer.zero_grad()
                ((net(x) - y).square().sum(-1).mean() / 2).backward()
                optimizer.step()
            with torch.no_grad():
                total += float(net(x).square().mean())
        return total / _LOOPED

    return Job(run, case.epochs, scale=case.num_modes / _LOOPED)


def stack(case: Case) -> Job:
    """All members as stacks of bounded size."""
    x, y = _data(case)
    width = int(case.option)
    numbers = sum(p.numel() for p in _kernel().network(25, width).parameters())
    together = max(1, 2**23 // numbers)

    def run() -> float:
        total = 0.0
        for start in range(0, case.num_modes, together):
            members = Stack(
                lambda: _kernel().network(25, width), min(together, case.num_modes - start),
                seed=start,
            )  # fmt: skip
            for _ in range(case.epochs):
                members.gradients(half_squares, x, y)
                with torch.no_grad():
                    for leaf in members.leaves():
                        assert leaf.grad is not None
                        leaf.add_(leaf.grad, alpha=-0.5)
            with torch.no_grad():
                total += float(members(x).square().mean((1, 2)).sum())
        return total / case.num_modes

    return Job(run, case.epochs)
