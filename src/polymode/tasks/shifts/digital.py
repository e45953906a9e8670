"""Digital faults: contrast, saturation, pixelation. JPEG is in jpeg.py, elastic in geometry.py.

Constants for colour are those of CIFAR-10-C (Hendrycks & Dietterich 2019) unless a function says
otherwise. `n` images, `C` channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.tasks.shifts.draws import Draws
from polymode.tasks.shifts.filters import apply_separable, length_scale
from polymode.tasks.shifts.registry import shift


@shift(
    "contrast",
    group="digital",
    colour=(0.75, 0.5, 0.4, 0.3, 0.15),
    random=False,
)
def contrast(images: Tensor, factor: float, draws: Draws) -> Tensor:
    """Return m + factor (x - m) with m the mean of the image's channel."""
    mean = images.mean((2, 3), keepdim=True)
    return torch.lerp(mean, images, factor)


@shift(
    "saturate",
    group="digital",
    colour=((1.5, 0.0), (0.3, 0.0), (0.1, 0.0), (2.0, 0.1), (2.5, 0.2)),
    grey=(1.5, 2.0, 3.0, 5.0, 10.0),
    random=False,
)
def saturate(images: Tensor, change: tuple[float, float] | float, draws: Draws) -> Tensor:
    """Return colour images with saturation min(a s + b, 1), grey ones as min(gain x, 1).

    Saturation is s = (v - lowest channel) / v with v the largest channel; v and hue stay.
    """
    if isinstance(change, float):
        return images * change
    factor, offset = change
    value = images.amax(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    saturation = chroma / value.clamp_min(1e-12)
    target = (factor * saturation + offset).clamp(max=1)
    ratio = torch.where(chroma > 0, target / saturation.clamp_min(1e-12), 1.0)
    return value - (value - images) * ratio


@shift(
    "pixelate",
    group="digital",
    colour=(1.25, 1.5, 2.0, 2.5, 3.0),
    random=False,
)
def pixelate(images: Tensor, cell: float, draws: Draws) -> Tensor:
    """Return images of cells, each the mean of what lies in it.

    `cell` is the side of a cell for 32x32 images; what exceeds 1 pixel grows with the side. Our own
    constants: the published cells, of 1.05 to 1.5 pixels, begin with three that hardly differ.
    """
    cell = 1 + (cell - 1) * length_scale(images)
    rows, columns = (_cell_matrix(side, cell, images) for side in images.shape[-2:])
    return apply_separable(images, rows, columns)


def _cell_matrix(side: int, cell: float, like: Tensor) -> Tensor:
    """Return the (side, side) matrix that gives each pixel the mean over the cell of its middle."""
    pixels = torch.arange(side, dtype=torch.float64)
    first = side / 2 - cell * round(side / 2 / cell)  # cells lie symmetrically about the middle
    start = first + cell * ((pixels + 0.5 - first) / cell).floor()
    left, right = start.clamp(min=0)[:, None], (start + cell).clamp(max=side)[:, None]
    overlap = torch.minimum(right, pixels + 1) - torch.maximum(left, pixels)
    weights = overlap.clamp(min=0)
    return (weights / weights.sum(1, keepdim=True)).to(like)
