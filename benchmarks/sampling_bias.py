"""Measure what gradient noise does to samplers: `python -m benchmarks.sampling_bias`, 3 minutes.

A Gaussian posterior of N = 100 examples, curvatures of U/N 1 and 0.1, T = 1. To the gradient of U/N
is added noise of variance 0.1 per coordinate, on average over the posterior: that of batches of 10
whose examples differ by 1. Measured is the temperature of each direction: variance of the chain
over that of the posterior. Steps are those of `polymode.methods.sampling`, on 2,000 copies; the
error is that between copies. Writes `results/sampling_bias.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polymode.methods.sampling.integrators import badodab, baoab, langevin
from polymode.methods.sampling.preconditioning import adapt

RESULTS = Path(__file__).parents[1] / "results" / "sampling_bias.json"
N, NOISE, COPIES, FRICTION, THERMOSTAT = 100, 0.1, 2000, 0.1, 0.01
CURVATURE = torch.tensor([1.0, 0.1], dtype=torch.float64)
RATES = (0.1, 0.03, 0.01)  # of sgld; a tenth of it has the same progress with friction 0.1
Noise = Callable[[Tensor], Tensor]

VARIANCES: dict[str, Noise] = {
    "none": lambda theta: torch.zeros_like(theta),
    "isotropic": lambda theta: torch.full_like(theta, NOISE),
    "like the curvature": lambda theta: NOISE * CURVATURE / CURVATURE.mean() + 0 * theta,
    "growing with θ²": lambda theta: NOISE * N * CURVATURE * theta.square(),
}


def gradient(theta: Tensor, variance: Noise, stream: torch.Generator) -> Tensor:
    """Return the noisy gradient of U/N at (1, 2 copies), coordinates in turn."""
    own = theta.view(-1, 2)
    noise = torch.randn(own.shape, generator=stream, dtype=own.dtype)
    return (CURVATURE * own + variance(own).sqrt() * noise).view_as(theta)


def sgld(rate: float, theta: Tensor, variance: Noise, stream: torch.Generator) -> Iterator[None]:
    scale, before = math.sqrt(2 * rate / N), torch.randn(theta.shape, generator=stream).double()
    while True:
        noise = torch.randn(theta.shape, generator=stream, dtype=theta.dtype)
        momentum, found = scale * before, [gradient(theta, variance, stream)]
        langevin(
            [theta], found, momentum, [momentum], noise - before, lr=rate, scale=scale,
            variance=scale**2,
        )  # fmt: skip
        before = noise
        yield


def sghmc(rate: float, theta: Tensor, variance: Noise, stream: torch.Generator) -> Iterator[None]:
    lr, keeps = rate * FRICTION, 1 - FRICTION
    momentum = math.sqrt(lr / N) * torch.randn(theta.shape, generator=stream).double()
    scale = math.sqrt((1 - keeps**2) * lr / N)
    while True:
        noise = torch.randn(theta.shape, generator=stream, dtype=theta.dtype)
        grads = [gradient(theta, variance, stream)]
        baoab([theta], grads, momentum, [momentum], noise, lr=lr, keeps=keeps, scale=scale)
        yield


def sgnht(rate: float, theta: Tensor, variance: Noise, stream: torch.Generator) -> Iterator[None]:
    lr, diffusion = rate * FRICTION, -math.log1p(-FRICTION)
    momentum = math.sqrt(lr / N) * torch.randn(theta.shape, generator=stream).double()
    friction = torch.full((1,), diffusion, dtype=theta.dtype)
    while True:
        noise = torch.randn(theta.shape, generator=stream, dtype=theta.dtype)
        grads = [gradient(theta, variance, stream)]
        badodab(
            [theta], grads, momentum, [momentum], friction, noise, lr=lr, rate=THERMOSTAT,
            diffusion=diffusion, temperature=1.0, variance=lr / N,
        )  # fmt: skip
        yield


def temperatures(sampler: Any, rate: float, variance: Noise) -> dict[str, list[float]]:
    """Return the temperature of both directions with its error, over ten relaxation times."""
    stream = torch.Generator().manual_seed(0)
    std = (N * CURVATURE).rsqrt()
    theta = std * torch.randn(COPIES, 2, generator=stream, dtype=torch.float64)
    theta = theta.reshape(1, -1)
    relaxation = round(1 / (rate * float(CURVATURE.min())))
    chain, squares = sampler(rate, theta, variance, stream), torch.zeros(COPIES, 2).double()
    taken = 0
    for number in range(15 * relaxation):
        next(chain)
        if number >= 5 * relaxation and number % max(relaxation // 20, 1) == 0:
            squares += (theta.view(-1, 2) / std).square()
            taken += 1
    squares /= taken
    error = squares.std(0) / COPIES**0.5
    return {"mean": squares.mean(0).tolist(), "error": error.tolist()}


def moving_preconditioner(rate: float) -> list[float]:
    """Return the variance of a unit Gaussian (N = 1) with `rmsprop_moving`, and its error."""
    stream = torch.Generator().manual_seed(0)
    theta = torch.randn(1, COPIES, generator=stream, dtype=torch.float64)
    metric = {"squares": torch.zeros_like(theta), "scale": torch.ones_like(theta)}
    before, squares, steps = torch.randn(theta.shape, generator=stream).double(), 0.0 * theta, 4000
    for number in range(steps):
        noise = torch.randn(theta.shape, generator=stream, dtype=theta.dtype)
        adapt(metric, [theta], number)
        scale = math.sqrt(2 * rate)
        momentum = scale * before
        langevin(
            [theta], [theta.clone()], momentum, [momentum], noise - before, lr=rate, scale=scale,
            variance=scale**2, metric=[metric["scale"]],
        )  # fmt: skip
        before = noise
        if number >= steps // 4:
            squares = squares + theta.square() / (steps - steps // 4)
    return [squares.mean().item(), (squares.std() / COPIES**0.5).item()]


def main() -> None:
    cells = [
        {"method": sampler.__name__, "noise": name, "rate": rate}
        | temperatures(sampler, rate, variance)
        for sampler in (sgld, sghmc, sgnht)
        for name, variance in VARIANCES.items()
        for rate in RATES
    ]
    moving = [{"rate": r, "variance": moving_preconditioner(r)} for r in (0.2, 0.05, 0.01)]
    about = {"torch": torch.__version__, "copies": COPIES, "seed": 0}
    found = {"about": about, "gradient_noise": cells, "rmsprop_moving": moving}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
