"""U-Net of the deep image prior: from an image to an image, over several scales.

Down: convolutions with stride 2; up: bilinear interpolation by 2, joined with what the finer scale
hands over through a 1x1 convolution (skip), then two 3x3 convolutions; a 1x1 convolution at the
end. LeakyReLU(0.2) throughout. Odd sides are rounded up on the way down and cut on the way up.

Sources: O. Ronneberger, P. Fischer, T. Brox, "U-Net: convolutional networks for biomedical image
segmentation", MICCAI 2015; in the form that J. Antorán, R. Barbano, J. Leuschner, J. M.
Hernández-Lobato, B. Jin, "Uncertainty estimation for computed tomography with a linearised deep
image prior", TMLR 2023, use, as in their public code (bayes_dip). That code limits what goes into
the sigmoid to [-9, 9]; here it does not, so that derivatives do not vanish.
`B` batch, `C` channels of the input, `K` of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.core.checks import Probability, Shape, Sizes, check_call
from polymode.nets.sizes import check_image, check_sizes
from polymode.tracing.modules import not_too_large


@not_too_large()
def unet(
    input_shape: Shape,
    num_outputs: int,
    *,
    channels: Sizes = (32, 32, 32),
    skips: Sequence[int] = (4, 4),
    norm: str | None = None,
    sigmoid: bool = False,
    blank_skips: bool = False,
    dropout: Probability = 0.0,
) -> nn.Module:
    """Return a U-Net.

    The two published networks, for one channel in and out:
        KMNIST, 28x28: the defaults with sigmoid=True. 76,905 parameters.
        Walnut, 501x501: channels=(128,) * 6, skips=(0, 0, 0, 4, 4), norm="group",
        blank_skips=True. 2,973,487 parameters; the published 2,973,880 count 393 more that the code
        builds and never uses, the 1x1 convolutions and norms of the three skips without channels.
        Without blank_skips it has 2,970,025.

    Args:
        input_shape: (C, H, W), H and W >= 2 to the number of scales - 1.
        num_outputs: K >= 1, channels of the output image.
        channels: of each scale, from fine to coarse; multiples of 4 with a norm.
        skips: channels that each scale but the coarsest hands over, from fine to coarse; 0 for
            none. The published lists have one entry more, at the front, which is not used.
        norm: None or "group" (`GroupNorm`): 2 groups after the first convolution and on the way
            up, 4 on the way down, 1 on skips and on what is joined.
        sigmoid: whether outputs are squeezed into (0, 1).
        blank_skips: whether a skip without channels is a channel of zeros, as in the published
            code; the norm of what is joined turns it into a constant that depends on the image.
        dropout: probability in [0, 1) with which an entry is dropped after each 3x3 convolution.

    Returns:
        module from (B, C, H, W) to (B, K, H, W).

    >>> sum(p.numel() for p in unet((1, 28, 28), 1).parameters())
    76905
    """
    check_call(unet, locals())
    check_sizes("unet", input_shape, num_outputs, dropout)
    _check_scales(channels, skips, norm)
    inputs, _, _ = check_image(
        "unet", input_shape, 2 ** (len(channels) - 1), f" for {len(channels)} scales"
    )
    if norm is None and blank_skips:
        raise ValueError(
            "`blank_skips` of unet must be False without a norm, got True: zeros would stay zeros"
            ' and their weights unused; take norm="group"'
        )
    style = _Style(norm is not None, sigmoid, blank_skips, dropout)
    return UNet(inputs, num_outputs, channels, skips, style)


def _check_scales(channels: Sequence[int], skips: Sequence[int], norm: str | None) -> None:
    if len(channels) == 0:
        raise ValueError("`channels` of unet has no scale; three are channels=(32, 32, 32)")
    if len(skips) != len(channels) - 1:
        raise ValueError(
            f"`skips` of unet must have one entry for each scale but the coarsest,"
            f" {len(channels) - 1} for {len(channels)} scales, got {skips!r}"
        )
    if any(not isinstance(count, int) or count < 0 for count in skips):
        raise ValueError(f"`skips` of unet must be integers >= 0, got {tuple(skips)}")
    if norm not in (None, "group"):
        raise ValueError(f'`norm` of unet must be None or "group", got {norm!r}')
    if norm == "group" and any(count % 4 for count in channels):
        raise ValueError(
            "`channels` of unet must be multiples of 4, the number of groups, with"
            f' norm="group", got {tuple(channels)}'
        )


def _conv(
    inputs: int,
    outputs: int,
    groups: int,
    dropout: Probability = 0.0,
    *,
    kernel: int = 3,
    stride: int = 1,
) -> list[nn.Module]:
    """Convolution, dropout, norm with `groups` groups (0 for none), activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    drop = [nn.Dropout(dropout)] if dropout else []
    norm = [nn.GroupNorm(groups, outputs)] if groups else []
    return [conv, *drop, *norm, nn.LeakyReLU(0.2)]


class Blank(nn.Module):
    """A channel of zeros instead of a skip."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[:, :1])


class Up(nn.Module):
    """From a scale to the next finer one."""

    def __init__(
        self, coarse: int, fine: int, skip: int, norm: bool, blank_skips: bool, dropout: float
    ) -> None:
        super().__init__()
        self.skip: nn.Module | None = None
        if skip > 0:
            self.skip = nn.Sequential(*_conv(fine, skip, int(norm), kernel=1))
        elif blank_skips:
            self.skip, skip = Blank(), 1
        groups = 2 if norm else 0
        self.conv = nn.Sequential(
            *([nn.GroupNorm(1, coarse + skip)] if norm else []),
            *_conv(coarse + skip, fine, groups, dropout),
            *_conv(fine, fine, groups, dropout),
        )

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        h = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=True)
        h = h[:, :, : fine.shape[2], : fine.shape[3]]
        return self.conv(h if self.skip is None else torch.cat([h, self.skip(fine)], dim=1))


class _Style(NamedTuple):
    """Whether there are norms, a sigmoid at the end, blank skips; the probability of dropout."""

    norm: bool
    sigmoid: bool
    blank_skips: bool
    dropout: float


class UNet(nn.Module):
    """Down to the coarsest scale and up again."""

    def __init__(
        self,
        inputs: int,
        num_outputs: int,
        channels: Sequence[int],
        skips: Sequence[int],
        style: _Style,
    ) -> None:
        super().__init__()
        norm, sigmoid, blank_skips, dropout = style
        groups = 4 if norm else 0
        self.first = nn.Sequential(*_conv(inputs, channels[0], 2 if norm else 0, dropout))
        pairs = list(zip(channels[:-1], channels[1:], skips, strict=True))  # from fine to coarse
        self.down = nn.ModuleList(
            nn.Sequential(
                *_conv(fine, coarse, groups, dropout, stride=2),
                *_conv(coarse, coarse, groups, dropout),
            )
            for fine, coarse, _ in pairs
        )
        self.up = nn.ModuleList(
            Up(coarse, fine, skip, norm, blank_skips, dropout)
            for fine, coarse, skip in reversed(pairs)
        )
        self.last = nn.Conv2d(channels[0], num_outputs, kernel_size=1)
        self.squeeze = nn.Sigmoid() if sigmoid else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.first(x)]
        for down in self.down:
            maps.append(down(maps[-1]))
        h = maps.pop()
        for up in self.up:
            h = up(h, maps.pop())
        return self.squeeze(self.last(h))
