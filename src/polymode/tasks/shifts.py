"""Shifts of images with severities 1 to 5, as batched torch code.

Images are (N, C, H, W) with values in [0, 1], before normalisation, and stay in that range, shape
and type. Severity 1 is mild; 5 makes a usual network of the task fail often. The noise levels are
chosen for small grey images, where neighbouring pixels say little about each other. `N` examples,
`C` channels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.rng import generator

SEVERITIES = (1, 2, 3, 4, 5)
NOISE_STD = (0.1, 0.2, 0.3, 0.45, 0.6)
DEGREES = (12.0, 24.0, 36.0, 48.0, 60.0)


def gaussian_noise(images: Tensor, severity: int, *, seed: int) -> Tensor:
    """Return clip(x + s z, 0, 1) with z standard normal a pixel, s = 0.1, 0.2, 0.3, 0.45, 0.6."""
    stream = generator(seed, "gaussian_noise", severity)
    noise = torch.randn(images.shape, generator=stream, dtype=images.dtype)
    return (images + NOISE_STD[severity - 1] * noise).clamp(0, 1)


def rotation(images: Tensor, severity: int) -> Tensor:
    """Return the images turned counter-clockwise by 12, 24, 36, 48, 60 degrees about their middle.

    Bilinear interpolation; what comes in from outside the image is 0.
    """
    angle = math.radians(DEGREES[severity - 1])
    cos, sin = math.cos(angle), math.sin(angle)
    # affine_grid takes each output position to the input position it is read from. The first axis
    # points right, the second down, and both sides are scaled to [-1, 1], hence their ratio.
    ratio = images.shape[-2] / images.shape[-1]
    turn = torch.tensor([[cos, -sin * ratio, 0.0], [sin / ratio, cos, 0.0]], dtype=images.dtype)
    grid = F.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).clamp(0, 1)
