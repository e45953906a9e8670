"""Digital faults: contrast, saturation, pixelation, JPEG. The elastic transform is in geometry.py.

Constants are those of CIFAR-10-C (Hendrycks & Dietterich 2019) unless a function says otherwise.

JPEG is quantised cosine transforms of 8x8 blocks, with coarser colour: the lossy steps of baseline
JPEG (ITU-T T.81) as image programs usually set them: luma and chroma by ITU-R BT.601 (JFIF), chroma
at half the resolution (4:2:0), the tables of T.81 Annex K scaled by the quality as the Independent
JPEG Group's library does. The entropy coding, which loses nothing, is left out. `n` images, `C`
channels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.tasks.shifts.filters import LUMA, apply_separable, length_scale, luma
from polymode.tasks.shifts.shift import Draws, shift

LUMA_TABLE = (
    16, 11, 10, 16, 24, 40, 51, 61,
    12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77,
    24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip
CHROMA_TABLE = (
    17, 18, 24, 47, 99, 99, 99, 99,
    18, 21, 26, 66, 99, 99, 99, 99,
    24, 26, 56, 99, 99, 99, 99, 99,
    47, 66, 99, 99, 99, 99, 99, 99,
    *(99,) * 32,
)  # fmt: skip
MIDDLE = 128 / 255  # of luma, which is coded about 0


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


@shift(
    "jpeg",
    group="digital",
    colour=(80, 65, 58, 50, 40),
    grey=(25, 15, 10, 6, 3),
    random=False,
)
def jpeg(images: Tensor, quality: int, draws: Draws) -> Tensor:
    """Return images as a JPEG file of the given quality (1 to 100) would show them."""
    if images.shape[1] == 1:
        return _compress(images - MIDDLE, LUMA_TABLE, quality) + MIDDLE
    y, chroma = to_ycbcr(images)
    y = _compress(y - MIDDLE, LUMA_TABLE, quality) + MIDDLE
    chroma = _compress(F.avg_pool2d(_pad(chroma, 2), 2), CHROMA_TABLE, quality)
    chroma = F.interpolate(chroma, scale_factor=2, mode="bilinear")
    return from_ycbcr(y, chroma[..., : images.shape[2], : images.shape[3]])


def _pad(images: Tensor, multiple: int) -> Tensor:
    """Return images whose sides are multiples of a number; the last row and column are repeated."""
    height, width = images.shape[-2:]
    return F.pad(images, (0, -width % multiple, 0, -height % multiple), mode="replicate")


def _compress(planes: Tensor, table: tuple[int, ...], quality: int) -> Tensor:
    """Return planes (n, C, H, W) about 0 whose 8x8 blocks have rounded cosine coefficients."""
    full = _pad(planes, 8)
    n, channels, height, width = full.shape
    basis, steps = _basis().to(planes), _steps(table, quality).to(planes)
    blocks = full.view(n, channels, height // 8, 8, width // 8, 8).transpose(3, 4)
    coefficients = blocks.reshape(-1, 64) @ basis.T
    rounded = (coefficients / steps).round_() * steps
    blocks = (rounded @ basis).view(n, channels, height // 8, width // 8, 8, 8)
    return blocks.transpose(3, 4).reshape(full.shape)[..., : planes.shape[2], : planes.shape[3]]


def _basis() -> Tensor:
    """Return the orthonormal cosine transform (64, 64) of an 8x8 block, row by row."""
    k, x = torch.arange(8, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    line = torch.cos((2 * x + 1) * k * math.pi / 16) / 2
    line[0] /= math.sqrt(2)
    return torch.kron(line, line)


def _steps(table: tuple[int, ...], quality: int) -> Tensor:
    """Return the steps (64,) of the coefficients at a quality, for values in [0, 1]."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = (torch.tensor(table) * percent + 50) // 100
    return steps.clamp(1, 255) / 255


def to_ycbcr(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return luma (n, 1, H, W) in [0, 1] and the chroma (n, 2, H, W) in [-1/2, 1/2].

    Cb = (blue - Y) / 1.772 and Cr = (red - Y) / 1.402.
    """
    y = luma(images)
    blue, red = (images[:, 2:] - y) / 1.772, (images[:, :1] - y) / 1.402
    return y, torch.cat([blue, red], dim=1)


def from_ycbcr(y: Tensor, chroma: Tensor) -> Tensor:
    """Return red, green, blue (n, 3, H, W) of what `to_ycbcr` gives."""
    blue, red = y + 1.772 * chroma[:, :1], y + 1.402 * chroma[:, 1:]
    green = (y - LUMA[0] * red - LUMA[2] * blue) / LUMA[1]
    return torch.cat([red, green, blue], dim=1)
