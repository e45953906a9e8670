"""Posteriors that take no training: random networks, small or saturated."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from polymode.likelihoods.kinds import Categorical
from polymode.nets import lenet, mlp
from polymode.posterior import Posterior
from polymode.posterior.weights import Noisy, Samples
from polymode.stack.stack import Stack

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
    """Return random networks, centred so that they predict different classes, the last layer
    `scale` times as large.

    With `dropout` their random layers stay on.
    """

    def make() -> nn.Module:
        net = NETWORKS[name](**({"dropout": dropout} if dropout else {}))
        layers = [each for each in net.modules() if isinstance(each, nn.Linear | nn.Conv2d)]
        with torch.no_grad():
            layers[0].weight *= 4
            layers[0].bias.copy_(-0.5 * layers[0].weight.flatten(1).sum(1))
            layers[-1].weight *= scale
            x = torch.rand(256, *SHAPES[name], generator=torch.Generator().manual_seed(9))
            layers[-1].bias -= net.eval()(x).mean(0)
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
