r"""How well a posterior over images agrees with the truth; one estimator for every method.

Log-density: the image is cut into patches of k x k pixels (those at the border smaller), and each
is scored as a Gaussian around the posterior's mean with its covariance Γ there,

    log N(truth; mean, Γ'),   Γ' = ½ (Γ + diag Γ) + floor · I    (k = 1: the variance + floor),

divided by the number of pixels: nats per pixel. The shrinkage towards the diagonal is that of the
reference's code; it keeps a covariance of few samples from being singular. The same Γ' is taken of
exact covariances, of samples and of constant variances, and the same `floor` for all: the least
variance that a pixel may have, by default that of rounding to 8-bit grey values, (1/255)² / 12.

Coverage: the share of pixels whose truth is in the central interval of each level, of the same
Gaussian. Calibration: pixels sorted by predicted standard deviation in bins of equal count; the
root mean squared error of each compared with its predicted standard deviation.

Shapes: `n` pixels, `k` pixels of a patch's side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.tomography.image_posterior import ImagePosterior

LEVELS = (0.5, 0.9, 0.95)
FLOOR = (1 / 255) ** 2 / 12  # of 8-bit grey values in [0, 1]


def patches(shape: tuple[int, int], side: int) -> list[Tensor]:
    """Return the places of the pixels of each patch.

    >>> [each.tolist() for each in patches((2, 3), 2)]
    [[0, 1, 3, 4], [2, 5]]
    """
    grid = torch.arange(shape[0] * shape[1]).view(shape)
    return [
        grid[top : top + side, left : left + side].flatten()
        for top in range(0, shape[0], side)
        for left in range(0, shape[1], side)
    ]


def log_density(
    posterior: ImagePosterior, truth: Tensor, *, side: int = 1, floor: float = FLOOR
) -> float:
    """Return the log-density of the true image (H, W), nats per pixel."""
    error = _error(posterior, truth)
    if side == 1:
        variance = posterior.variance.clamp_min(0) + floor
        terms = error.square() / variance + (2 * math.pi * variance).log()
        return float(-0.5 * terms.mean())
    total = 0.0
    for places in patches(posterior.shape, side):
        own = posterior.patch_covariance(places).double()
        own = 0.5 * (own + torch.diag(own.diagonal()))
        values, vectors = torch.linalg.eigh(own)
        values = values.clamp_min(0) + floor  # below 0 by rounding alone
        along = error[places] @ vectors
        total -= 0.5 * float((along.square() / values + (2 * math.pi * values).log()).sum())
    return total / len(error)


def coverage(
    posterior: ImagePosterior,
    truth: Tensor,
    levels: Sequence[float] = LEVELS,
    floor: float = FLOOR,
) -> list[float]:
    """Return the share of pixels whose truth is in the central interval of each level."""
    error = _error(posterior, truth).abs()
    spread = (posterior.variance.clamp_min(0) + floor).sqrt()
    quantiles = math.sqrt(2) * torch.special.erfinv(torch.tensor(levels, dtype=torch.float64))
    return [float((error <= q * spread).double().mean()) for q in quantiles]


def coverage_error(posterior: ImagePosterior, truth: Tensor, floor: float = FLOOR) -> float:
    """Return the mean of |coverage − level| over the levels 0.05, 0.1, …, 0.95."""
    levels = np.linspace(0.05, 0.95, 19).tolist()
    found = coverage(posterior, truth, levels, floor)
    return float(np.abs(np.array(found) - np.array(levels)).mean())


class Calibration(NamedTuple):
    """Predicted standard deviation and root mean squared error of bins of pixels, (bins,) each."""

    predicted: np.ndarray
    actual: np.ndarray


def calibration(
    posteriors: Sequence[ImagePosterior],
    truths: Sequence[Tensor],
    *,
    bins: int = 10,
    floor: float = FLOOR,
) -> Calibration:
    """Return error against predicted standard deviation, over the pixels of several images."""
    errors = torch.cat([_error(p, t) for p, t in zip(posteriors, truths, strict=True)])
    variances = torch.cat([p.variance.clamp_min(0) + floor for p in posteriors])
    order = variances.argsort()
    parts = order.chunk(bins)
    predicted = [float(variances[part].mean().sqrt()) for part in parts]
    actual = [float(errors[part].square().mean().sqrt()) for part in parts]
    return Calibration(np.array(predicted), np.array(actual))


def calibration_error(posterior: ImagePosterior, truth: Tensor, floor: float = FLOOR) -> float:
    """Return the mean over ten bins of |root mean squared error − predicted deviation|."""
    found = calibration([posterior], [truth], floor=floor)
    return float(np.abs(found.predicted - found.actual).mean())


def _error(posterior: ImagePosterior, truth: Tensor) -> Tensor:
    if tuple(truth.shape) != tuple(posterior.shape):
        raise ValueError(
            f"`truth` must have the shape {posterior.shape} of the image, got {tuple(truth.shape)}"
        )
    return truth.flatten().double() - posterior.mean
