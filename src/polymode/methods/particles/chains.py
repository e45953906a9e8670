"""Repelled gradients of chains of layers that are piecewise linear, without autograd.

Linear layers, convolutions, ReLUs and max-pooling, one after the other: at one input such a network
is a product of weights W_l and masks D_l of zeros and ones (a ReLU's, and the places where
max-pooling takes its values):

    h_l = D_l (W_l h_{l−1} + b_l),  h_0 = x       activations, upwards
    g_l = D_l W_{l+1}ᵀ g_{l+1}                    gradients of the scalar, downwards;  J = W_1ᵀ g_1
    δ_l = D_l W_{l+1}ᵀ δ_{l+1}                    gradients of the losses, downwards
    t_l = D_l W_l t_{l−1},          t_0 = C       tangents of the cotangent C of J, upwards

The gradient of loss + ⟨C, J⟩ by W_l is δ_l h_{l−1}ᵀ + g_l t_{l−1}ᵀ, that by b_l the sum of δ_l.
Where only some of the inputs repel, g and t have fewer columns. The scalar must be linear in the
outputs: then its gradient by them, g of the last layer, is known.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from torch import Tensor, fx, nn

from polymode.core.layers import is_flatten, is_kind, is_relu
from polymode.core.stack import Stack
from polymode.core.trace import trace
from polymode.methods.particles.dense_chains import DenseChain
from polymode.methods.particles.layers import (
    Convolution,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    ReLU,
    Weighted,
    convolution,
    linear,
    pooling,
)
from polymode.methods.particles.member_chains import MemberChain


def dense_chain(stack: Stack, x: Tensor) -> DenseChain | None:
    """Return all members as a chain for inputs (B, ...); None if there is more to them than linear
    layers with a ReLU between each two."""
    layers = _layers_of(stack)
    flattens = isinstance(next(iter(layers), None), Flatten)
    rest = layers[1:] if flattens else layers
    names = [(a.weight, a.bias) for a in rest[::2] if isinstance(a, Linear) and a.bias is not None]
    relus = [a for a in rest[1::2] if isinstance(a, ReLU)]
    alternate = len(names) == len(relus) + 1 and len(names) + len(relus) == len(rest)
    if not alternate or not (flattens or x.dim() == 2):
        return None
    return DenseChain({name: leaf.detach() for name, leaf in stack.params.items()}, names)


def member_chain(stack: Stack, k: int, x: Tensor) -> MemberChain | None:
    """Return member k as a chain for inputs (B, ...), or None if it is none."""
    layers = _layers_of(stack)
    images = layers and not isinstance(layers[0], Linear | Flatten)
    if not layers or (images and x.dim() != 4) or (isinstance(layers[0], Linear) and x.dim() != 2):
        return None
    views = zip(stack.params, stack.leaf_views(k), strict=True)
    return MemberChain({name: leaf.detach() for name, leaf in views}, layers)


def _layers_of(stack: Stack) -> list[Layer]:
    """Return the layers of the networks for the present mode, none if they are no chain."""
    if stack.members_differ or stack.extra or stack.network.second_names:
        return []
    names = sorted(stack.params)
    return stack.network.program("chain", stack.mode, lambda module: _chain(module, names))


def _chain(module: nn.Module, names: list[str]) -> list[Layer]:
    traced = trace(module)
    layers = None if traced is None else _layers(*traced)
    used = [n for a in layers or [] if isinstance(a, Weighted) for n in (a.weight, a.bias)]
    return _quickened(layers) if layers and sorted(filter(None, used)) == names else []


def _layers(module: nn.Module, graph: fx.Graph) -> list[Layer] | None:
    """Return the layers, or None if there is more to the network."""
    layers: list[Layer] = []
    nodes = [node for node in graph.nodes if node.op != "placeholder" or not node.args]
    for previous, node in pairwise(nodes):
        if node.all_input_nodes != [previous]:
            return None
        if node.op == "output" or is_kind(node, module, nn.Identity):
            continue
        layer = _layer(node, module)
        if layer is None or not _fits(layer, layers):
            return None
        layers.append(layer)
    return layers


def _layer(node: fx.Node, module: nn.Module) -> Layer | None:
    """Return what a step of the network is, or None if it is not known."""
    if is_relu(node, module):
        return ReLU()
    if is_flatten(node, module):
        return Flatten()
    if node.op != "call_module":
        return None
    path = str(node.target)
    called = module.get_submodule(path)
    if type(called) is nn.Linear:
        return linear(path, called)
    if type(called) is nn.Conv2d:
        return convolution(path, called)
    return pooling(called) if type(called) is nn.MaxPool2d else None


def _fits(layer: Layer, before: list[Layer]) -> bool:
    """Whether a layer may follow those before it: linear layers take features, not the last axis of
    images, and ReLUs work in place, so not on the inputs."""
    if isinstance(layer, Linear):
        return not before or any(isinstance(a, Linear | Flatten) for a in before)
    if isinstance(layer, ReLU | MaxPool):
        return any(isinstance(a, Weighted) for a in before)
    return True


def _quickened(layers: list[Layer]) -> list[Layer]:
    """Return layers that do the same in less time.

    Max-pooling before a ReLU instead of after it has fewer numbers; convolutions to few channels
    give blocks to a max-pooling by 2; what follows the first layer goes as that wants its gradient.
    """
    found = list(layers)
    for k in range(1, len(found)):
        if isinstance(found[k], MaxPool) and isinstance(found[k - 1], ReLU):
            found[k - 1 : k + 1] = found[k], found[k - 1]
    for k, (layer, after) in enumerate(pairwise(found)):
        if isinstance(layer, Convolution) and isinstance(after, MaxPool) and after.halves:
            found[k] = replace(layer, blocks=True)
    for k in range(1, len(found)):
        layer = found[k]
        if not isinstance(layer, ReLU | MaxPool):
            break
        found[k] = replace(layer, plain=True)
    return found
