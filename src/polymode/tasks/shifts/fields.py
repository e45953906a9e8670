"""Random fields that weather is made of: smooth blobs, fractal clouds, ice ferns. `n` images.

Each takes the images (n, C, H, W) whose size it is to have, and the block's draws, and returns
(n, 1, H, W).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.tasks.shifts.draws import Draws
from polymode.tasks.shifts.filters import gaussian_filter

FERNS, STRIPS = 7, 40


def blobs(images: Tensor, size: float, draws: Draws) -> Tensor:
    """Return smooth periodic fields, of mean 0 and variance 1 in every image; `size` in pixels."""
    field = gaussian_filter(draws.normal(1, *images.shape[-2:]), size, periodic=True)
    mean, std = field.mean((2, 3), keepdim=True), field.std((2, 3), keepdim=True)
    return (field - mean) / std


def plasma(images: Tensor, decay: float, draws: Draws) -> Tensor:
    """Return fractal landscapes in [0, 1] by the diamond-square algorithm.

    From level to level the grid is halved and the random part divided by decay^2. A landscape is
    periodic, its side the next power of 2, and is cut to the image.
    """
    height, width = images.shape[-2:]
    side = 2 ** math.ceil(math.log2(max(height, width)))
    field = images.new_zeros(len(images), side, side)
    step, size = side, 1.0
    while step > 1:
        half, many = step // 2, side // step
        rough = draws.uniform(-size, size, 3, many, many)
        corners = field[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centres = (pairs + pairs.roll(-1, 2)) / 4 + rough[:, 0]
        above = corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)
        beside = pairs + centres + centres.roll(1, 2)
        field[:, half::step, half::step] = centres
        field[:, ::step, half::step] = above / 4 + rough[:, 1]
        field[:, half::step, ::step] = beside / 4 + rough[:, 2]
        step, size = half, size / decay**2
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low))[:, None, :height, :width]


def ferns(images: Tensor, draws: Draws) -> Tensor:
    """Return ice on a window in [0, 1], of mean 0.4 or so.

    Some spots divide the picture among them by distance. From each runs a rib in a direction of its
    own, and from the rib run barbs: random strips along the lines u + |v| = const, with u along the
    rib and v across. Ferns are thick where a fractal field is high.
    """
    along, off = _ribs(images, draws)
    strips = draws.uniform(0, 1, 1, 4, STRIPS)
    # grid_sample takes the strips to lie on [-1, 1]; beyond, they repeat mirrored
    grid = torch.stack([along + off, 3 * off - 1], dim=-1)
    barbs = F.grid_sample(strips, grid, padding_mode="reflection", align_corners=False)
    rib = (1 - 30 * off[:, None]).clamp(min=0)
    haze = plasma(images, 1.6, draws)
    ice = 1.5 * torch.maximum(barbs, rib) * (0.2 + 0.8 * haze) + 0.3 * haze - 0.2
    return ice.clamp(0, 1)


def _ribs(images: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Return the places (n, H, W) along and off the nearest spot's rib, in sides of the image."""
    height, width = images.shape[-2:]
    side = min(height, width)
    rows = torch.arange(height, dtype=images.dtype, device=images.device)[:, None] / side
    columns = torch.arange(width, dtype=images.dtype, device=images.device) / side
    spots = draws.uniform(0, 1, FERNS, 3, 1, 1)
    nearest = images.new_full((), math.inf)
    along = off = images.new_zeros(())
    for y, x, turn in (spot.unbind(1) for spot in spots.unbind(1)):
        down, across = rows - y * (height / side), columns - x * (width / side)
        cos, sin = (2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()
        distance = down**2 + across**2
        closer = distance < nearest
        nearest = torch.where(closer, distance, nearest)
        along = torch.where(closer, across * cos + down * sin, along)
        off = torch.where(closer, (down * cos - across * sin).abs(), off)
    return along, off
