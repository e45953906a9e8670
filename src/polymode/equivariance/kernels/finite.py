"""Finite networks in NTK parametrisation, and their tangent kernel.

A layer computes f = σ_w / √fan_in W h + σ_b b with W, b ~ N(0, 1). With these factors outside of
the parameters, gradient descent with one learning rate has a limit at infinite width.

A column of the tangent kernel Θ(x, y) = J(x) J(y)ᵀ is a product with J(y)ᵀ (one vjp), then one with
J(x) (one jvp); several columns go together, and no Jacobian is in memory. Any module whose
parameters torch can differentiate will do.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap

from polymode.core.checks import check_call
from polymode.core.memory import require_free


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


class Window(NamedTuple):
    """The window of a convolution: its sides, steps, padding, and whether that is circular."""

    sides: tuple[int, int]
    stride: int
    pads: tuple[int, int]
    circular: bool


class Conv(nn.Module):
    """A convolution with unit normal parameters."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        window: Window,
        weight_std: float,
        bias_std: float,
    ) -> None:
        super().__init__()
        sides, self.stride, self.pads, self.circular = window
        self.factor, self.bias_std = weight_std / math.sqrt(inputs * math.prod(sides)), bias_std
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


COLUMNS = 2**25  # numbers of gradients that are held at a time


def empirical_ntk(
    module: nn.Module, x: Tensor, y: Tensor | None = None, *, whole: bool = False
) -> Tensor:
    """Return the tangent kernel of `module` in its present mode at its present parameters.

    Args:
        x, y: inputs (N, ...) and (N', ...); by default y is x.
        whole: whether all pairs of outputs are wanted, (N, N', K, K); else the mean over outputs of
            those of the same output, (N, N'), which is what the infinite-width NTK is.
    """
    check_call(empirical_ntk, locals())
    y = x if y is None else y
    params = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    if not params:
        raise ValueError("the module has no parameter that requires gradients")
    constants = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    constants |= {name: buffer.detach() for name, buffer in module.named_buffers()}

    def outputs(values: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(module, {**values, **constants}, (inputs,)).flatten(1)

    linear = vjp(lambda values: outputs(values, y), params)
    at_y, pull = linear[0], linear[1]
    rows, columns, size = len(x), len(y), at_y.shape[1]
    numbers = sum(p.numel() for p in params.values())
    element = at_y.element_size()
    require_free(
        (rows * columns * size**2 + 3 * max(numbers, min(COLUMNS, numbers * columns * size)))
        * element,
        f"the tangent kernel of {rows:,} × {columns:,} inputs with {size} outputs",
        "Take fewer inputs.",
        at_y.device,
    )

    def column(cotangent: Tensor) -> Tensor:
        (gradient,) = pull(cotangent)
        return jvp(lambda values: outputs(values, x), (params,), (gradient,))[1]

    basis = torch.eye(columns * size, dtype=at_y.dtype, device=at_y.device)
    together = max(1, COLUMNS // numbers)
    with warnings.catch_warnings():  # torch's own, when it first differentiates forward
        warnings.filterwarnings("ignore", ".*torch.jit.script", DeprecationWarning)
        parts = [
            vmap(column)(part.view(-1, columns, size)).detach() for part in basis.split(together)
        ]
    kernel = torch.cat(parts).view(columns, size, rows, size).permute(2, 0, 3, 1)
    return kernel if whole else kernel.diagonal(dim1=2, dim2=3).mean(-1)
