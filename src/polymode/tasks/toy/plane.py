"""Points in the plane: what the classifications of two inputs share. `N` examples."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

Real = float | Tensor


def annulus(inner: Real, outer: Real, num: int, stream: Generator) -> Tensor:
    """Return points (N, 2) around the origin at distances `inner` to `outer`, uniform by area.

    Both radii may be tensors (N,), one of them for each point.
    """
    place, angle = torch.rand(2, num, generator=stream)
    radius = (inner**2 + (outer**2 - inner**2) * place).sqrt()
    angle = 2 * math.pi * angle
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
