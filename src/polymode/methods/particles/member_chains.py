"""Chains of layers, images among them, one member at a time (see `chains.py`).

Shapes: `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `K` coordinates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.memory import count_saved
from polymode.methods.particles.layers import Layer, Tensors, Weighted
from polymode.methods.particles.pooling import Windows


class Slope(NamedTuple):
    """g_l, or what max-pooling spread it from: far fewer numbers."""

    grad: Tensor
    windows: Windows | None

    def value(self) -> Tensor:
        """Return g_l."""
        return self.grad if self.windows is None else self.windows.spread(self.grad)


class MemberKept(NamedTuple):
    """What is kept between the passes."""

    trails: list[Any]  # of the layers without weights; a slope in the place of those with
    shape: torch.Size  # of the inputs that repel


class MemberChain(NamedTuple):
    """One member: its tensors by name, in the order of its leaves."""

    tensors: Tensors
    layers: list[Layer]

    def forward(
        self, terms: Any, x: Tensor, y: Tensor, again: bool
    ) -> tuple[Tensor, list[Tensor], MemberKept, Tensor]:
        """Return the loss () and its gradients by the leaves, neither if these have been written
        before; what the backward pass needs; J (1, R, D) or (1, R, K)."""
        with torch.no_grad():
            h, trails = x, []
            for layer in self.layers:
                h, trail = layer.up(self.tensors, h)
                trails.append(trail)
                _count(trail)
            loss, grads = h.new_empty(0), []
            if not again:
                loss, delta = terms.loss_gradient(h, y)
                grads = self._loss_gradients(trails, delta)
            for k, layer in enumerate(self.layers):
                if isinstance(layer, Weighted):
                    trails[k] = trails[k].shape  # of their inputs no more is needed
            kept, gradient = self._slopes(trails, terms.slopes(h, y[: terms.rows]))
            gradient = gradient.flatten(1)
            if terms.basis is not None:
                gradient = gradient @ terms.basis
        for trail in kept:
            _count(trail)
        shape = torch.Size((terms.rows, *x.shape[1:]))
        return loss, grads, MemberKept(kept, shape), gradient.unsqueeze(0)

    def backward(
        self, terms: Any, kept: MemberKept, cotangent: Tensor, totals: list[Tensor]
    ) -> None:
        """Add the gradients of weight · ⟨C, J⟩ to the totals, in the order of the leaves."""
        by_name = dict(zip(self.tensors, totals, strict=True))
        with torch.no_grad():
            t = cotangent[0] if terms.basis is None else cotangent[0] @ terms.basis.T
            t = t.view(kept.shape)
            for layer, trail in zip(self.layers, kept.trails, strict=True):
                if isinstance(layer, Weighted):
                    total = by_name[layer.weight]
                    t = layer.cross(self.tensors, t, trail.value(), total, terms.weight)
                else:
                    t = layer.along(self.tensors, t, trail)

    def _loss_gradients(self, trails: list[Any], delta: Tensor) -> list[Tensor]:
        """Return the gradients of the loss by the leaves, from that by the outputs."""
        grads: Tensors = {}
        lowest = min(k for k, layer in enumerate(self.layers) if isinstance(layer, Weighted))
        for k in reversed(range(lowest, len(self.layers))):
            layer = self.layers[k]
            if not isinstance(layer, Weighted):
                delta = layer.down(self.tensors, delta, trails[k])
                continue
            found = layer.gradients(self.tensors, delta, trails[k], k == lowest)
            grads[layer.weight] = found[1]
            if layer.bias is not None and found[2] is not None:
                grads[layer.bias] = found[2]
            if found[0] is not None:
                delta = found[0]
        return [grads[name] for name in self.tensors]

    def _slopes(self, trails: list[Any], grad: Tensor) -> tuple[list[Any], Tensor]:
        """Return what is kept of each layer, and J (R, ...), from the slopes of the outputs."""
        kept: list[Any] = []
        source = None  # of the gradient, if max-pooling spread it
        for layer, trail in zip(self.layers[::-1], trails[::-1], strict=True):
            if isinstance(layer, Weighted):
                kept.append(source or Slope(grad, None))
                grad, source = layer.down(self.tensors, grad, trail), None
                continue
            trail = layer.first(trail, len(grad))
            kept.append(trail)
            source = Slope(grad, trail) if isinstance(trail, Windows) else None
            grad = layer.down(self.tensors, grad, trail)
        return kept[::-1], grad


def _count(trail: Any) -> None:
    """Count the tensors of a trail, or a slope, for the choice of how many members are kept."""
    if isinstance(trail, Tensor):
        count_saved(trail)
    elif isinstance(trail, tuple) and not isinstance(trail, torch.Size):
        for part in trail:
            _count(part)
