"""ReLU and max-pooling with constant masks, for the second derivatives of `derivatives.py`.

Both are linear where their masks do not change. Torch adds zeros for the derivatives of the masks;
here a gradient by the inputs has no graph but through weights and masks, so that nothing else of
the forward pass must be kept for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
        return _masked(grad, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _masked(cotangent, ctx.saved_tensors[0]), None


def _masked(grad: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is torch.int8:
        return mask.to(grad.dtype).mul_(grad)  # several times faster than `where` with bool
    return _aten.threshold_backward(grad, mask, 0)


class MaxPool(torch.autograd.Function):
    """The largest value of each window."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: tuple[Any, ...]) -> Tensor:
        out, indices = _aten.max_pool2d_with_indices(x, *sizes)
        ctx.save_for_backward(indices)
        ctx.shape, ctx.sizes = x.shape, sizes
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _unpooled(grad, indices, ctx.shape, ctx.sizes), None
        return _Unpooled.apply(grad, indices, ctx.shape, ctx.sizes), None


class _Unpooled(torch.autograd.Function):
    """Each window's gradient at the place of its largest value."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, indices: Tensor, shape: torch.Size, sizes: tuple[Any, ...]
    ) -> Tensor:
        least = torch.int16 if shape[2] * shape[3] < 2**15 else torch.int32
        ctx.save_for_backward(grad, indices.to(least))
        ctx.shape, ctx.sizes = shape, sizes
        return _unpooled(grad, indices, shape, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        indices = ctx.saved_tensors[1].long()
        size, flat, places = indices.shape[2:], cotangent.flatten(2), indices.flatten(2)
        if is_channels_last(indices):
            taken = flat.mT.gather(1, places.mT).mT
        else:
            taken = flat.gather(2, places)
        return taken.unflatten(2, size), None, None, None


class Recipe(NamedTuple):
    """How to make the gradient of a max-pooling again, of far fewer numbers."""

    grad: Tensor
    indices: Tensor
    shape: torch.Size
    sizes: tuple[Any, ...]

    def __call__(self) -> Tensor:
        """Return the gradient."""
        return _unpooled(self.grad, self.indices.long(), self.shape, self.sizes)


def recipe_of(value: Tensor) -> Recipe | None:
    """Return the recipe of a value that comes from max-pooling, else None."""
    node: Any = value.grad_fn
    if type(node).__name__ != "_UnpooledBackward":
        return None
    grad, indices = node.saved_tensors
    return Recipe(grad, indices, node.shape, node.sizes)


def _unpooled(grad: Tensor, indices: Tensor, shape: torch.Size, sizes: tuple[Any, ...]) -> Tensor:
    x = blank(grad, shape, like=indices)
    return _aten.max_pool2d_with_indices_backward(grad, x, *sizes, indices)


def blank(grad: Tensor, shape: torch.Size, like: Tensor) -> Tensor:
    """Return a tensor without values, for operations that look at shape and format alone."""
    layout = torch.channels_last if is_channels_last(like) else torch.contiguous_format
    return torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=layout)


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
