"""The layers before members part: one wide convolution for all members that see the same inputs.

A convolution from one or three channels to a few is far from what a processor can do; M of them
on the same images are one convolution to M times as many channels. The operations that follow and
keep channels apart (activations, pooling) are done on the wide result, too. From the first
operation that mixes channels on, the suffix, members run side by side as in `threads`.

Shapes: `M` members, `B` batch, `O` channels of one member after the convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polymode.core.threads import for_each_member
from polymode.stack.fast.rewrite import pool_by_2, quicken
from polymode.tracing.graph import trace
from polymode.tracing.modules import channels_to_last
from polymode.tracing.operations import function_of, operation_at

if TYPE_CHECKING:
    from polymode.stack.stack import Stack

_Step = tuple[Callable[[Tensor], Tensor], bool]  # an operation, and whether it is a pooling
_Loss = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]

_PIECE = 2**24  # bytes of the wide result at a time: larger ones leave the caches and the heap


class Prefix:
    """A network cut in two: what can be done for all members at once, and the rest.

    Attributes:
        conv: path of the first convolution. steps: what follows it and keeps channels apart.
        suffix: the rest, with the names of the whole network's parameters.
        pools: whether a step is a pooling: members' shares are copies, which pay if they are small.
    """

    def __init__(self, conv: str, module: nn.Conv2d, steps: list[_Step], suffix: nn.Module) -> None:
        self.conv, self.module, self.suffix = conv, module, suffix
        self.steps = [function for function, _ in steps]
        self.pools = any(pooling for _, pooling in steps)

    def __call__(self, stack: Stack, x: Tensor) -> Tensor:
        """Return what all members' suffixes start from, (B, M O, ...)."""
        tensors = {**stack.params, **stack.frozen}
        weight = tensors[f"{self.conv}.weight"].flatten(0, 1)
        bias = tensors.get(f"{self.conv}.bias")
        bias = None if bias is None else bias.flatten()
        conv = self.module
        row_bytes = len(weight) * x[0, 0].numel() * x.element_size()
        parts = []
        for part in x.chunk(math.ceil(len(x) * row_bytes / _PIECE)):
            h = channels_to_last(part)
            h = F.conv2d(h, weight, bias, conv.stride, conv.padding, conv.dilation)
            for step in self.steps:
                h = step(h)
            parts.append(h)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def share(self, h: Tensor, k: int) -> Tensor:
        """Return member k's channels, in memory of their own."""
        size = self.module.out_channels
        return channels_to_last(h[:, k * size : (k + 1) * size])

    def member(self, stack: Stack, k: int) -> nn.Module:
        """Return member k's suffix; it shares the stack's memory."""
        return stack.views.bound(self.suffix, k, stack.mode)


def prefix_of(stack: Stack) -> Prefix | None:
    """Return the stack's network cut in two, for its present mode, or None if it cannot be."""
    tied = {name for names in stack.network.aliases.values() if len(names) > 1 for name in names}
    what = f"prefix, gradients {torch.is_grad_enabled()}"
    return stack.network.program(what, stack.mode, lambda template: _cut(template, tied))


def _cut(template: nn.Module, tied: set[str]) -> Prefix | None:
    traced = trace(template)
    if traced is None:
        return None
    template, graph = traced
    if any(node.op == "get_attr" for node in graph.nodes):
        return None
    quicken(template, graph, gradients=torch.is_grad_enabled())
    nodes = list(graph.nodes)
    if len(nodes) < 3 or [n.op for n in nodes].count("placeholder") != 1:
        return None
    first = nodes[1]
    if first.op != "call_module" or not _is_only_user(first, nodes[0]):
        return None
    path = str(first.target)
    conv = template.get_submodule(path)
    if type(conv) is not nn.Conv2d or conv.groups != 1 or conv.padding_mode != "zeros":
        return None
    if any(node.target == first.target for node in nodes[2:]):
        return None
    if {f"{path}.weight", f"{path}.bias"} & tied:
        return None
    cut, steps = first, []
    for node in nodes[2:]:
        step = _channelwise(node, template) if _is_only_user(node, cut) else None
        if step is None:
            break
        steps.append(step)
        cut = node
    return Prefix(path, conv, steps, _suffix(template, graph, nodes, cut))


