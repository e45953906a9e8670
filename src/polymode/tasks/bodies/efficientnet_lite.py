"""EfficientNet-Lite0 without its classifier: images (B, 3, H, W) to features (B, 1280).

EfficientNet-B0 for small devices: no squeeze-and-excitation, ReLU6 in the place of swish. A block
with expansion e, kernel k and stride s is

    1×1 to e C_in, norm, ReLU6 (if e > 1);  k×k for each channel, stride s, norm, ReLU6;
    1×1 to C_out, norm;  plus its input where s = 1 and C_in = C_out

Convolutions are padded as TensorFlow's "same": the output has ceil(H / s) rows, and where an odd
number of zeros is needed the last side has one more. Names of layers are those of the published
weights. Sources: M. Tan, Q. Le, EfficientNet, ICML 2019; tensorflow/tpu, efficientnet/lite.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-3  # of the normalisation, as in TensorFlow
STEM, FEATURES = 32, 1280
STAGES = (  # blocks, kernel, stride of the first, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
MEAN, SCALE = 127.0, 128.0  # of pixels 0 to 255, in training


class SameConv(nn.Conv2d):
    """A convolution whose output has ceil(H / stride) rows."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for size, kernel, stride in zip(
            reversed(x.shape[2:]), reversed(self.kernel_size), reversed(self.stride), strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(F.pad(x, pads) if any(pads) else x)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPS)


class Block(nn.Module):
    """An inverted residual block."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands = expansion > 1
        if self.expands:
            self._expand_conv = SameConv(inputs, inner, 1, bias=False)
            self._bn0 = _norm(inner)
        self._depthwise_conv = SameConv(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv = SameConv(inner, outputs, 1, bias=False)
        self._bn2 = _norm(outputs)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        h = F.relu6(self._bn1(self._depthwise_conv(h)))
        h = self._bn2(self._project_conv(h))
        return h + x if self.is_residual else h


class EfficientNetLite0(nn.Module):
    """The network up to the mean of its last feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SameConv(3, STEM, 3, 2, bias=False)
        self._bn0 = _norm(STEM)
        self._blocks, width = nn.ModuleList(), STEM
        for count, kernel, stride, expansion, outputs in STAGES:
            for number in range(count):
                first_stride = stride if number == 0 else 1
                self._blocks.append(Block(width, outputs, kernel, first_stride, expansion))
                width = outputs
        self._conv_head = SameConv(width, FEATURES, 1, bias=False)
        self._bn1 = _norm(FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            h = block(h)
        return F.relu6(self._bn1(self._conv_head(h))).mean((2, 3))


def as_inputs(pixels: Tensor, side: int) -> Tensor:
    """Return images (B, 3, H, W) as bytes in the size and scale that the network takes."""
    x = (pixels.float() - MEAN) / SCALE
    if x.shape[2:] == (side, side):
        return x
    return F.interpolate(x, (side, side), mode="bilinear", antialias=True)


def build() -> nn.Module:
    """Return the network with weights that mean nothing yet."""
    with torch.device("cpu"):
        return EfficientNetLite0()
