"""Linear layers whose second derivatives are as quick as their first.

For the passes of `input_gradients.py`: a gradient J by the inputs alone, then one backward pass of
⟨C, J⟩ and of the losses. With J = Aᵀ g for a linear layer A, ⟨C, J⟩ = ⟨A C, g⟩: its gradient by g
is the layer applied to C, its gradient by the weights is the plain weight gradient for the input C
and the output gradient g. Torch takes a convolution with kernels as large as images for the latter,
and gives that of batched products transposed in memory.

Batched products are in `product_derivatives.py`, gradients of ReLU and max-pooling in
`mask_derivatives.py`, those of BatchNorm in `norm_derivatives.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from polymode.methods.particles.convolutions import (
    ConvGeometry,
    as_formatted,
    conv_backward,
    input_gradient,
    pair,
    weight_gradient,
)
from polymode.methods.particles.mask_derivatives import MaxPool, ReLU, source_of
from polymode.methods.particles.norm_derivatives import BatchNorm
from polymode.methods.particles.pooling import Windows
from polymode.methods.particles.product_derivatives import product


class QuickDerivatives(TorchFunctionMode):
    """Within this context some layers are those of this file.

    Torch does not tell a backward pass which gradients are wanted: while `inputs_only` is set, none
    by the weights are computed, else none by the network's inputs, whose address is `inputs`. A
    batched product of these inputs has its gradient by `coordinates` along a `basis` (D, K) in the
    place of that by the inputs, where there is one.
    Gradients of ⟨C, J⟩ by the weights of batched products are added, times `factor`, to the tensors
    in `sums` (by the weights' address) where there are such: large weights are not written twice.
    `keeps`: activations are kept until then, since a second derivative needs them; where they are
    not, a ReLU's mask takes a byte and no number.
    """

    inputs_only = False
    inputs = 0
    factor = 1.0
    keeps = False
    basis: Tensor | None = None
    coordinates: Tensor | None = None  # zeros, (M, B, K)

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        quick = _QUICK.get(func)
        found = None if quick is None else quick(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


def _conv2d(mode: QuickDerivatives, x: Tensor, *rest: Any, **named: Any) -> Tensor | None:
    if named or len(rest) != 6 or x.dim() != 4 or isinstance(rest[3], str):
        return None
    weight, bias, stride, padding, dilation, groups = rest
    geometry = pair(stride), pair(padding), pair(dilation), groups
    return _Convolution.apply(x, weight, bias, geometry, mode)


def _baddbmm(mode: QuickDerivatives, *args: Any, **named: Any) -> Tensor | None:
    return None if named or len(args) != 3 else product(mode, *args)


def _relu(mode: QuickDerivatives, x: Tensor, inplace: bool = False) -> Tensor | None:
    return None if inplace and x._is_view() else ReLU.apply(x, inplace, mode)


def _max_pool2d(
    mode: QuickDerivatives,
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    if return_indices or x.dim() != 4:
        return None
    sizes = [pair(s) for s in (kernel_size, stride or kernel_size, padding, dilation)]
    return MaxPool.apply(x, (*sizes, ceil_mode))


def _batch_norm(
    mode: QuickDerivatives,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    if not training or weight is None or bias is None or x.numel() <= weight.numel():
        return None
    mode.keeps = True
    return BatchNorm.apply(x, weight, bias, (running_mean, running_var, momentum, eps), mode)


_QUICK: dict[Any, Callable[..., Tensor | None]] = {
    torch.conv2d: _conv2d,
    torch.baddbmm: _baddbmm,
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    F.max_pool2d: _max_pool2d,
    F.batch_norm: _batch_norm,
}


class _Convolution(torch.autograd.Function):
    """conv(x, w) + b."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: ConvGeometry,
        mode: QuickDerivatives,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.mode = geometry, mode
        ctx.has_bias, ctx.first = bias is not None, x.is_leaf
        return F.conv2d(x, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if ctx.mode.inputs_only:
            by_input = None
            if ctx.needs_input_grad[0]:
                by_input = _InputGradient.apply(grad, weight, x.shape, ctx.geometry)
            return by_input, None, None, None, None
        wanted = ctx.needs_input_grad
        mask = [wanted[0] and not ctx.first, wanted[1], ctx.has_bias and wanted[2]]
        return *conv_backward(grad, x, weight, ctx.geometry, mask), None, None


class _InputGradient(torch.autograd.Function):
    """convᵀ(g, w): the gradient of a convolution by its input."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, weight: Tensor, shape: torch.Size, geometry: ConvGeometry
    ) -> Tensor:
        source = source_of(grad)
        ctx.geometry, ctx.rest = geometry, None
        if source is None:
            ctx.save_for_backward(weight, grad)
        else:
            ctx.save_for_backward(weight, source[0], source[1].indices)
            ctx.rest = source[1][1:]
        return input_gradient(grad, weight, shape, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weight, grad, *indices = ctx.saved_tensors
        cotangent = as_formatted(cotangent, grad)
        by_grad = by_weight = None
        if ctx.needs_input_grad[0]:
            by_grad = F.conv2d(cotangent, weight, None, *ctx.geometry)
        if ctx.needs_input_grad[1]:
            if indices:
                grad = Windows(*indices, *ctx.rest).spread(grad)
            by_weight = weight_gradient(grad, cotangent, weight, ctx.geometry)
        return by_grad, by_weight, None, None
