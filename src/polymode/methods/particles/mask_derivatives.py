"""ReLU and max-pooling with constant masks, for the second derivatives of `derivatives.py`.

Both are linear where their masks do not change. Torch adds zeros for the derivatives of the masks;
here a gradient by the inputs has no graph but through weights and masks, so that nothing else of
the forward pass must be kept for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from polymode.methods.particles.pooling import Sizes, Windows, max_pool

_aten = torch.ops.aten


class ReLU(torch.autograd.Function):
    """max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool, mode: Any) -> Tensor:
        ctx.mode = mode
        if inplace:
            ctx.mark_dirty(x)
        out = x.relu_() if inplace else x.relu()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        out = ctx.saved_tensors[0].detach()
        if not torch.is_grad_enabled():  # nobody asks for a second derivative
            return _aten.threshold_backward(grad, out, 0), None, None
        mask = out if ctx.mode.keeps else out.sign().to(torch.int8)
        return _Masked.apply(grad, mask), None, None


class _Masked(torch.autograd.Function):
    """g where the mask is positive, else 0."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return masked(grad, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return masked(cotangent, ctx.saved_tensors[0]), None


def masked(grad: Tensor, mask: Tensor) -> Tensor:
    """Return g where the mask is positive, else 0; masks are numbers, or signs in a byte."""
    if mask.dtype is torch.int8:
        return mask.to(grad.dtype).mul_(grad)  # several times faster than `where` with bool
    return _aten.threshold_backward(grad, mask, 0)


class MaxPool(torch.autograd.Function):
    """The largest value of each window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sizes) -> Tensor:
        out, windows = max_pool(x, sizes)
        ctx.save_for_backward(windows.indices)
        ctx.rest = windows[1:]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        windows = Windows(*ctx.saved_tensors, *ctx.rest)
        if not torch.is_grad_enabled():
            return windows.spread(grad), None
        return _Spread.apply(grad, windows), None


class _Spread(torch.autograd.Function):
    """Each window's gradient at the place of its largest value."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, windows: Windows) -> Tensor:
        small = windows.first(len(grad))
        ctx.save_for_backward(grad, small.indices)
        ctx.rest = small[1:]
        return windows.spread(grad)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return Windows(ctx.saved_tensors[1], *ctx.rest).take(cotangent), None


def source_of(value: Tensor) -> tuple[Tensor, Windows] | None:
    """Return of what a gradient of max-pooling was made, far fewer numbers; None for others."""
    node: Any = value.grad_fn
    if type(node).__name__ != "_SpreadBackward":
        return None
    grad, indices = node.saved_tensors
    return grad, Windows(indices, *node.rest)
