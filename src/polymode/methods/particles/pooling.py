"""Max-pooling as a linear map: which value of each window is taken does not change.

Shapes: images (B, C, H, W), in either format; `h`, `w` windows.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

_aten = torch.ops.aten
Sizes = tuple[Any, ...]  # of windows: kernel, stride, padding, dilation, rounding up


class Windows(NamedTuple):
    """Where the largest value of each window is."""

    indices: Tensor  # (B, C, h, w), within an image of H·W pixels
    shape: torch.Size  # of the images
    sizes: Sizes

    def first(self, rows: int) -> Windows:
        """Return those of the first images, in as few bytes as they need."""
        pixels = self.shape[2] * self.shape[3]
        least = torch.int16 if pixels < 2**15 else torch.int32
        shape = torch.Size((rows, *self.shape[1:]))
        return Windows(self.indices[:rows].to(least), shape, self.sizes)

    def spread(self, grad: Tensor) -> Tensor:
        """Return each window's gradient (B, C, h, w) at its place in an image of zeros."""
        indices = self.indices.long()
        if indices.is_contiguous():
            grad = grad.contiguous()  # in mixed formats this takes ten times as long
        x = blank(grad, self.shape, like=indices)
        return _aten.max_pool2d_with_indices_backward(grad, x, *self.sizes, indices)

    def take(self, images: Tensor) -> Tensor:
        """Return the values of the images at these places, (B, C, h, w)."""
        indices = self.indices.long()
        flat, places = images.flatten(2), indices.flatten(2)
        if is_channels_last(indices):
            taken = flat.mT.gather(1, places.mT).mT
        else:
            taken = flat.gather(2, places)
        return taken.unflatten(2, indices.shape[2:])


def max_pool(x: Tensor, sizes: Sizes) -> tuple[Tensor, Windows]:
    """Return the largest value of each window, and where it is."""
    out, indices = _aten.max_pool2d_with_indices(x, *sizes)
    return out, Windows(indices, x.shape, sizes)


class Blocks(NamedTuple):
    """Images by windows of 2x2 pixels: the first of all windows, the second, ..."""

    values: Tensor  # (B, 4 C, h, w)
    sides: tuple[int, int]  # H, W of the images
    channels_last: bool  # format of what comes out of max-pooling


def pool_blocks(blocks: Blocks, sizes: Sizes) -> tuple[Tensor, Windows]:
    """Return `max_pool` by 2: arithmetic of numbers that lie side by side, indices included."""
    sides = blocks.sides
    a, b, c, d = blocks.values.unflatten(1, (4, -1)).unbind(1)
    above, below = torch.maximum(a, b), torch.maximum(c, d)
    number = partial(torch.empty, a.shape, dtype=torch.float32, device=a.device)
    low = torch.gt(below, above, out=number())  # of equal values the first counts
    right = torch.gt(b, a, out=number()).lerp_(torch.gt(d, c, out=number()), low)
    rows = torch.arange(a.shape[2], device=a.device).mul_(2 * sides[1]).unsqueeze(1)
    corners = (rows + torch.arange(a.shape[3], device=a.device).mul_(2)).to(right.dtype)
    indices = right.add_(low, alpha=sides[1]).add_(corners).to(torch.int32)
    shape = torch.Size((*a.shape[:2], *sides))
    out = torch.maximum(above, below)
    if blocks.channels_last:
        out = out.contiguous(memory_format=torch.channels_last)
    return out, Windows(indices, shape, sizes)


def blank(grad: Tensor, shape: torch.Size, like: Tensor) -> Tensor:
    """Return a tensor without values, for operations that look at shape and format alone."""
    layout = torch.channels_last if is_channels_last(like) else torch.contiguous_format
    return torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=layout)


def is_channels_last(x: Tensor) -> bool:
    """Whether images lie pixel by pixel in memory, and could not lie so channel by channel."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
