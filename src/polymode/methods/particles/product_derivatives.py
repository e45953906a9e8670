"""Batched matrix products, for the second derivatives of `derivatives.py`.

The gradient of b + W X by X is Wᵀ G. Along a basis U (D, K) of the inputs it is (W U)ᵀ G: W U is
computed once for all inputs, and no number of D dimensions for each of them.

Shapes: `M` modes, `B` batch, `D` input and `H` output features, `K` coordinates; members' inputs X
are (M, D, B), gradients G by the outputs (M, H, B).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def product(mode: Any, bias: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Return b + W X for each member, with the derivatives of `mode`."""
    coordinates = None
    if mode.basis is not None and _is_input(mode, x) and x.shape[1] == len(mode.basis):
        coordinates = mode.coordinates
    return _Product.apply(bias, weight, x, coordinates, mode)


def _is_input(mode: Any, x: Tensor) -> bool:
    return x.data_ptr() == mode.inputs


class _Product(torch.autograd.Function):
    """b + W X, for each member."""

    @staticmethod
    def forward(
        ctx: Any, bias: Tensor, weight: Tensor, x: Tensor, coordinates: Tensor | None, mode: Any
    ) -> Tensor:
        ctx.save_for_backward(weight, x)
        ctx.mode, ctx.first, ctx.along = mode, _is_input(mode, x), coordinates is not None
        if x.stride(0):
            return torch.baddbmm(bias, weight, x)
        members = weight.shape[:2]  # they share the inputs: one product for all
        return torch.addmm(bias.flatten(0, 1), weight.flatten(0, 1), x[0]).unflatten(0, members)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        mode, inputs_only = ctx.mode, ctx.mode.inputs_only
        if inputs_only and ctx.along:
            by_coordinates = _ProductAlong.apply(weight, grad, mode.basis, mode)
            return None, None, None, by_coordinates, None
        by_input = None
        if ctx.needs_input_grad[2] and (inputs_only or not ctx.first):
            by_input = _TransposedProduct.apply(weight, grad, ctx.first, mode)
        if inputs_only:
            return None, None, by_input, None, None
        by_bias = grad.sum(2, keepdim=True) if ctx.needs_input_grad[0] else None
        if x.stride(0):
            return by_bias, torch.bmm(grad, x.mT), by_input, None, None
        by_weight = torch.mm(grad.flatten(0, 1), x[0].T).view_as(weight)
        return by_bias, by_weight, by_input, None, None


class _TransposedProduct(torch.autograd.Function):
    """Wᵀ G, for each member; `by_rows` lays the result out with one input after another."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, grad: Tensor, by_rows: bool, mode: Any) -> Tensor:
        ctx.save_for_backward(weight, grad)
        ctx.mode = mode
        return torch.bmm(grad.mT, weight).mT if by_rows else torch.bmm(weight.mT, grad)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        weight, grad = ctx.saved_tensors
        by_grad = torch.bmm(weight, cotangent) if ctx.needs_input_grad[1] else None
        total = ctx.mode.sums.get(weight.data_ptr())
        if total is None:
            return torch.bmm(grad, cotangent.mT), by_grad, None, None
        total.baddbmm_(grad, cotangent.mT, alpha=ctx.mode.factor)
        return None, by_grad, None, None


class _ProductAlong(torch.autograd.Function):
    """Gᵀ (W U), for each member: (M, B, K)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, grad: Tensor, basis: Tensor, mode: Any) -> Tensor:
        along = torch.mm(weight.flatten(0, 1), basis).unflatten(0, weight.shape[:2])  # (M, H, K)
        ctx.save_for_backward(weight, grad, basis, along)
        ctx.mode = mode
        return torch.bmm(grad.mT, along)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        weight, grad, basis, along = ctx.saved_tensors
        by_grad = torch.bmm(along, cotangent.mT) if ctx.needs_input_grad[1] else None
        by_along = torch.bmm(grad, cotangent).flatten(0, 1)  # (M H, K)
        total = ctx.mode.sums.get(weight.data_ptr())
        if total is None:
            return torch.mm(by_along, basis.T).view_as(weight), by_grad, None, None
        total.flatten(0, 1).addmm_(by_along, basis.T, alpha=ctx.mode.factor)
        return None, by_grad, None, None
