"""Chains of linear layers and ReLUs, all members at once (see `chains.py`).

The basis U of the inputs is taken into the first layer, W_1 U, so that J has K numbers and no more.

Shapes: `M` modes, `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `H` features
of a layer, `K` coordinates. All layers have one column an input, (M, H, B).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.stack import Stack


class DenseKept(NamedTuple):
    """What is kept between the passes."""

    masks: list[Tensor]  # (M, H, R)
    slopes: list[Tensor]  # g_l (M, H, R), l = 1, ..., L
    first: Tensor  # W_1 (M, H, D), or W_1 U (M, H, K) where there is a basis


class DenseChain(NamedTuple):
    """A stack of such networks; names of weights and biases, layer by layer."""

    stack: Stack
    names: list[tuple[str, str]]

    def forward(
        self, terms: Any, x: Tensor, y: Tensor, again: bool
    ) -> tuple[Tensor, list[Tensor], DenseKept, Tensor]:
        """Return losses (M,) and their gradients by the stack's leaves, neither if these have been
        written before; what the backward pass needs; J (M, R, D) or (M, R, K)."""
        x = x.flatten(1)
        weights = self._weights()
        with torch.no_grad():
            hidden, outputs = self._activations(x)
            masks = [h.sign() for h in hidden]
            losses, grads = outputs.new_empty(0), []
            if not again:
                losses, delta = loss_gradient(terms, outputs.mT, y)
                grads = self._loss_gradients(x, hidden, masks, delta.mT)
            del hidden
            masks = [mask[..., : terms.rows] for mask in masks]
            slopes = [terms.slopes(outputs.mT, y[: terms.rows]).T.expand(len(outputs), -1, -1)]
            for weight, mask in zip(weights[:0:-1], masks[::-1], strict=True):
                slopes.insert(0, torch.bmm(weight.mT, slopes[0]).mul_(mask))
            first = weights[0]
            if terms.basis is not None:
                first = (first.flatten(0, 1) @ terms.basis).unflatten(0, first.shape[:2])
            gradient = torch.bmm(slopes[0].mT, first)
        return losses, grads, DenseKept(masks, slopes, first), gradient

    def backward(
        self, terms: Any, kept: DenseKept, cotangent: Tensor, totals: list[Tensor]
    ) -> None:
        """Add the gradients of weight · ⟨C, J⟩ to the totals, in the order of the leaves."""
        masks, slopes, first = kept
        by_name = dict(zip(self.stack.params, totals, strict=True))
        grads = [by_name[weight] for weight, _ in self.names]
        with torch.no_grad():
            if terms.basis is None:
                grads[0].baddbmm_(slopes[0], cotangent, alpha=terms.weight)
            else:
                by_first = torch.bmm(slopes[0], cotangent) @ terms.basis.T
                grads[0].add_(by_first, alpha=terms.weight)
            layers, t = [first, *self._weights()[1:]], cotangent.mT
            for k, mask in enumerate(masks):
                t = torch.bmm(layers[k], t).mul_(mask)
                grads[k + 1].baddbmm_(slopes[k + 1], t.mT, alpha=terms.weight)

    def _weights(self) -> list[Tensor]:
        return [self.stack.params[weight].detach() for weight, _ in self.names]

    def _activations(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return h_l (M, H, B) of the hidden layers, and the outputs (M, H, B)."""
        weights, hidden = self._weights(), []
        biases = [self.stack.params[bias].detach().unsqueeze(2) for _, bias in self.names]
        z = torch.addmm(biases[0].flatten(0, 1), weights[0].flatten(0, 1), x.T)
        z = z.unflatten(0, weights[0].shape[:2])
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            hidden.append(z.relu_())
            z = torch.baddbmm(bias, weight, z)
        return hidden, z

    def _loss_gradients(
        self, x: Tensor, hidden: list[Tensor], masks: list[Tensor], delta: Tensor
    ) -> list[Tensor]:
        """Return the gradients of the losses by the leaves, from those by the outputs (M, H, B)."""
        weights = self._weights()
        grads: dict[str, Tensor] = {}
        for k in reversed(range(1, len(weights))):
            grads |= dict(
                zip(self.names[k], (torch.bmm(delta, hidden[k - 1].mT), delta.sum(2)), strict=True)
            )
            delta = torch.bmm(weights[k].mT, delta).mul_(masks[k - 1])
        by_first = (delta.flatten(0, 1) @ x).view_as(weights[0])
        grads |= dict(zip(self.names[0], (by_first, delta.sum(2)), strict=True))
        return [grads[name] for name in self.stack.params]


def loss_gradient(terms: Any, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses (...) and their gradients by the outputs (..., B, K)."""
    outputs = outputs.detach().requires_grad_()
    with torch.enable_grad():
        losses = terms.loss(outputs, y, {})
    (gradient,) = torch.autograd.grad(losses, outputs, torch.ones_like(losses))
    return losses.detach(), gradient
