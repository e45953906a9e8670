"""FoRDE in plain PyTorch: a loop over modules, autograd twice, one optimiser."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cases import Case, data
from . import Job


def train(case: Case) -> Job:
    """Each step keeps the graphs of all members until the kernel between them is known."""
    x, y = data(case)

    def run() -> Callable[[Tensor], Tensor]:
        nets = case.members()
        optimizer = torch.optim.Adam([p for net in nets for p in net.parameters()], lr=case.lr)
        for inputs, labels in case.batches(x, y):
            inputs.requires_grad_()
            optimizer.zero_grad()
            losses, directions = [], []
            for net in nets:
                logits = net(inputs)
                losses.append(F.cross_entropy(logits, labels))
                chosen = logits.gather(1, labels[:, None]).sum()
                (slope,) = torch.autograd.grad(chosen, inputs, create_graph=True)
                directions.append(F.normalize(slope.flatten(1), dim=1))
            weight = 1 / len(inputs)
            (torch.stack(losses).sum() + weight * _repulsion(torch.stack(directions))).backward()
            optimizer.step()
        return lambda inputs: torch.stack([net.eval()(inputs) for net in nets])

    return Job(run, case.num_steps)


def _repulsion(s: Tensor) -> Tensor:
    """Sum over members of ln Σ_j mean_b exp(−|s_ib − s_jb|² / h_jb), others held fixed."""
    products = torch.einsum("ibd,jbd->ijb", s, s.detach())
    squared = (2 - 2 * products).clamp_min(0)
    h = squared.detach().median(dim=0).values / torch.tensor(len(s)).log()
    return squared.div(h).neg().exp().mean(2).sum(1).log().sum()