def _is_only_user(node: fx.Node, source: fx.Node) -> bool:
    return list(source.users) == [node] and node.args[:1] == (source,)


def _channelwise(node: fx.Node, template: nn.Module) -> _Step | None:
    """Return an operation that treats every channel alike and by itself, or None."""
    args, kwargs = node.args[1:], dict(node.kwargs)
    if any(isinstance(value, fx.Node) for value in (*args, *kwargs.values())):
        return None
    operation = operation_at(node, template)
    by_channel = operation is not None and operation.channelwise and not operation.in_place
    if node.target is not pool_by_2 and not by_channel:
        return None
    function = function_of(node, template)
    if getattr(function, "return_indices", False) or kwargs.get("return_indices"):
        return None
    pooling = operation is None or operation.kind == "pooling"
    return lambda h: function(h, *args, **kwargs), pooling


def _suffix(template: nn.Module, graph: fx.Graph, nodes: list[fx.Node], cut: fx.Node) -> nn.Module:
    """Return what comes after `cut` as a module of its own."""
    suffix = fx.Graph()
    values: dict[fx.Node, fx.Node] = {cut: suffix.placeholder("h")}
    for node in nodes[nodes.index(cut) + 1 :]:
        values[node] = suffix.node_copy(node, lambda old: values[old])
    return fx.GraphModule(template, suffix)


def wide_outputs(stack: Stack, prefix: Prefix, x: Tensor) -> Tensor:
    """Return the outputs of all members (M, B, ...), without gradients."""
    h = prefix(stack, x)
    results: list[Any] = [None] * stack.num_modes
    for k in range(stack.num_modes):
        prefix.member(stack, k)  # built here: building is not for several threads

    def work(k: int) -> None:
        results[k] = prefix.member(stack, k)(prefix.share(h, k))

    for_each_member(stack.num_modes, work)
    return torch.stack(results)


def wide_graph(stack: Stack, prefix: Prefix, x: Tensor) -> Tensor:
    """Return the same with the graph back to x, for parameters that are not differentiated.

    Backward, too, the convolution is one: it adds up what members ask of the inputs they share.
    """
    shares = prefix(stack, x).split(prefix.module.out_channels, 1)
    suffixes = (prefix.member(stack, k) for k in range(stack.num_modes))
    return torch.stack(
        [f(channels_to_last(share)) for f, share in zip(suffixes, shares, strict=True)]
    )


def wide_gradients(
    stack: Stack, prefix: Prefix, loss: _Loss, x: Tensor, y: Tensor, buffers: list[list[Tensor]]
) -> Tensor:
    """Write members' gradients to their `buffers`, in the order of `leaves()`; return losses (M,).

    Forward through the prefix once; forward and backward through each member's suffix, down to the
    gradient with respect to its share; backward through the prefix once.
    """
    names = [*stack.params, *(f"extra {name}" for name in stack.extra)]
    early = [n for n in (f"{prefix.conv}.weight", f"{prefix.conv}.bias") if n in stack.params]
    late = [index for index, name in enumerate(names) if name not in early]
    h = prefix(stack, x)
    below = torch.empty_like(h) if early else None
    losses: list[Any] = [None] * stack.num_modes
    size = prefix.module.out_channels
    for k in range(stack.num_modes):
        prefix.member(stack, k)

    def work(k: int) -> None:
        share = prefix.share(h.detach(), k).requires_grad_(below is not None)
        extra = stack.extra_of(k)
        value = loss(prefix.member(stack, k)(share), y, extra)
        losses[k] = value.detach()
        inputs = [stack.leaf_views(k)[index] for index in late] + [share] * (below is not None)
        grads = list(torch.autograd.grad(value, inputs, materialize_grads=True))
        if below is not None:
            below[:, k * size : (k + 1) * size] = grads.pop()
        torch._foreach_copy_([buffers[k][index] for index in late], grads)

    for_each_member(stack.num_modes, work)
    if below is not None:
        leaves = [stack.params[name] for name in early]
        for leaf, grad in zip(leaves, torch.autograd.grad(h, leaves, below), strict=True):
            assert leaf.grad is not None
            leaf.grad.copy_(grad)
    return torch.stack(losses)
