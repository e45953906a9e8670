"""Posteriors that take no training: random networks, small or saturated."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from polymode.core.likelihoods import Categorical
from polymode.core.stack import Stack
from polymode.nets import lenet, mlp
from polymode.posterior import Posterior
from polymode.posterior.weights import Noisy, Samples

SHAPES = {"mlp": (6,), "lenet": (1, 8, 8)}
CLASSES = 4
NETWORKS = {
    "mlp": partial(mlp, (6,), CLASSES, hidden=(16, 16)),
    "lenet": partial(lenet, (1, 8, 8), CLASSES),
}


def posterior(
    name: str,
    num_modes: int = 3,
    *,
    scale: float = 3.0,
    dropout: float = 0.0,
    samples_per_mode: int = 1,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Posterior:
    """Return random networks whose last layer is `scale` times as large: they predict something.

    With `dropout` their random layers stay on.
    """

    def make() -> nn.Module:
        net = NETWORKS[name](**({"dropout": dropout} if dropout else {}))
        last = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
        with torch.no_grad():
            last.weight *= scale
        return net

    stack = Stack(make, num_modes, seed=seed, dtype=dtype, execution="loop")
    weights = Noisy(stack, samples_per_mode) if dropout else Samples(stack)
    return Posterior(
        weights,
        Categorical(),
        method="made up",
        config={},
        seed=seed,
        input_shape=SHAPES[name],
        target_size=CLASSES,
    )
