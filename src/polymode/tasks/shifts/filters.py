"""Filters of image batches that shifts are made of. `n` images, `C` channels; lengths in pixels.

Where an operation is linear and acts on rows and columns apart (Gaussian blur, zoom, pixelation),
it is a pair of matrices, (H, H) and (W, W), and all images pass through two matrix products. Beyond
its edge an image goes on with the value at the edge.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

REFERENCE_SIDE = 32
LUMA = (0.299, 0.587, 0.114)  # of red, green, blue, ITU-R BT.601


def luma(images: Tensor) -> Tensor:
    """Return the brightness (n, 1, H, W) that the eye sees; grey images are their own."""
    if images.shape[1] == 1:
        return images
    return torch.einsum("nchw,c->nhw", images, images.new_tensor(LUMA))[:, None]


def length_scale(images: Tensor) -> float:
    """Return the factor of lengths that are given for 32x32 images: shorter side / 32, at least 1.

    They are a pixel or two there, and less than a pixel would do nothing to a smaller image.
    """
    return max(min(images.shape[-2:]) / REFERENCE_SIDE, 1.0)


def apply_separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows @ image @ columns^T for every image and channel."""
    return rows @ (images @ columns.T)


def gaussian_filter(images: Tensor, sigma: float, *, periodic: bool = False) -> Tensor:
    """Return images under a Gaussian of standard deviation `sigma`, cut at 4 sigma.

    A periodic image goes on beyond its edge from the opposite one; so noise that is filtered has
    the same variance everywhere.
    """
    height, width = images.shape[-2:]
    rows = _gaussian_matrix(height, sigma, periodic, images)
    columns = rows if width == height else _gaussian_matrix(width, sigma, periodic, images)
    return apply_separable(images, rows, columns)


def _gaussian_matrix(side: int, sigma: float, periodic: bool, like: Tensor) -> Tensor:
    """Return the (side, side) matrix of the filter."""
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    places = torch.arange(side)[:, None] + offsets.long()
    matrix = torch.zeros(side, side, dtype=torch.float64)
    places = places % side if periodic else places.clamp(0, side - 1)
    matrix.scatter_add_(1, places, (weights / weights.sum()).expand(side, -1))
    return matrix.to(like)


def filter_all(images: Tensor, kernel: Tensor) -> Tensor:
    """Return images under one kernel (K, K), K odd; for kernels that are not separable."""
    n, channels, height, width = images.shape
    radius = len(kernel) // 2
    padded = F.pad(images, (radius, radius, radius, radius), mode="replicate")
    # every channel of every image a group of its own: the fastest of torch's convolutions here
    stacked = padded.view(1, n * channels, *padded.shape[-2:])
    weight = kernel.to(images).expand(n * channels, 1, -1, -1)
    return F.conv2d(stacked, weight, groups=n * channels).view_as(images)


def directional_filter(images: Tensor, angles: Tensor, sigma: float) -> Tensor:
    """Return images smeared to one side: each pixel is a weighted mean along a ray.

    out(p) = sum_i w_i image(p + i d), i = 0, 1, ... up to 3 sigma, with d = (cos, sin) of the
    image's angle and w_i proportional to exp(-i^2 / (2 sigma^2)); bilinear between pixels.

    Args:
        images: (n, C, H, W). angles: (n,) in radians, 0 to the right, positive downwards.
        sigma: length.
    """
    taps = torch.arange(math.ceil(3 * sigma) + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (taps / sigma) ** 2)
    weights /= weights.sum()
    across, down = angles.cos()[:, None, None], angles.sin()[:, None, None]
    out = images * float(weights[0])
    for tap, weight in enumerate(weights[1:].tolist(), 1):
        out.add_(displace(images, tap * across, tap * down, outside="border"), alpha=weight)
    return out


def displace(images: Tensor, across: Tensor, down: Tensor, *, outside: str) -> Tensor:
    """Return out(row, column) = image(row + down, column + across), bilinear.

    Args:
        across, down: pixels, broadcast to (n, H, W).
        outside: what lies beyond the edge: "zeros", "border" (the edge's value) or "reflection".
    """
    n, _, height, width = images.shape
    rows = torch.arange(height, dtype=images.dtype, device=images.device)[:, None]
    columns = torch.arange(width, dtype=images.dtype, device=images.device)
    grid = images.new_empty(n, height, width, 2)
    grid[..., 0] = (columns + across) * (2 / width) + (1 / width - 1)
    grid[..., 1] = (rows + down) * (2 / height) + (1 / height - 1)
    return F.grid_sample(images, grid, padding_mode=outside, align_corners=False)
