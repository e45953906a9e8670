"""Images as bytes: the layout networks take, their scaling, other sizes and colours, block puzzles.

`N` images, `C` channels: 1 (grey) or 3 (red, green, blue).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.rng import generator
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.shifts.filters import LUMA
from polymode.tasks.splits import FIXED

CHUNK = 1024  # images at a time
SIDE = 4  # blocks along a side of a jigsaw


def channels_first(images: np.ndarray, rows: Tensor | None = None) -> Tensor:
    """Return (N, C, H, W) uint8 of images (N, H, W) or (N, H, W, C), of these rows or of all."""
    source = torch.from_numpy(images if images.ndim == 4 else images[..., None])
    rows = torch.arange(len(source)) if rows is None else rows
    out = torch.empty((len(rows), source.shape[3], *source.shape[1:3]), dtype=torch.uint8)
    for start in range(0, len(rows), CHUNK):
        out[start : start + CHUNK] = source[rows[start : start + CHUNK]].movedim(3, 1)
    return out


def channel_scaling(pixels: Tensor) -> Scaling:
    """Return mean and standard deviation a channel of pixels / 255, for training images as bytes.

    From how often each of the 256 values occurs: exact, and without a copy in floating point. A
    constant channel gets scale 1.
    """
    counts = torch.zeros(pixels.shape[1], 256, dtype=torch.int64)
    for some in pixels.split(CHUNK):
        for count, channel in zip(counts, some.unbind(1), strict=True):
            count += torch.bincount(channel.flatten(), minlength=256)
    values = torch.arange(256, dtype=torch.float64) / 255
    shares = counts / counts.sum(1, keepdim=True, dtype=torch.float64)
    mean = shares @ values
    std = (shares * (values - mean[:, None]).square()).sum(1).sqrt()
    std = torch.where((counts > 0).sum(1) == 1, 1.0, std)
    return Scaling(mean.float().view(-1, 1, 1), std.float().view(-1, 1, 1))


def to_unit(pixels: Tensor) -> Tensor:
    """Return bytes as floating-point values in [0, 1]."""
    return pixels.to(torch.get_default_dtype()) / 255


def to_bytes(images: Tensor) -> Tensor:
    """Return values in [0, 1] as bytes, to the nearest."""
    return (images * 255).round_().clamp_(0, 255).to(torch.uint8)


def fitted(pixels: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return images (N, C', H', W') as bytes in another shape (C, H, W).

    Colour becomes grey by the luma 0.299 R + 0.587 G + 0.114 B, grey becomes colour by three equal
    channels. Then the whole image is resized, bilinear and with a low-pass filter where it shrinks
    (no cropping, no padding: a change of the ratio of its sides stretches it).
    """
    channels, height, width = shape
    if pixels.shape[1:] == shape:
        return pixels
    return torch.cat([_fitted(some, channels, (height, width)) for some in pixels.split(CHUNK)])


def _fitted(pixels: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    if pixels.shape[2:] == size and channels == 3:
        return pixels.expand(-1, 3, -1, -1).contiguous()
    images = pixels.float() / 255
    if pixels.shape[1] == 3 and channels == 1:
        images = torch.einsum("nchw,c->nhw", images, torch.tensor(LUMA))[:, None]
    if images.shape[2:] != size:
        images = F.interpolate(images, size, mode="bilinear", antialias=True)
    return to_bytes(images).expand(-1, channels, -1, -1).contiguous()


def jigsaw(pixels: Tensor, name: str) -> Tensor:
    """Return images whose 4 x 4 blocks are in another order, one drawn for each image.

    The blocks themselves, and so all that is local, stay as they are. The orders are the same for
    every seed. Sides must be multiples of 4.
    """
    num, channels, height, width = pixels.shape
    if height % SIDE or width % SIDE:
        raise ValueError(
            f"OOD set 'jigsaw' of {name} needs sides that are multiples of {SIDE}, got"
            f" {height} x {width} pixels; choose another `size`"
        )
    stream = generator(FIXED, name, "jigsaw")
    orders = torch.rand(num, SIDE * SIDE, generator=stream).argsort(1)
    blocks = pixels.view(num, channels, SIDE, height // SIDE, SIDE, width // SIDE)
    blocks = blocks.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    mixed = blocks[torch.arange(num)[:, None], orders].unflatten(1, (SIDE, SIDE))
    return mixed.permute(0, 3, 1, 4, 2, 5).reshape(pixels.shape)
