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
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from polymode.core.strided import Geometry, strided_pair
from polymode.core.trace import relu_in_place
from polymode.methods.particles.mask_derivatives import (
    MaxPool,
    Recipe,
    ReLU,
    blank,
    is_channels_last,
    recipe_of,
)
from polymode.methods.particles.norm_derivatives import BatchNorm
from polymode.methods.particles.product_derivatives import product

_FEW = 2  # input channels up to which a turned convolution is quicker than torch's own
_BLOCK = 4  # it gives blocks of so many pixels squared, where the image divides into them
_Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]
_aten = torch.ops.aten


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
    geometry = _pair(stride), _pair(padding), _pair(dilation), groups
    return _Convolution.apply(x, weight, bias, geometry, mode)


def _strided_pair(
    mode: QuickDerivatives, x: Tensor, weight: Tensor, shortcut: Tensor, geometry: Geometry
) -> Any:
    first = _Convolution.apply(x, weight, None, (*geometry, 1), mode)
    plain = geometry[0], (0, 0), (1, 1), 1
    return first, _Convolution.apply(x, shortcut, None, plain, mode)


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
    sizes = [_pair(s) for s in (kernel_size, stride or kernel_size, padding, dilation)]
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
    strided_pair: _strided_pair,
    torch.baddbmm: _baddbmm,
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    relu_in_place: partial(_relu, inplace=True),
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
        geometry: _Geometry,
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
        return *_conv_backward(grad, x, weight, ctx.geometry, mask), None, None


class _InputGradient(torch.autograd.Function):
    """convᵀ(g, w): the gradient of a convolution by its input."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, weight: Tensor, shape: torch.Size, geometry: _Geometry
    ) -> Tensor:
        recipe = recipe_of(grad)
        ctx.geometry, ctx.recipe = geometry, None if recipe is None else recipe[2:]
        ctx.save_for_backward(weight, *([grad] if recipe is None else recipe[:2]))
        turned = _turned(grad, weight, shape, geometry)
        if turned is not None:
            return turned
        x = blank(grad, shape, like=grad)
        by_input = _conv_backward(grad, x, weight, geometry, [True, False, False])[0]
        assert by_input is not None
        return by_input

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weight, *saved = ctx.saved_tensors
        cotangent = _as_formatted(cotangent, saved[0])
        by_grad = by_weight = None
        if ctx.needs_input_grad[0]:
            by_grad = F.conv2d(cotangent, weight, None, *ctx.geometry)
        if ctx.needs_input_grad[1]:
            mask = [False, True, False]
            grad = saved[0] if ctx.recipe is None else Recipe(*saved, *ctx.recipe)()
            by_weight = _conv_backward(grad, cotangent, weight, ctx.geometry, mask)[1]
        return by_grad, by_weight, None, None


def _as_formatted(x: Tensor, like: Tensor) -> Tensor:
    """Return grey images with the strides of `like`'s format: torch goes by these and not by what
    lies in memory, which is the same."""
    if x.shape[1] > 1 or not is_channels_last(like):
        return x
    return x.contiguous().as_strided(x.shape, (x[0].numel(), 1, x.shape[3], 1))


def _turned(grad: Tensor, weight: Tensor, shape: torch.Size, geometry: _Geometry) -> Tensor | None:
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


def _conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: _Geometry, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    stride, padding, dilation, groups = geometry
    found = _aten.convolution_backward(
        grad, x, weight, [weight.shape[0]], stride, padding, dilation, False, (0, 0), groups, mask
    )
    by_input, by_weight, by_bias = (
        g if wanted else None for g, wanted in zip(found, mask, strict=True)
    )
    return by_input, by_weight, by_bias


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    return (value[0], value[-1])
