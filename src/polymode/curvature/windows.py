"""Windows of a convolution: what its weights multiply at each position of the output."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Geometry(NamedTuple):
    """How a convolution moves over its input, one number per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Geometry:
        """Return the geometry of the arguments of a `torch.conv*` function."""
        kernel = tuple(weight.shape[2:])
        number = len(kernel)
        dilations = _each(dilation, number)
        if padding == "same":  # as torch: the odd one goes to the end
            whole = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
            sides = tuple((total // 2, total - total // 2) for total in whole)
        elif padding == "valid":
            sides = ((0, 0),) * number
        else:
            sides = tuple((p, p) for p in _each(padding, number))
        return cls(kernel, _each(stride, number), sides, dilations, groups)


def _each(value: Any, number: int) -> tuple[int, ...]:
    values = (value,) * number if isinstance(value, int) else tuple(value)
    return values * number if len(values) == 1 else values


def windows(images: Tensor, geometry: Geometry) -> Tensor:
    """Return (..., C, *spatial) as (..., groups, T, C / groups * kernel), T positions."""
    lead, number = images.shape[: -1 - len(geometry.kernel)], len(geometry.kernel)
    x = images.flatten(0, len(lead) - 1) if len(lead) > 1 else images
    if number == 2 and all(a == b for a, b in geometry.padding):
        pads = tuple(a for a, _ in geometry.padding)
        columns = F.unfold(x, geometry.kernel, geometry.dilation, pads, geometry.stride)
    else:
        sides = [side for pair in reversed(geometry.padding) for side in pair]
        x = F.pad(x, sides)
        for axis, (k, s, d) in enumerate(
            zip(geometry.kernel, geometry.stride, geometry.dilation, strict=True)
        ):
            x = x.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
        # (N, C, *positions, *kernel) -> (N, C kernel, T)
        axes = (0, 1, *range(2 + number, 2 + 2 * number), *range(2, 2 + number))
        x = x.permute(axes)
        columns = x.reshape(x.shape[0], x.shape[1] * _product(geometry.kernel), -1)
    grouped = columns.unflatten(1, (geometry.groups, -1)).mT  # (N, G, T, I)
    return grouped.unflatten(0, lead)


def _product(numbers: tuple[int, ...]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
