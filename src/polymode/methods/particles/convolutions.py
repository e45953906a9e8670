"""Gradients of a convolution by its input and by its weights, as quick as torch has them.

Shapes: images (B, C, H, W), in either format.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.methods.particles.pooling import blank, is_channels_last

ConvGeometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]
# stride, padding, dilation, groups

_FEW = 2  # input channels up to which a turned convolution is quicker than torch's own
_BLOCK = 4  # it gives blocks of so many pixels squared, where the image divides into them


def geometry_of(conv: nn.Conv2d) -> ConvGeometry | None:
    """Return stride, padding, dilation and groups, or None where the padding is no zeros."""
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return None
    return pair(conv.stride), pair(conv.padding), pair(conv.dilation), conv.groups


def input_gradient(
    grad: Tensor, weight: Tensor, shape: torch.Size, geometry: ConvGeometry
) -> Tensor:
    """Return convᵀ(g, w), the gradient by an input of this shape."""
    turned = _turned(grad, weight, shape, geometry)
    if turned is not None:
        return turned
    x = blank(grad, shape, like=grad)
    by_input = conv_backward(grad, x, weight, geometry, [True, False, False])[0]
    assert by_input is not None
    return by_input


def weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """Return the gradient by weights of the shape and format of `weight`."""
    by_weight = conv_backward(grad, x, weight, geometry, [False, True, False])[1]
    assert by_weight is not None
    return by_weight


def conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: ConvGeometry, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients by input, weight and bias, those that the mask asks for."""
    stride, padding, dilation, groups = geometry
    found = torch.ops.aten.convolution_backward(
        grad, x, weight, [weight.shape[0]], stride, padding, dilation, False, (0, 0), groups, mask
    )
    by_input, by_weight, by_bias = (
        g if wanted else None for g, wanted in zip(found, mask, strict=True)
    )
    return by_input, by_weight, by_bias


def as_formatted(x: Tensor, like: Tensor) -> Tensor:
    """Return grey images with the strides of `like`'s format: torch goes by these and not by what
    lies in memory, which is the same."""
    if x.shape[1] > 1 or not is_channels_last(like):
        return x
    return x.contiguous().as_strided(x.shape, (x[0].numel(), 1, x.shape[3], 1))


def _turned(
    grad: Tensor, weight: Tensor, shape: torch.Size, geometry: ConvGeometry
) -> Tensor | None:
    """Return convᵀ(g, w) as a convolution with the turned kernel, or None where that is slower.

    Convolutions on a processor compute 8 or 16 channels at a time, so the pixels of a block stand
    for channels: one kernel for each place within it.
    """
    stride, padding, dilation, groups = geometry
    (high, wide), channels = weight.shape[2:], shape[1]
    plain = (stride, dilation, groups) == ((1, 1), (1, 1), 1)
    if not plain or channels > _FEW or padding[0] >= high or padding[1] >= wide:
        return None
    side = 1 if shape[2] % _BLOCK or shape[3] % _BLOCK else _BLOCK
    turned = F.pad(weight.flip(2, 3).transpose(0, 1), (side - 1,) * 4)
    windows = turned.unfold(2, high + side - 1, 1).unfold(3, wide + side - 1, 1)
    kernels = windows.flip(2, 3).permute(0, 2, 3, 1, 4, 5)
    margins = high - 1 - padding[0], wide - 1 - padding[1]
    out = F.conv2d(grad.contiguous(), kernels.flatten(0, 2), None, side, margins)
    return F.pixel_shuffle(out, side)


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers for both sides."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])
