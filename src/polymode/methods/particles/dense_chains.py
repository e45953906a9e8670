"""Chains of linear layers and ReLUs, all members at once (see `chains.py`).

The basis U of the inputs is taken into the first layer, W_1 U, so that J has K numbers and no more.

Shapes: `M` modes, `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `H` features
of a layer, `K` coordinates. All layers have one column an input, (M, H, B).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.methods.particles.layers import Tensors

_NARROW = 12  # columns below which a right factor is up to four times slower row by row in memory


class DenseKept(NamedTuple):
    """What is kept between the passes."""

    masks: list[Tensor]  # (M, H, R)
    slopes: list[Tensor]  # g_l (M, H, R), l = 1, ..., L
    first: Tensor  # W_1 (M, H, D), or W_1 U (M, H, K) where there is a basis


class DenseChain(NamedTuple):
    """A stack of such networks: its tensors by name, in the order of its leaves; names of weights
    and biases, layer by layer."""

    tensors: Tensors
    names: list[tuple[str, str]]

    def forward(
        self, terms: Any, x: Tensor, y: Tensor, again: bool
    ) -> tuple[Tensor, list[Tensor], DenseKept, Tensor]:
        """Return losses (M,) and their gradients by the stack's leaves, neither if these have been
        written before; what the backward pass needs; J (M, R, D) or (M, R, K)."""
        x = _by_columns(x.flatten(1))
        weights = self._weights()
        with torch.no_grad():
            hidden, outputs = self._activations(x)
            masks = [h.sign() for h in hidden]
            losses, grads = outputs.new_empty(0), []
            if not again:
                losses, delta = terms.loss_gradient(outputs.mT, y)
                grads = self._loss_gradients(x, hidden, masks, delta.mT)
            del hidden
            masks = [mask[..., : terms.rows] for mask in masks]
            slopes = [terms.slopes(outputs.mT, y[: terms.rows]).T.expand(len(outputs), -1, -1)]
            for weight, mask in zip(weights[:0:-1], masks[::-1], strict=True):
                slopes.insert(0, torch.bmm(weight.mT, slopes[0]).mul_(mask))
            first = weights[0]
            if terms.basis is not None:
                first = (first.flatten(0, 1) @ terms.basis).unflatten(0, first.shape[:2])
            if first.shape[2] < _NARROW:
                gradient = torch.bmm(first.mT, slopes[0]).mT
            else:
                gradient = torch.bmm(slopes[0].mT, first)
        return losses, grads, DenseKept(masks, slopes, first), gradient

    def backward(
        self, terms: Any, kept: DenseKept, cotangent: Tensor, totals: list[Tensor]
    ) -> None:
        """Add the gradients of weight · ⟨C, J⟩ to the totals, in the order of the leaves."""
        masks, slopes, first = kept
        cotangent = _by_columns(cotangent)
        by_name = dict(zip(self.tensors, totals, strict=True))
        grads = [by_name[weight] for weight, _ in self.names]
        with torch.no_grad():
            if terms.basis is None:
                grads[0].baddbmm_(slopes[0], cotangent, alpha=terms.weight)
            else:
                by_first = torch.bmm(slopes[0], cotangent).flatten(0, 1)
                total = grads[0].view(len(by_first), -1)
                total.addmm_(by_first, terms.basis.T, alpha=terms.weight)
            layers, t = [first, *self._weights()[1:]], cotangent.mT
            for k, mask in enumerate(masks):
                t = torch.bmm(layers[k], t).mul_(mask)
                grads[k + 1].baddbmm_(slopes[k + 1], t.mT, alpha=terms.weight)

    def _weights(self) -> list[Tensor]:
        return [self.tensors[weight] for weight, _ in self.names]

    def _activations(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return h_l (M, H, B) of the hidden layers, and the outputs (M, H, B)."""
        weights, hidden = self._weights(), []
        biases = [self.tensors[bias].unsqueeze(2) for _, bias in self.names]
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
        grads: Tensors = {}
        for k in reversed(range(1, len(weights))):
            grads |= dict(
                zip(self.names[k], (torch.bmm(delta, hidden[k - 1].mT), delta.sum(2)), strict=True)
            )
            delta = torch.bmm(weights[k].mT, delta).mul_(masks[k - 1])
        by_first = (delta.flatten(0, 1) @ x).view_as(weights[0])
        grads |= dict(zip(self.names[0], (by_first, delta.sum(2)), strict=True))
        return [grads[name] for name in self.tensors]


def _by_columns(x: Tensor) -> Tensor:
    """Return narrow matrices (..., B, D) column by column in memory, others as they are."""
    return x.mT.contiguous().mT if x.shape[-1] < _NARROW else x
