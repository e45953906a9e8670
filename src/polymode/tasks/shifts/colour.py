"""Luma and chroma of images (n, C, H, W) by ITU-R BT.601, as JPEG files use them (JFIF)."""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # of red, green, blue


def luma(images: Tensor) -> Tensor:
    """Return the brightness (n, 1, H, W) that the eye sees; grey images are their own."""
    if images.shape[1] == 1:
        return images
    return torch.einsum("nchw,c->nhw", images, images.new_tensor(LUMA))[:, None]


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
