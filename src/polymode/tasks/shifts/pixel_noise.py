"""Noise: Gaussian, shot, impulse and speckle, independent for every value of every image.

Published constants (D. Hendrycks, T. Dietterich, "Benchmarking neural network robustness to common
corruptions and perturbations", ICLR 2019; those of CIFAR-10-C) for colour; they were chosen for
photographs and hardly disturb grey images on a dark background, which get larger ones. `n` images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.tasks.shifts.shift import Draws, shift


@shift(
    "gaussian_noise",
    group="noise",
    colour=(0.04, 0.06, 0.08, 0.09, 0.10),
    grey=(0.1, 0.2, 0.3, 0.45, 0.6),
)
def gaussian_noise(images: Tensor, std: float, draws: Draws) -> Tensor:
    """Return x + std z with z standard normal."""
    return images + std * draws.normal(*images.shape[1:])


@shift(
    "shot_noise",
    group="noise",
    colour=(500.0, 250.0, 100.0, 75.0, 50.0),
    grey=(60.0, 25.0, 12.0, 5.0, 3.0),
)
def shot_noise(images: Tensor, photons: float, draws: Draws) -> Tensor:
    """Return k / photons with k Poisson of rate `photons` x: what a sensor counts in dim light."""
    return draws.poisson(images * photons) / photons


@shift(
    "impulse_noise",
    group="noise",
    colour=(0.01, 0.02, 0.03, 0.05, 0.07),
    grey=(0.01, 0.03, 0.05, 0.08, 0.12),
)
def impulse_noise(images: Tensor, fraction: float, draws: Draws) -> Tensor:
    """Return images with a fraction of the values set to 0 or 1, equally often (salt, pepper)."""
    u = draws.uniform(0, 1, *images.shape[1:])
    salted = torch.where(u > 1 - fraction / 2, 1.0, images)
    return torch.where(u < fraction / 2, 0.0, salted)


@shift(
    "speckle_noise",
    group="noise",
    colour=(0.06, 0.1, 0.12, 0.16, 0.2),
    grey=(0.15, 0.2, 0.35, 0.45, 0.6),
)
def speckle_noise(images: Tensor, std: float, draws: Draws) -> Tensor:
    """Return x + std x z with z standard normal: noise in proportion to the value."""
    return images + std * images * draws.normal(*images.shape[1:])
