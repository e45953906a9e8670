"""BatchNorm in training mode, for the second derivatives of `derivatives.py`.

With means over the batch and the pixels of a channel, N values in all, the gradient by the input is
s = (γ/σ) P g, P g = g − mean g − x̂ mean(g x̂), and that of ⟨C, s⟩ is

    by g:  (γ/σ) P C        by γ:  Q/σ,    Q = Σ C P g
    by x:  −(γ/σ²) (mean(g x̂) P C + mean(C x̂) P g + x̂ Q / N)

since x̂ and σ depend on x. Torch takes some thirty passes over memory for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten


class BatchNorm(torch.autograd.Function):
    """γ (x − mean) / σ + β with the batch's own mean and σ."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running: Any, mode: Any
    ) -> Tensor:
        running_mean, running_var, momentum, eps = running
        out, mean, inverse = torch.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.mode = mode
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        if ctx.mode.inputs_only:
            by_input = _NormGradient.apply(grad, x, weight, mean, inverse)
            return by_input, None, None, None, None
        return *_norm_backward(grad, x, weight, mean, inverse), None, None


class _NormGradient(torch.autograd.Function):
    """(γ/σ) P g: the gradient of BatchNorm by its input."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor
    ) -> Tensor:
        by_input, along, sums = _norm_backward(grad, x, weight, mean, inverse)
        ctx.save_for_backward(grad, x, weight, mean, inverse, along, sums)
        return by_input

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        grad, x, weight, mean, inverse, grad_along, grad_sums = ctx.saved_tensors
        by_grad, along, sums = _norm_backward(cotangent, x, weight, mean, inverse)
        number = x.numel() // len(weight)
        products = _channel_products(cotangent, grad)
        q = products - (sums * grad_sums + along * grad_along) / number
        scale = -weight * inverse.square() / number
        by_x = scale * inverse * (q - 2 * along * grad_along / number)  # coefficient of x
        shift = -scale * (grad_along * sums + along * grad_sums) / number - by_x * mean
        out = torch.addcmul(_channels(shift, x), cotangent, _channels(scale * grad_along, x))
        out.addcmul_(grad, _channels(scale * along, x)).addcmul_(x, _channels(by_x, x))
        return by_grad, out, q * inverse, None, None


def _norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (γ/σ) P g, Σ g x̂ and Σ g."""
    return _aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, inverse, True, 0.0, [True, True, True]
    )


def _channel_products(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ a b of each channel: as the gradient by γ it takes one pass over memory."""
    zero, one = a.new_zeros(a.shape[1]), a.new_ones(a.shape[1])
    mask = [False, True, False]
    return _aten.native_batch_norm_backward(a, b, one, None, None, zero, one, True, 0.0, mask)[1]


def _channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (x.dim() - 2))
