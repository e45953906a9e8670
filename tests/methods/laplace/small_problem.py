"""A small classification and a small regression, and Laplace posteriors of them."""

from __future__ import annotations

import torch
from torch import nn

import polymode as pm

STREAM = torch.Generator().manual_seed(0)


X = torch.randn(40, 3, generator=STREAM, dtype=torch.float64)


LABELS = (X[:, 0] > 0).long() + (X[:, 1] > 1).long()


VALUES = X @ torch.tensor([[1.0, -0.5], [0.3, 0.2], [0.0, 1.0]], dtype=torch.float64)


STRUCTURES = ("kron", "diag", "full", "last_layer", "subnetwork", "low_rank")


def net(outputs: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def classes() -> pm.Task:
    return pm.Task(train=(X, LABELS), likelihood="categorical")


def fit(**options) -> pm.Posterior:
    if options.get("structure") == "subnetwork":
        options.setdefault("subnetwork", list(range(0, 31, 2)))
    if "evidence" not in options:
        options.setdefault("prior_precision", 1.0)
    usual = {"net": net(), "task": classes(), "progress": "silent"}
    return pm.fit("laplace", **(usual | options))
