"""Convolutions and batched products whose second derivatives are as quick as their first.

Torch differentiates the input gradient of a convolution by its weights through a convolution with
kernels as large as the images, several times slower than the plain weight gradient. Yet it is one:
with J = convᵀ(g, w), ⟨C, J⟩ = ⟨conv(C, w), g⟩, so its gradient by w is the weight gradient for the
input C and the output gradient g, and its gradient by g is conv(C, w). Likewise for
batched products, where torch's gradient by the weights comes transposed in memory and is slow to
add. This is for the passes of `input_gradients.py`: a gradient by the inputs alone, then one
backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

_FEW = 2  # input channels up to which a turned convolution is quicker than torch's own
_Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]


class QuickDerivatives(TorchFunctionMode):
    """Within this context `conv2d` and `baddbmm` are those of this file.

    Torch does not tell a backward pass which gradients are wanted: while `inputs_only` is set, none
    by the weights are computed, else none by the network's inputs, whose address is `inputs`.
    """

    inputs_only = False
    inputs = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d and not kwargs and len(args) == 7 and args[0].dim() == 4:
            x, weight, bias, stride, padding, dilation, groups = args
            if not isinstance(padding, str):
                geometry = _pair(stride), _pair(padding), _pair(dilation), groups
                return _Convolution.apply(x, weight, bias, geometry, self)
        if func is torch.baddbmm and not kwargs and len(args) == 3:
            return _Product.apply(*args, self)
        return func(*args, **(kwargs or {}))


class _Product(torch.autograd.Function):
    """b + W X, for each member."""

    @staticmethod
    def forward(
        ctx: Any, bias: Tensor, weight: Tensor, x: Tensor, mode: QuickDerivatives
    ) -> Tensor:
        ctx.save_for_backward(weight, x)
        ctx.mode, ctx.first = mode, x.data_ptr() == mode.inputs
        return torch.baddbmm(bias, weight, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        inputs_only = ctx.mode.inputs_only
        by_input = None
        if ctx.needs_input_grad[2] and (inputs_only or not ctx.first):
            by_input = _TransposedProduct.apply(weight, grad, ctx.first)
        if inputs_only:
            return None, None, by_input, None
        by_bias = grad.sum(2, keepdim=True) if ctx.needs_input_grad[0] else None
        return by_bias, torch.bmm(grad, x.mT), by_input, None


class _TransposedProduct(torch.autograd.Function):
    """Wᵀ G, for each member; `by_rows` lays the result out with one input after another."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, grad: Tensor, by_rows: bool) -> Tensor:
        ctx.save_for_backward(weight, grad)
        return torch.bmm(grad.mT, weight).mT if by_rows else torch.bmm(weight.mT, grad)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        weight, grad = ctx.saved_tensors
        by_grad = torch.bmm(weight, cotangent) if ctx.needs_input_grad[1] else None
        return torch.bmm(grad, cotangent.mT), by_grad, None


class _Convolution(torch.autograd.Function):
    """conv(x, w) + b."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: _Geometry,
        mode: QuickDerivatives,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.mode, ctx.has_bias, ctx.first = (
            geometry,
            mode,
            bias is not None,
            x.is_leaf,
        )
        return F.conv2d(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        inputs_only = ctx.mode.inputs_only
        by_input = by_weight = by_bias = None
        if ctx.needs_input_grad[0] and (inputs_only or not ctx.first):
            by_input = _InputGradient.apply(grad, weight, x.shape, ctx.geometry)
        if not inputs_only and any(ctx.needs_input_grad[1:3]):
            by_weight, by_bias = _weight_gradient(grad, x, weight, ctx.geometry, ctx.has_bias)
        return by_input, by_weight, by_bias, None, None


class _InputGradient(torch.autograd.Function):
    """convᵀ(g, w): the gradient of a convolution by its input."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, weight: Tensor, shape: torch.Size, geometry: _Geometry
    ) -> Tensor:
        ctx.save_for_backward(grad, weight)
        ctx.geometry = geometry
        return _input_gradient(grad, weight, shape, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad, weight = ctx.saved_tensors
        by_grad = by_weight = None
        if ctx.needs_input_grad[0]:
            by_grad = F.conv2d(cotangent, weight, None, *ctx.geometry)
        if ctx.needs_input_grad[1]:
            by_weight, _ = _weight_gradient(grad, cotangent, weight, ctx.geometry)
        return by_grad, by_weight, None, None


def _input_gradient(grad: Tensor, weight: Tensor, shape: torch.Size, geometry: _Geometry) -> Tensor:
    stride, padding, dilation, groups = geometry
    size = weight.shape[2:]
    plain = (stride, dilation, groups) == ((1, 1), (1, 1), 1)
    if plain and shape[1] <= _FEW and padding[0] < size[0] and padding[1] < size[1]:
        turned = weight.flip(2, 3).transpose(0, 1).contiguous()
        margins = size[0] - 1 - padding[0], size[1] - 1 - padding[1]
        return F.conv2d(grad.contiguous(), turned, None, 1, margins)
    x = grad.new_empty(1).expand(shape)
    return _backward(grad, x, weight, geometry, [True, False, False])[0]


def _weight_gradient(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry, has_bias: bool = False
) -> tuple[Tensor, Tensor | None]:
    found = _backward(grad, x, weight, geometry, [False, True, has_bias])
    return found[1], found[2] if has_bias else None


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry, mask: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding, dilation, groups = geometry
    return torch.ops.aten.convolution_backward(
        grad, x, weight, [weight.shape[0]], stride, padding, dilation, False, (0, 0), groups, mask
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])
