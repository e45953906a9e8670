"""Layers of finite networks in NTK parametrisation: f = σ_w / √fan_in W h + σ_b b, W, b ~ N(0, 1).

With these factors outside of the parameters, gradient descent with one learning rate has a limit
at infinite width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """A dense layer with unit normal parameters."""

    def __init__(self, inputs: int, outputs: int, weight_std: float, bias_std: float) -> None:
        super().__init__()
        self.factor, self.bias_std = weight_std / math.sqrt(inputs), bias_std
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs)) if bias_std else None

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias * self.bias_std
        return F.linear(x * self.factor, self.weight, bias)

    def for_all_members(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs (M, B, K) of all members, see `stack/fast/dense.py`."""
        weight = tensors["weight"].mT
        if self.bias is None:
            return (x * self.factor) @ weight
        bias = tensors["bias"][:, None] * self.bias_std
        return torch.baddbmm(bias, x, weight, alpha=self.factor)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, factor={self.factor:.4g}, bias_std={self.bias_std:g}"


class Conv(nn.Module):
    """A convolution with unit normal parameters."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        sides: tuple[int, int],
        stride: int,
        pads: tuple[int, int],
        circular: bool,
        weight_std: float,
        bias_std: float,
    ) -> None:
        super().__init__()
        self.factor = weight_std / math.sqrt(inputs * math.prod(sides))
        self.bias_std, self.stride, self.pads, self.circular = bias_std, stride, pads, circular
        self.weight = nn.Parameter(torch.randn(outputs, inputs, *sides))
        self.bias = nn.Parameter(torch.randn(outputs)) if bias_std else None

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias * self.bias_std
        x = x * self.factor
        if not self.circular:
            return F.conv2d(x, self.weight, bias, self.stride, self.pads)
        height, width = self.pads
        x = F.pad(x, (width, width, height, height), mode="circular")
        return F.conv2d(x, self.weight, bias, self.stride)

    def extra_repr(self) -> str:
        outputs, inputs, *sides = self.weight.shape
        return f"{inputs}, {outputs}, {tuple(sides)}, factor={self.factor:.4g}"


class UnitNorm(nn.Module):
    """Units (axis 1) with mean 0 and variance 1, no weights."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        return centred / centred.square().mean(1, keepdim=True).clamp_min(1e-12).sqrt()


class TwoSlopes(nn.Module):
    """a x below 0, b x above."""

    def __init__(self, below: float, above: float) -> None:
        super().__init__()
        self.below, self.above = below, above

    def forward(self, x: Tensor) -> Tensor:
        return self.above * F.relu(x) - self.below * F.relu(-x)


class Erf(nn.Module):
    """The error function."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x)


class Elementwise(nn.Module):
    """Any function of one number."""

    def __init__(self, function: object) -> None:
        super().__init__()
        assert callable(function)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Sum(nn.Module):
    """The sum of several branches."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        total = self.branches[0](x)
        for branch in self.branches[1:]:
            total = total + branch(x)
        return total
