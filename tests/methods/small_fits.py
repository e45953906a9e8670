"""A problem small enough to be fitted often, and whether two fits are the same."""

from __future__ import annotations

import torch
from torch import nn

import polymode as pm

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
QUICK = {"epochs": 3, "batch_size": 16, "progress": "silent"}
LONG = {"epochs": 30, "batch_size": 8, "num_modes": 2, "schedule": "cosine", "data_order": "own"}


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 2)
    )


def task(**changes) -> pm.Task:
    return pm.Task(**{"train": (X, Y), "likelihood": "categorical"} | changes)


def same(a: pm.Posterior, b: pm.Posterior) -> bool:
    mine, theirs = a.stack.tensors(), b.stack.tensors()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
