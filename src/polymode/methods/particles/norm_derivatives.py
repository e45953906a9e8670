"""BatchNorm in training mode, for the second derivatives of `derivatives.py`.

With means over the batch and the pixels of a channel, N values in all, the gradient by the input is
s = γ u, u = P g / σ, P g = g − mean g − x̂ mean(g x̂), and that of ⟨C, s⟩ is

    by g:  (γ/σ) P C        by γ:  Σ C u
    by x:  −(1/σ) (mean(g x̂) (γ/σ) P C + mean(C x̂) s + x̂ Σ C s / N)

since x̂ and σ depend on x. So s can be kept in place of g; a convolution before keeps it anyway.
Torch takes some thirty passes over memory for the same.
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
    """s = (γ/σ) P g: the gradient of BatchNorm by its input."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor
    ) -> Tensor:
        by_input, along, _ = _norm_backward(grad, x, weight, mean, inverse)
        ctx.scaled = bool(weight.all())  # else s has lost u where γ is 0
        kept = by_input
        if not ctx.scaled:
            kept = _norm_backward(grad, x, torch.ones_like(weight), mean, inverse)[0]
        ctx.save_for_backward(kept, x, weight, mean, inverse, along)
        return by_input

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        kept, x, weight, mean, inverse, grad_along = ctx.saved_tensors
        by_grad, along, _ = _norm_backward(cotangent, x, weight, mean, inverse)
        products = _channel_products(cotangent, kept)
        by_weight = products / weight if ctx.scaled else products
        scale = -inverse / (x.numel() // len(weight))
        of_kept = scale * along if ctx.scaled else scale * along * weight
        of_x = scale * inverse * by_weight * weight
        out = torch.addcmul(_channels(-of_x * mean, x), by_grad, _channels(scale * grad_along, x))
        out.addcmul_(kept, _channels(of_kept, x)).addcmul_(x, _channels(of_x, x))
        return by_grad, out, by_weight, None, None


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
