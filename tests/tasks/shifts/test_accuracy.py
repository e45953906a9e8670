"""A network that was trained on clean images gets worse with severity."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polymode.tasks.shifts import CORRUPTIONS, SEVERITIES, corrupt


@pytest.fixture(scope="module")
def accuracies(digits):
    """Accuracy (kinds, severities) of a small network on 897 digits, trained on the other 900."""
    images, labels = digits
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    train, mean, std = images[:900], images[:900].mean(), images[:900].std()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(256, 10),
        )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        loss = F.cross_entropy(net((train - mean) / std), labels[:900])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def accuracy(x):
        return float((net((x - mean) / std).argmax(1) == labels[900:]).double().mean())

    test = images[900:]
    assert accuracy(test) > 0.95
    return torch.tensor(
        [[accuracy(corrupt(test, kind, s)) for s in SEVERITIES] for kind in CORRUPTIONS]
    )


def test_the_mean_over_kinds_falls_with_every_severity(accuracies):
    means = accuracies.mean(0)
    assert (means.diff() < -0.01).all()
    assert float(means[0]) > 0.9 and 0.4 < float(means[4]) < 0.9


def test_every_kind_is_worse_at_5_than_at_1(accuracies):
    assert (accuracies[:, 4] < accuracies[:, 0]).all()
