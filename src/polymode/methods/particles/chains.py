"""Repelled gradients of chains of linear layers and ReLUs, without autograd.

At one input such a network is a product of weights W_l and masks D_l of zeros and ones:

    h_l = D_l (W_l h_{l−1} + b_l),  h_0 = x       activations, upwards
    g_l = D_l W_{l+1}ᵀ g_{l+1}                    gradients of the scalar, downwards;  J = W_1ᵀ g_1
    δ_l = D_l W_{l+1}ᵀ δ_{l+1}                    gradients of the losses, downwards
    t_l = D_l W_l t_{l−1},          t_0 = C       tangents of the cotangent C of J, upwards

The gradient of loss + ⟨C, J⟩ by W_l is δ_l h_{l−1}ᵀ + g_l t_{l−1}ᵀ, that by b_l the sum of δ_l.
Where only some of the inputs repel, g and t have fewer columns. The scalar must be linear in the
outputs: then its gradient by them, g of the last layer, is known.

Shapes: `M` modes, `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `H` features
of a layer, `K` coordinates. All layers have one column an input, (M, H, B).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from polymode.core.stack import Stack
from polymode.core.trace import is_flatten, is_kind, is_relu, trace


class Kept(NamedTuple):
    """What is kept between the passes of a chain."""

    grads: list[Tensor]  # of the losses, by weights and biases in turn
    masks: list[Tensor]  # (M, H, R)
    slopes: list[Tensor]  # g_l (M, H, R), l = 1, ..., L
    first: Tensor  # W_1 (M, H, D), or W_1 U (M, H, K) where there is a basis


Names = list[tuple[str, str]]


class Chain(NamedTuple):
    """A stack of such networks; names of weights and biases, layer by layer."""

    stack: Stack
    names: Names

    def forward(self, terms: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Kept, Tensor]:
        """Return losses (M,), what the backward pass needs, and J (M, R, D) or (M, R, K)."""
        x = x.flatten(1)
        weights = self._weights()
        with torch.no_grad():
            hidden, outputs = self._activations(x)
            masks = [h.sign() for h in hidden]
            losses, delta = _loss_gradient(terms, outputs, y)
            grads: list[Tensor] = []
            for k in reversed(range(1, len(weights))):
                grads = [torch.bmm(delta, hidden[k - 1].mT), delta.sum(2), *grads]
                delta = torch.bmm(weights[k].mT, delta).mul_(masks[k - 1])
            grads = [(delta.flatten(0, 1) @ x).view_as(weights[0]), delta.sum(2), *grads]
            masks = [mask[..., : terms.rows] for mask in masks]
            slopes = [terms.slopes(outputs.mT, y[: terms.rows]).T.expand(len(outputs), -1, -1)]
            for weight, mask in zip(weights[:0:-1], masks[::-1], strict=True):
                slopes.insert(0, torch.bmm(weight.mT, slopes[0]).mul_(mask))
            first = weights[0]
            if terms.basis is not None:
                first = (first.flatten(0, 1) @ terms.basis).unflatten(0, first.shape[:2])
            gradient = torch.bmm(slopes[0].mT, first)
        return losses, Kept(grads, masks, slopes, first), gradient

    def backward(self, terms: Any, kept: Kept, cotangent: Tensor) -> list[Tensor]:
        """Return the gradients by the stack's leaves, in their order."""
        grads, masks, slopes, first = kept
        with torch.no_grad():
            if terms.basis is None:
                grads[0].baddbmm_(slopes[0], cotangent, alpha=terms.weight)
            else:
                by_first = torch.bmm(slopes[0], cotangent).flatten(0, 1)  # (M H, K)
                grads[0].flatten(0, 1).addmm_(by_first, terms.basis.T, alpha=terms.weight)
            layers, t = [first, *self._weights()[1:]], cotangent.mT
            for k, mask in enumerate(masks):
                t = torch.bmm(layers[k], t).mul_(mask)
                grads[2 * k + 2].baddbmm_(slopes[k + 1], t.mT, alpha=terms.weight)
        names = (name for pair in self.names for name in pair)
        found = dict(zip(names, grads, strict=True))
        return [found[name] for name in self.stack.params]

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


def _loss_gradient(terms: Any, columns: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses (M,) and their gradients by the outputs, both of these (M, H, B)."""
    columns = columns.detach().requires_grad_()
    with torch.enable_grad():
        losses = terms.loss(columns.mT, y, {})
    (gradient,) = torch.autograd.grad(losses, columns, torch.ones_like(losses))
    return losses.detach(), gradient


def chain_of(stack: Stack, x: Tensor) -> Chain | None:
    """Return the stack as a chain for inputs (B, ...), or None if its networks are none."""
    if stack.training not in stack._chains:
        stack._chains[stack.training] = _chain(stack)
    names, flattens = stack._chains[stack.training]
    return Chain(stack, names) if names and (flattens or x.dim() == 2) else None


def _chain(stack: Stack) -> tuple[Names, bool]:
    """Return the layers' names, none if there is more to the network; whether it flattens."""
    traced = trace(stack.template)
    if traced is None or stack.members_differ or stack.extra or stack._second_names:
        return [], False
    names, flattens = _layers(*traced)
    used = [name for pair in names for name in pair]
    return (names, flattens) if sorted(used) == sorted(stack.params) else ([], False)


def _layers(module: nn.Module, graph: fx.Graph) -> tuple[Names, bool]:
    """Return the names of linear layers if there is a ReLU between each two, and nothing else."""
    names: Names = []
    flattens, ready = False, True  # ready for a linear layer
    nodes = [node for node in graph.nodes if node.op != "placeholder" or not node.args]
    for previous, node in pairwise(nodes):
        if node.all_input_nodes != [previous]:
            return [], False
        if is_kind(node, module, nn.Linear) and ready:
            names.append((f"{node.target}.weight", f"{node.target}.bias"))
            ready = False
        elif is_relu(node, module) and not ready:
            ready = True
        elif is_flatten(node, module) and not names:
            flattens = True
        elif node.op != "output" and not is_kind(node, module, nn.Identity):
            return [], False
    return ([], False) if ready else (names, flattens)
