"""Chains of linear layers with ReLUs between them, without autograd, all members at once.

At one input such a network is a product of weights W_l and masks D_l of zeros and ones:

    h_l = D_l (W_l h_{l−1} + b_l),  h_0 = x       activations, upwards
    g_l = D_l W_{l+1}ᵀ g_{l+1}                    gradients of the scalar, downwards;  J = W_1ᵀ g_1
    δ_l = D_l W_{l+1}ᵀ δ_{l+1}                    gradients of the losses, downwards
    t_l = D_l W_l t_{l−1},          t_0 = C       tangents of the cotangent C of J, upwards

The gradient of loss + ⟨C, J⟩ with respect to W_l is δ_l h_{l−1}ᵀ + g_l t_{l−1}ᵀ, that with respect
to b_l the sum of δ_l. Where only some of the inputs repel, g and t have fewer columns. The basis U
of the inputs is taken into the first layer, W_1 U, so that J has K numbers and no more. The scalar
must be linear in the outputs: then its gradient with respect to them, g of the last layer, is
known.

Shapes: `M` modes, `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `H` features
of a layer, `K` coordinates. All layers have one column per input, (M, H, B).
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.memory import count_saved
from polymode.methods.particles.terms import Terms
from polymode.stack.stack import Stack
from polymode.tracing.graph import trace
from polymode.tracing.operations import is_flatten, is_kind, is_relu

_NARROW = 12  # columns below which a right factor is up to four times slower row by row in memory:
# ten products 64 × 64 × 128 with two columns take 90 µs row by row, 20 µs column by column

Names = list[tuple[str, str]]  # of weights and biases, layer by layer


class Kept(NamedTuple):
    """What is kept between the passes."""

    layers: list[Tensor]  # x (B, D), then h_l (M, H, B)
    masks: list[Tensor]  # D_l (M, H, B)
    delta: Tensor  # δ of the outputs (M, H, B)
    slopes: list[Tensor]  # g_l (M, H, R), l = 1, ..., L
    first: Tensor  # W_1 (M, H, D), or W_1 U (M, H, K) where there is a basis


class DenseChain(NamedTuple):
    """Members of a stack: their tensors by name, in the order of the leaves, without gradients."""

    tensors: dict[str, Tensor]
    names: Names

    def members(self, a: int, b: int) -> DenseChain:
        """Return members a to b, in the same memory."""
        return DenseChain({name: t[a:b] for name, t in self.tensors.items()}, self.names)

    @torch.no_grad()
    def forward(self, terms: Terms, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Kept]:
        """Return losses (M,), J (M, R, D or K), and what the backward pass needs."""
        assert terms.slopes is not None and terms.loss_gradient is not None
        x = _by_columns(x.flatten(1))
        weights = self._weights()
        hidden, outputs = self._activations(x)
        masks = [h.sign() for h in hidden]
        losses, delta = terms.loss_gradient(outputs.mT, y)
        slopes = [terms.slopes(outputs.mT, y[: terms.rows]).T.expand(len(outputs), -1, -1)]
        for weight, mask in zip(weights[:0:-1], masks[::-1], strict=True):
            slopes.insert(0, torch.bmm(weight.mT, slopes[0]).mul_(mask[..., : terms.rows]))
        first = weights[0]
        if terms.basis is not None:
            first = (first.flatten(0, 1) @ terms.basis).unflatten(0, first.shape[:2])
        if first.shape[2] < _NARROW:
            gradient = torch.bmm(first.mT, slopes[0]).mT
        else:
            gradient = torch.bmm(slopes[0].mT, first)
        for tensor in (x, *hidden, *masks, *slopes):
            count_saved(tensor)
        return losses, gradient, Kept([x, *hidden], masks, delta.mT, slopes, first)

    @torch.no_grad()
    def backward(self, terms: Terms, kept: Kept, cotangent: Tensor) -> list[Tensor]:
        """Return the gradients of losses + weight · ⟨C, J⟩ with respect to the leaves."""
        grads = self._loss_gradients(kept)
        by_weights = [grads[weight] for weight, _ in self.names]
        slopes, cotangent = kept.slopes, _by_columns(cotangent)
        if terms.basis is None:
            by_weights[0].baddbmm_(slopes[0], cotangent, alpha=terms.weight)
        else:
            by_first = torch.bmm(slopes[0], cotangent).flatten(0, 1)
            by_weights[0].flatten(0, 1).addmm_(by_first, terms.basis.T, alpha=terms.weight)
        layers, t = [kept.first, *self._weights()[1:]], cotangent.mT
        for k, mask in enumerate(kept.masks):
            t = torch.bmm(layers[k], t).mul_(mask[..., : terms.rows])
            by_weights[k + 1].baddbmm_(slopes[k + 1], t.mT, alpha=terms.weight)
        return [grads[name] for name in self.tensors]

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

    def _loss_gradients(self, kept: Kept) -> dict[str, Tensor]:
        """Return the gradients of the losses by the names of the leaves."""
        weights, delta, grads = self._weights(), kept.delta, {}
        for k in reversed(range(1, len(weights))):
            weight, bias = self.names[k]
            grads[weight], grads[bias] = torch.bmm(delta, kept.layers[k].mT), delta.sum(2)
            delta = torch.bmm(weights[k].mT, delta).mul_(kept.masks[k - 1])
        weight, bias = self.names[0]
        grads[weight] = (delta.flatten(0, 1) @ kept.layers[0]).view_as(weights[0])
        grads[bias] = delta.sum(2)
        return grads


def dense_chain(stack: Stack, x: Tensor) -> DenseChain | None:
    """Return all members as a chain for inputs (B, ...); None if there is more to them than linear
    layers with a ReLU between each two, after flattening."""
    if stack.members_differ or stack.extra:
        return None
    chain = stack.network.program("dense chain", stack.mode, _find)
    if chain is None:
        return None
    names, flattens = chain
    used = sorted(name for pair in names for name in pair)
    if used != sorted(stack.params) or not (flattens or x.dim() == 2):  # tied, frozen or unused
        return None
    return DenseChain({name: leaf.detach() for name, leaf in stack.params.items()}, names)


def _find(template: nn.Module) -> tuple[Names, bool] | None:
    """Return the layers, and whether inputs are flattened before; None for another network."""
    traced = trace(template)
    if traced is None:
        return None
    (module, graph), word, names = traced, "", []
    nodes = [node for node in graph.nodes if node.op != "placeholder" or not node.args]
    for previous, node in pairwise(nodes):
        if node.all_input_nodes != [previous]:
            return None
        if node.op == "output" or is_kind(node, module, nn.Identity):
            continue
        if is_flatten(node, module):
            word += "f"
        elif is_relu(node, module):
            word += "r"
        elif is_kind(node, module, nn.Linear):
            word += "l"
            names.append((f"{node.target}.weight", f"{node.target}.bias"))
        else:
            return None
    return (names, word[0] == "f") if re.fullmatch("f?l(rl)*", word) else None


def _by_columns(x: Tensor) -> Tensor:
    """Return narrow matrices (..., B, D) column by column in memory, others as they are."""
    return x.mT.contiguous().mT if x.shape[-1] < _NARROW else x
