"""Small posteriors of every kind of weights, made without training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import polymode as pm
from polymode.likelihoods.kinds import Gaussian as GaussianNoise
from polymode.likelihoods.kinds import Likelihood
from polymode.posterior import Gaussian, Noisy, Posterior, Samples, Weights
from polymode.stack.stack import Stack

KINDS = ("one", "samples", "noisy", "gaussian")
X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SEED = 7


def net() -> nn.Module:
    """Noise, running statistics and a frozen layer: all that weights have to take care of."""
    last = nn.Linear(16, 2)
    last.bias.requires_grad_(False)
    return nn.Sequential(
        nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.3), last
    ).double()


def made_up(kind: str, modes: int = 4, samples: int = 3, seed: int = SEED) -> Weights:
    """Return weights of float64 networks with a learned noise; those of the first modes do not
    depend on how many there are."""
    stack = Stack(net, modes, seed=seed, dtype=torch.float64)
    stack.add_parameters({"log_noise": torch.linspace(-1, 1, 10)[:modes]})
    with torch.no_grad():
        stack.buffers["1.running_mean"].copy_(0.1 * torch.arange(modes)[:, None].expand(modes, 16))
    if kind == "one":
        return Samples(stack)
    if kind == "noisy":
        return Noisy(stack, samples)
    spread = {name: 0.1 * tensor.abs() for name, tensor in stack.normal("std").items()}
    deviations = {
        name: torch.stack([stack.normal("d", r)[name] for r in range(2)], 1) for name in spread
    }
    gaussian = Gaussian(stack, spread, deviations, samples)
    if kind == "gaussian":
        return gaussian
    kept = gaussian.keep(samples, seed=1)
    assert kept.kept is not None
    for name in ("network/1.running_mean", "extra/log_noise"):
        kept.kept[name] += 0.1 * torch.arange(samples).view(-1, *[1] * (kept.kept[name].dim() - 1))
    return kept


def posterior(
    weights: Weights, likelihood: Likelihood | None = None, seed: int = SEED
) -> Posterior:
    return pm.Posterior(
        weights,
        likelihood or GaussianNoise(noise="learned"),
        method="made_up",
        config={},
        seed=seed,
        input_shape=(3,),
        target_size=2,
    )


def by_draws(weights: Weights, samples: int, seed: int) -> Tensor:
    """Return outputs (M, L, B, K) of each draw's members, one after another."""
    with torch.no_grad():
        return torch.stack([weights.draw(number, seed)(X) for number in range(samples)], 1)
