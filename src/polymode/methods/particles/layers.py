"""Layers that are linear where their masks do not change, for chains of them.

Each goes three ways, for one member: `up` with activations, `down` with gradients by its input,
`along` with tangents of its input. `up` also returns its trail, what the other two need of this
input; `first` cuts a trail to the first inputs of the batch. Layers with weights have their input
for a trail, of which the way down needs the shape. They `cross` in the place of `along`: they add
∂⟨g, W t⟩/∂W for slopes g and tangents t, times a factor, to a total.

Shapes: `B` batch, `H` features; images (B, C, H, W).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polymode.methods.particles.convolutions import (
    ConvGeometry,
    as_formatted,
    conv_backward,
    conv_blocks,
    geometry_of,
    input_gradient,
    pair,
    suits_blocks,
    weight_gradient,
)
from polymode.methods.particles.mask_derivatives import masked
from polymode.methods.particles.pooling import Blocks, Sizes, max_pool, pool_blocks

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Linear:
    """W h + b."""

    weight: str
    bias: str | None

    def up(self, tensors: Tensors, h: Tensor) -> tuple[Tensor, Any]:
        return F.linear(h, tensors[self.weight], _bias(self, tensors)), h

    def down(self, tensors: Tensors, grad: Tensor, shape: torch.Size) -> Tensor:
        return grad @ tensors[self.weight]

    def gradients(
        self, tensors: Tensors, grad: Tensor, h: Tensor, lowest: bool
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        by_bias = None if self.bias is None else grad.sum(0)
        return None if lowest else self.down(tensors, grad, h.shape), grad.T @ h, by_bias

    def cross(
        self, tensors: Tensors, tangent: Tensor, slope: Tensor, total: Tensor, factor: float
    ) -> Tensor:
        total.addmm_(slope.T, tangent, alpha=factor)
        return tangent @ tensors[self.weight].T


@dataclass(frozen=True)
class Convolution:
    """A convolution of images. `blocks`: max-pooling by 2 follows, and can have the result by
    windows where that is quicker."""

    weight: str
    bias: str | None
    geometry: ConvGeometry
    blocks: bool = False

    def up(self, tensors: Tensors, h: Tensor) -> tuple[Any, Any]:
        weight, bias = tensors[self.weight], _bias(self, tensors)
        if self.blocks and suits_blocks(weight, self.geometry):
            return conv_blocks(h, weight, bias, self.geometry), h
        return F.conv2d(h, weight, bias, *self.geometry), h

    def down(self, tensors: Tensors, grad: Tensor, shape: torch.Size) -> Tensor:
        shape = torch.Size((len(grad), *shape[1:]))
        return input_gradient(grad, tensors[self.weight], shape, self.geometry)

    def gradients(
        self, tensors: Tensors, grad: Tensor, h: Tensor, lowest: bool
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        mask = [not lowest, True, self.bias is not None]
        found = conv_backward(grad, h, tensors[self.weight], self.geometry, mask)
        assert found[1] is not None
        return found[0], found[1], found[2]

    def cross(
        self, tensors: Tensors, tangent: Tensor, slope: Tensor, total: Tensor, factor: float
    ) -> Tensor:
        tangent = as_formatted(tangent, slope)
        weight = as_formatted(tensors[self.weight], slope)
        total.add_(weight_gradient(slope, tangent, weight, self.geometry), alpha=factor)
        return F.conv2d(tangent, weight, None, *self.geometry)


@dataclass(frozen=True)
class ReLU:
    """max(h, 0), in place; the trail is the result, or its signs.

    `plain`: channel by channel in memory, as the layer below wants its gradient.
    """

    plain: bool = False

    def up(self, tensors: Tensors, h: Tensor) -> tuple[Tensor, Any]:
        h = h.relu_()
        return h, h

    def first(self, trail: Any, rows: int) -> Any:
        signs = trail[:rows].sign().to(torch.int8)
        return signs.contiguous() if self.plain else signs

    def down(self, tensors: Tensors, grad: Tensor, trail: Any) -> Tensor:
        return masked(grad, trail)

    def along(self, tensors: Tensors, tangent: Tensor, trail: Any) -> Tensor:
        return self.down(tensors, tangent, trail)


@dataclass(frozen=True)
class MaxPool:
    """The largest value of each window; the trail is where these are. `plain` as above."""

    sizes: Sizes
    plain: bool = False

    @property
    def halves(self) -> bool:
        """Whether windows are 2x2 pixels side by side."""
        return self.sizes == ((2, 2), (2, 2), (0, 0), (1, 1), False)

    def up(self, tensors: Tensors, h: Any) -> tuple[Tensor, Any]:
        return pool_blocks(h, self.sizes) if isinstance(h, Blocks) else max_pool(h, self.sizes)

    def first(self, trail: Any, rows: int) -> Any:
        found = trail.first(rows)
        return found._replace(indices=found.indices.contiguous()) if self.plain else found

    def down(self, tensors: Tensors, grad: Tensor, trail: Any) -> Tensor:
        return trail.spread(grad)

    def along(self, tensors: Tensors, tangent: Tensor, trail: Any) -> Tensor:
        return trail.take(tangent)


@dataclass(frozen=True)
class Flatten:
    """Images as features; the trail is the shape of one."""

    def up(self, tensors: Tensors, h: Tensor) -> tuple[Tensor, Any]:
        return h.flatten(1), h.shape[1:]

    def first(self, trail: Any, rows: int) -> Any:
        return trail

    def down(self, tensors: Tensors, grad: Tensor, trail: Any) -> Tensor:
        return grad.unflatten(1, trail)

    def along(self, tensors: Tensors, tangent: Tensor, trail: Any) -> Tensor:
        return tangent.flatten(1)


Weighted = Linear | Convolution
Layer = Linear | Convolution | ReLU | MaxPool | Flatten


def linear(path: str, module: nn.Linear) -> Linear:
    """Return the layer of a module."""
    return Linear(f"{path}.weight", None if module.bias is None else f"{path}.bias")


def convolution(path: str, module: nn.Conv2d) -> Convolution | None:
    """Return the layer of a module, or None for one that pads with other than zeros."""
    geometry = geometry_of(module)
    if geometry is None:
        return None
    return Convolution(f"{path}.weight", None if module.bias is None else f"{path}.bias", geometry)


def pooling(module: nn.MaxPool2d) -> MaxPool | None:
    """Return the layer of a module, or None for one that gives indices, too."""
    if module.return_indices:
        return None
    sides = module.kernel_size, module.stride, module.padding, module.dilation
    return MaxPool((*map(pair, sides), module.ceil_mode))


def _bias(layer: Weighted, tensors: Tensors) -> Tensor | None:
    return None if layer.bias is None else tensors[layer.bias]
