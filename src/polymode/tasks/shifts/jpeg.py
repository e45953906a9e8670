"""JPEG-like compression: quantised cosine transforms of 8x8 blocks, with coarser colour.

The lossy steps of baseline JPEG (ITU-T T.81) as image programs usually set them: luma and chroma
(JFIF), chroma at half the resolution (4:2:0), the tables of T.81 Annex K scaled by the quality as
the Independent JPEG Group's library does. The entropy coding, which loses nothing, is left out.
`n` images, `C` channels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.tasks.shifts.colour import from_ycbcr, to_ycbcr
from polymode.tasks.shifts.draws import Draws
from polymode.tasks.shifts.registry import shift

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
