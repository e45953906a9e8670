"""Digital faults: contrast, saturation, pixelation. JPEG is in jpeg.py, elastic in geometry.py.

Constants are those of CIFAR-10-C (Hendrycks & Dietterich 2019) unless a function says otherwise.
`n` images, `C` channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.tasks.shifts.draws import Draws
from polymode.tasks.shifts.filters import apply_separable, length_scale
from polymode.tasks.shifts.registry import shift


@shift("contrast", group="digital", colour=(0.75, 0.5, 0.4, 0.3, 0.15), random=False)
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

    Saturation is s = (v - lowest channel) / v with v the largest channel; v and hue stay, and grey
    stays grey. The five published changes (a, b), in the order of their distance to the clean
    image; published is (0.3, 0), (0.1, 0), (1.5, 0), ... An image of one channel has no colour: it
    is exposed by a gain, and bright parts saturate.
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


@shift("pixelate", group="digital", colour=(7 / 8, 3 / 4, 1 / 2, 3 / 8, 1 / 4), random=False)
def pixelate(images: Tensor, share: float, draws: Draws) -> Tensor:
    """Return images of few large pixels, each the mean of what lies in it.

    `share` of the rows and columns of a 32x32 image are left. In larger images it is the excess of
    a large pixel over a small one, 1 / share - 1, that grows with the side. Our own constants: the
    published ones, 0.95, 0.9, 0.85, 0.75, 0.65, begin with three that hardly differ.
    """
    pixel = 1 + (1 / share - 1) * length_scale(images)
    rows, columns = (_block_matrix(side, round(side / pixel), images) for side in images.shape[-2:])
    return apply_separable(images, rows, columns)


def _block_matrix(side: int, num: int, like: Tensor) -> Tensor:
    """Return the (side, side) matrix that gives each place the mean of its part, one of `num`."""
    places = torch.arange(side, dtype=torch.float64)
    length = side / num
    start = ((places[:, None] + 0.5) / length).floor() * length
    overlap = torch.minimum(start + length, places + 1) - torch.maximum(start, places)
    return (overlap.clamp(min=0) / length).to(like)
