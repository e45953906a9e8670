"""Networks and data whose truth is known, for tests of audits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from polymode.audits import sources
from polymode.audits.sources import Sources
from polymode.audits.subject import Subject


def linear(classes: int = 3, factor: float = 3.0) -> nn.Module:
    """A network from four features to logits."""
    torch.manual_seed(1)
    net = nn.Linear(4, classes)
    with torch.no_grad():
        net.weight.mul_(factor)
    return net


def drawn(net: nn.Module, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs, and labels that are drawn with the probabilities of a network."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return x, torch.multinomial(net(x).softmax(-1).detach(), 1, generator=generator)[:, 0]


def subject_of(
    net: nn.Module,
    test: tuple[Tensor, Tensor],
    train: tuple[Tensor, Tensor] | None = None,
    groups: dict[str, np.ndarray] | None = None,
    baseline: nn.Module | None = None,
) -> Subject:
    """Return what a check looks at."""
    subject = sources.subject_of(net, Sources(test, train=train))
    subject.groups = groups or {}
    if baseline is not None:
        subject.baseline = sources.as_posterior(baseline, subject.task, None)
    return subject
