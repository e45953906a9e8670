"""Gradients of a convolution by its input and by its weights, as quick as torch has them.

Shapes: images (B, C, H, W), in either format.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.methods.particles.pooling import Blocks, blank, is_channels_last

ConvGeometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]
# stride, padding, dilation, groups

FEW = 2  # input channels up to which a turned convolution is quicker than torch's own
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
    if _is_padded(grad, shape, geometry):
        grad, weight = plain(grad), plain(weight)
    x = blank(grad, shape, like=grad)
    return _conv_backward(grad, x, weight, geometry, [True, False, False])[0]


def weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: ConvGeometry) -> Tensor:
    """Return the gradient by weights of the shape and format of `weight`."""
    return _conv_backward(grad, x, weight, geometry, [False, True, False])[1]


def conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: ConvGeometry, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients by input, weight and bias, those that the mask asks for."""
    apart = mask[0] and _is_padded(grad, x.shape, geometry)
    found = _conv_backward(grad, x, weight, geometry, [mask[0] and not apart, *mask[1:]])
    if apart:
        found[0] = as_formatted(input_gradient(grad, weight, x.shape, geometry), grad)
    by_input, by_weight, by_bias = (
        g if wanted else None for g, wanted in zip(found, mask, strict=True)
    )
    return by_input, by_weight, by_bias


def _conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: ConvGeometry, mask: list[bool]
) -> list[Tensor]:
    stride, padding, dilation, groups = geometry
    found = torch.ops.aten.convolution_backward(
        grad, x, weight, [weight.shape[0]], stride, padding, dilation, False, (0, 0), groups, mask
    )
    return list(found)


def suits_blocks(weight: Tensor, geometry: ConvGeometry) -> bool:
    """Whether max-pooling by 2 after this convolution is quicker from its blocks: with fewer
    channels than a processor computes at a time."""
    stride, _, dilation, groups = geometry
    return len(weight) < 8 and (stride, dilation, groups) == ((1, 1), (1, 1), 1)


def conv_blocks(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> Blocks:
    """Return the convolution by windows of 2x2 pixels: the pixels of a window stand for channels,
    as in `_turned`."""
    (high, wide), padding = weight.shape[2:], geometry[1]
    places = [(left, 1 - left, top, 1 - top) for top in (0, 1) for left in (0, 1)]
    kernels = torch.cat([F.pad(weight, place) for place in places])
    biases = None if bias is None else bias.repeat(4)
    sides = (x.shape[2] + 2 * padding[0] - high + 1, x.shape[3] + 2 * padding[1] - wide + 1)
    values = F.conv2d(plain(x), plain(kernels), biases, 2, padding)
    return Blocks(values, sides, channels_last=x.stride(1) == 1)


def _is_padded(grad: Tensor, shape: torch.Size, geometry: ConvGeometry) -> bool:
    """Whether the gradient by the input is quicker channel by channel.

    Pixel by pixel it is computed as a convolution of the padded gradient, in which a kernel that
    makes small images much smaller multiplies zeros for the most part; with as few channels as
    these, the change of format costs less.
    """
    pixels, left = shape[2] * shape[3], grad.shape[2] * grad.shape[3]
    return geometry[0] == (1, 1) and shape[1] < 8 and 3 * left < 2 * pixels


def as_formatted(x: Tensor, like: Tensor) -> Tensor:
    """Return images, or kernels, in the format of `like`."""
    return _channels_last(x) if is_channels_last(like) else plain(x)


def plain(x: Tensor) -> Tensor:
    """Return images, or kernels, channel by channel in memory.

    With one channel memory is the same in both formats, but torch goes by strides.
    """
    return x.contiguous().flatten().view(x.shape)


def _channels_last(x: Tensor) -> Tensor:
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
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
    simple = (stride, dilation, groups) == ((1, 1), (1, 1), 1)
    if not simple or channels > FEW or padding[0] >= high or padding[1] >= wide:
        return None
    side = 1 if shape[2] % _BLOCK or shape[3] % _BLOCK else _BLOCK
    turned = F.pad(weight.flip(2, 3).transpose(0, 1), (side - 1,) * 4)
    windows = turned.unfold(2, high + side - 1, 1).unfold(3, wide + side - 1, 1)
    kernels = windows.flip(2, 3).permute(0, 2, 3, 1, 4, 5)
    margins = high - 1 - padding[0], wide - 1 - padding[1]
    out = F.conv2d(plain(grad), plain(kernels.flatten(0, 2)), None, side, margins)
    return F.pixel_shuffle(out, side)


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers for both sides."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])
