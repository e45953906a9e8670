"""Phantoms: images of ellipses, whose values at any resolution come from their formulas.

The Shepp-Logan head (L. Shepp, B. Logan, The Fourier reconstruction of a head section, IEEE
Transactions on Nuclear Science 21, 1974) in the contrast of P. Toft, The Radon transform, PhD
thesis, 1996, table B.1; and ellipses at random.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import Few, Seed, check_call
from polymode.core.rng import fold

SHEPP_LOGAN = (
    # value added, half-axes, centre (right, up), angle in degrees
    (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.8740, 0.0, -0.0184, 0.0),
    (-0.2, 0.1100, 0.3100, 0.22, 0.0, -18.0),
    (-0.2, 0.1600, 0.4100, -0.22, 0.0, 18.0),
    (0.1, 0.2100, 0.2500, 0.0, 0.35, 0.0),
    (0.1, 0.0460, 0.0460, 0.0, 0.1, 0.0),
    (0.1, 0.0460, 0.0460, 0.0, -0.1, 0.0),
    (0.1, 0.0460, 0.0230, -0.08, -0.605, 0.0),
    (0.1, 0.0230, 0.0230, 0.0, -0.606, 0.0),
    (0.1, 0.0230, 0.0460, 0.06, -0.605, 0.0),
)


def shepp_logan(side: Few, *, points: Few = 4) -> Tensor:
    """Return the head, (side, side) in [0, 1]; each pixel is the mean over points² places in it."""
    check_call(shepp_logan, locals())
    return _ellipses(SHEPP_LOGAN, side, points).clamp(0, 1)


def random_ellipses(side: Few, *, seed: Seed = 0, number: Few = 12, points: Few = 4) -> Tensor:
    """Return overlapping ellipses within a disc, (side, side) in [0, 1]."""
    check_call(random_ellipses, locals())
    draw = np.random.default_rng(fold(seed, "ellipses"))
    rows = [(0.5, 0.8, 0.85, 0.0, 0.0, float(draw.uniform(0, 180)))]
    for _ in range(number):
        radius, turn = 0.55 * math.sqrt(draw.uniform()), draw.uniform(0, 2 * math.pi)
        axes = draw.uniform(0.04, 0.25, 2)
        value, angle = draw.uniform(-0.3, 0.4), draw.uniform(0, 180)
        place = radius * math.cos(turn), radius * math.sin(turn)
        rows.append((float(value), float(axes[0]), float(axes[1]), *place, float(angle)))
    return _ellipses(rows, side, points).clamp(0, 1)


def _ellipses(rows: object, side: int, points: int) -> Tensor:
    if side < 1 or points < 1:
        raise ValueError(f"`side` and `points` of a phantom must be >= 1, got {side}, {points}")
    line = (2 * np.arange(side * points) + 1) / (side * points) - 1
    x, y = line[None, :], -line[:, None]
    image = np.zeros((side * points, side * points))
    for value, a, b, right, up, angle in np.asarray(rows, float):
        turn = math.radians(angle)
        along = (x - right) * math.cos(turn) + (y - up) * math.sin(turn)
        across = (y - up) * math.cos(turn) - (x - right) * math.sin(turn)
        image += value * ((along / a) ** 2 + (across / b) ** 2 <= 1)
    fine = image.reshape(side, points, side, points).mean((1, 3))
    return torch.from_numpy(fine).to(torch.get_default_dtype())
