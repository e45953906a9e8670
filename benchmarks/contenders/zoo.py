"""Independent LeNets on the 8x8 digits: a shard of a zoo, and one network after another."""

from __future__ import annotations

import tempfile

import torch
import torch.nn.functional as F
from torch import nn

from ..cases import Case
from . import Job

ALONE = 5  # networks that the plain loop trains


def polymode(case: Case) -> Job:
    """One shard, trained as a stack, scored and written."""
    from polymode.zoo import RECIPES, train

    recipe = RECIPES.get("digits-lenet").value.with_settings({"epochs": case.epochs})

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(folder, recipe, case.num_modes, networks_per_shard=case.num_modes)

    return Job(run, case.num_steps)


def _lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def plain_loop(case: Case) -> Job:
    """The same training for single networks, each written to a file."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[: case.num_examples, None] / 16
    x, y = (x - x.mean()) / x.std(), torch.tensor(digits.target)[: case.num_examples]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(ALONE):
                torch.manual_seed(number)
                net = _lenet()
                optimizer = torch.optim.SGD(
                    net.parameters(), lr=0.05, momentum=0.9, nesterov=True,
                    weight_decay=1 / case.num_examples,
                )  # fmt: skip
                steps = case.num_steps
                schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
                for _ in range(case.epochs):
                    for rows in torch.randperm(len(x)).split(case.batch_size):
                        optimizer.zero_grad()
                        F.cross_entropy(net(x[rows]), y[rows]).backward()
                        optimizer.step()
                        schedule.step()
                torch.save(net.half().state_dict(), f"{folder}/{number}.pt")

    return Job(run, case.num_steps, scale=case.num_modes / ALONE)
