r"""Samples of the prior p(f) ∝ exp(−λ TV(f)) on images with values in [0, 1], by Gibbs sampling.

Given its four neighbours a_1 ≤ … ≤ a_4, the density of a pixel is exp(−λ Σ_k |f − a_k|):
exponential between any two of them, so it can be drawn exactly by its distribution function. Pixels
of one colour of a chessboard are independent given the others and are drawn together.

For comparison, the two Gaussians of the talk: independent pixels, and a Matérn-½ process whose
lengthscale has the TV-PredCP prior (`tv_predcp.py`). There κ(ℓ) = D √(2 v / π) with v = 2 s² (1 −
exp(−1 / ℓ)) for D pairs of neighbours: monotone, so ℓ is drawn by drawing κ from the exponential
density within the range that some ℓ reaches, and solving for ℓ.

Shapes: `S` samples, `H`, `W` height and width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.tomography.filter_prior import grid_distances


def tv_samples(
    shape: tuple[int, int], rate: float, number: int, *, sweeps: int = 2000, seed: int = 0
) -> Tensor:
    """Return `number` images (S, H, W), each the end of a chain of its own.

    Args:
        rate: λ > 0. sweeps: updates of every pixel, from independent uniform ones on.
    """
    if not rate > 0 or number < 1 or sweeps < 1:
        raise ValueError(
            "`rate` of tv_samples must be > 0, `number` and `sweeps` >= 1, got"
            f" {rate}, {number}, {sweeps}"
        )
    stream = generator(seed, "tv_samples")
    images = torch.rand(number, *shape, generator=stream, dtype=torch.float64)
    rows, columns = torch.meshgrid(torch.arange(shape[0]), torch.arange(shape[1]), indexing="ij")
    colours = [((rows + columns) % 2 == colour) for colour in (0, 1)]
    for _ in range(sweeps):
        for pixels in colours:
            uniform = torch.rand(number, int(pixels.sum()), generator=stream, dtype=torch.float64)
            images[:, pixels] = _conditional(_beside(images)[:, :, pixels], rate, uniform)
    return images


def _beside(images: Tensor) -> Tensor:
    """Return the four neighbours, (4, S, H, W); NaN beyond the border."""
    around = torch.nn.functional.pad(images, (1, 1, 1, 1), value=math.nan)
    return torch.stack(
        [around[:, :-2, 1:-1], around[:, 2:, 1:-1], around[:, 1:-1, :-2], around[:, 1:-1, 2:]]
    )


def _conditional(beside: Tensor, rate: float, uniform: Tensor) -> Tensor:
    """Return draws of exp(−λ Σ |f − a_k|) on [0, 1] by the inverse of its distribution function.

    Neighbours that do not exist are put at 1, where they change the slope of nothing: their share
    of the slope is taken off instead.
    """
    exists = ~beside.isnan()
    missing = 4 - exists.sum(0)
    sorted_up = beside.nan_to_num(1.0).sort(0).values
    zeros, ones = torch.zeros_like(uniform)[None], torch.ones_like(uniform)[None]
    edges = torch.cat([zeros, sorted_up, ones])  # (6, ...)
    steps = edges.diff(dim=0)  # (5, ...)
    # slope of the log-density in interval k: λ (neighbours above − neighbours below)
    below = torch.arange(5, dtype=uniform.dtype).view(-1, *[1] * uniform.dim())
    slope = rate * (4 - missing - 2 * below)
    log_left = torch.cat([zeros, (slope * steps).cumsum(0)[:-1]])
    log_left = log_left - log_left.amax(0)
    flat = slope.abs() < 1e-12
    safe = torch.where(flat, 1.0, slope)
    mass = torch.where(flat, steps, torch.expm1(safe * steps) / safe) * log_left.exp()
    total = mass.cumsum(0)
    wanted = uniform * total[-1]
    place = (total < wanted).sum(0).clamp_max(4)[None]
    before = torch.cat([zeros, total]).gather(0, place)
    remaining = (wanted[None] - before) / log_left.exp().gather(0, place)
    steepness, even = safe.gather(0, place), flat.gather(0, place)
    inside = torch.where(
        even, remaining, torch.log1p((steepness * remaining).clamp_min(-1 + 1e-12)) / steepness
    )
    return (edges.gather(0, place) + inside).clamp(0, 1)[0]


def factorised_samples(
    shape: tuple[int, int], variance: float, number: int, *, seed: int = 0
) -> Tensor:
    """Return images of independent Gaussian pixels around ½, (S, H, W)."""
    stream = generator(seed, "factorised")
    white = torch.randn(number, *shape, generator=stream, dtype=torch.float64)
    return 0.5 + variance**0.5 * white


def predcp_samples(
    shape: tuple[int, int], variance: float, rate: float, number: int, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return images of the Matérn-½ process under TV-PredCP, (S, H, W), and their ℓ, (S,).

    Args:
        variance: s² of a pixel. rate: λ > 0 of the exponential density of κ.
    """
    if not (rate > 0 and variance > 0):
        raise ValueError(
            f"`rate` and `variance` of predcp_samples must be > 0, got {rate}, {variance}"
        )
    height, width = shape
    pairs = height * (width - 1) + width * (height - 1)
    stream = generator(seed, "predcp")
    most = pairs * math.sqrt(4 * variance / math.pi)  # κ of independent pixels, ℓ -> 0
    uniform = torch.rand(number, generator=stream, dtype=torch.float64)
    kappa = -torch.log1p(-uniform * -math.expm1(-rate * most)) / rate  # exponential below `most`
    share = math.pi * (kappa / pairs).square() / (4 * variance)  # 1 − exp(−1 / ℓ)
    lengths = -1 / torch.log1p(-share.clamp(1e-12, 1 - 1e-12))
    apart = grid_distances(height, width)
    white = torch.randn(number, height * width, generator=stream, dtype=torch.float64)
    eye = torch.eye(height * width, dtype=torch.float64)
    images = [
        torch.linalg.cholesky(torch.exp(-apart / length) + 1e-9 * eye) @ noise
        for length, noise in zip(lengths, white, strict=True)
    ]
    return 0.5 + variance**0.5 * torch.stack(images).view(-1, height, width), lengths
