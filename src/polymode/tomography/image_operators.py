"""Operators that see the image itself: some of its pixels, or all of them blurred.

Shapes: `N` images at once, `H`, `W` height and width, `m` observations.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.checks import Range, check_call
from polymode.tomography.operator import LinearOperator


def inpainting(mask: Tensor) -> LinearOperator:
    """Return the operator that keeps the pixels where `mask` (H, W) is True, row by row.

    >>> A = inpainting(torch.tensor([[True, False], [False, True]]))
    >>> A(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
    tensor([1., 4.])
    """
    check_call(inpainting, locals())
    mask = torch.as_tensor(mask)
    if mask.dim() != 2 or mask.dtype != torch.bool:
        raise ValueError(
            f"`mask` of inpainting must be a boolean tensor (H, W), got {mask.dtype}"
            f" {tuple(mask.shape)}; take mask > 0.5"
        )
    kept = mask.flatten().nonzero()[:, 0]
    if len(kept) == 0:
        raise ValueError("`mask` of inpainting keeps 0 pixels: there is nothing to learn from")

    def spread(rows: Tensor) -> Tensor:
        whole = rows.new_zeros(len(rows), mask.numel())
        whole[:, kept.to(rows.device)] = rows
        return whole

    shape = (mask.shape[0], mask.shape[1])
    return LinearOperator(
        shape, len(kept), lambda rows: rows[:, kept.to(rows.device)], spread, "inpainting"
    )


def blur(
    image_shape: tuple[int, int],
    width: Annotated[float, Range("of at most 10,000 pixels", lambda width: not width > 10_000)],
) -> LinearOperator:
    """Return the operator that blurs with a Gaussian of standard deviation `width` > 0, in pixels.

    The kernel ends at three standard deviations and sums to 1; outside of the image is 0.
    """
    check_call(blur, locals())
    if not (width > 0 and math.isfinite(width)):
        raise ValueError(f"`width` of blur must be > 0 pixels, got {width}")
    reach = max(1, math.ceil(3 * width))
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / width) ** 2)
    line = line / line.sum()
    shape = (int(image_shape[0]), int(image_shape[1]))
    smooth = partial(_smooth, line, shape)
    return LinearOperator(shape, math.prod(shape), smooth, smooth, "blur")  # it is symmetric


def _smooth(line: Tensor, shape: tuple[int, int], rows: Tensor) -> Tensor:
    kernel, reach = line.to(rows), len(line) // 2
    images = rows.unflatten(1, (1, *shape))
    images = F.conv2d(images, kernel[None, None, :, None], padding=(reach, 0))
    return F.conv2d(images, kernel[None, None, None, :], padding=(0, reach)).flatten(1)
