"""A strided convolution and the shortcut beside it, a 1x1 convolution with the same stride.

Residual blocks that halve their images begin with both. The shortcut sees every second pixel of
every second row. Its gradient by the input is computed for these pixels alone and added to the
other one's in place, where autograd fills an image with zeros for it and adds that.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def strided_pair(
    x: Tensor, weight: Tensor, shortcut: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """Return both convolutions of x; `geometry`: stride, padding and dilation of the first."""
    if has_torch_function_unary(x):  # or a mode is active, which may know better
        return handle_torch_function(strided_pair, (x,), x, weight, shortcut, geometry)
    result: tuple[Tensor, Tensor] = _Pair.apply(x, weight, shortcut, geometry)  # type: ignore[no-untyped-call]
    return result


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, shortcut: Tensor, geometry: Geometry
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight, shortcut)
        ctx.geometry = geometry
        return F.conv2d(x, weight, None, *geometry), F.conv2d(x, shortcut, None, geometry[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, of_shortcut: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, shortcut = ctx.saved_tensors
        of_input, *others = ctx.needs_input_grad[:3]
        stride = ctx.geometry[0]
        by_x, by_weight = _gradients(grad, x, weight, ctx.geometry, [of_input, others[0]])
        plain = stride, (0, 0), (1, 1)
        by_shortcut = _gradients(of_shortcut, x, shortcut, plain, [False, others[1]])[1]
        if by_x is not None:
            seen = F.conv2d(of_shortcut, shortcut.transpose(0, 1))
            if torch.is_grad_enabled():  # a graph of the gradient is wanted
                by_x = by_x.clone()
            by_x[:, :, :: stride[0], :: stride[1]] += seen
        return by_x, by_weight, by_shortcut, None


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: list[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of a convolution by input and weights, as far as they are wanted."""
    by_x, by_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, *geometry, False, (0, 0), 1, [*wanted, False]
    )
    return (by_x if wanted[0] else None), (by_weight if wanted[1] else None)


def pair_shortcuts(module: nn.Module, graph: fx.Graph) -> bool:
    """Rewrite such pairs in the graph of `module` in place; return whether there are any."""
    pairs = list(_pairs(module, graph))
    for first, shortcut in pairs:
        conv: Any = module.get_submodule(str(first.target))
        geometry = conv.stride, conv.padding, conv.dilation
        with graph.inserting_before(min(first, shortcut)):
            weights = [graph.get_attr(f"{node.target}.weight") for node in (first, shortcut)]
            pair = graph.call_function(strided_pair, (first.args[0], *weights, geometry))
            results = [graph.call_function(operator.getitem, (pair, k)) for k in (0, 1)]
        for node, result in zip((first, shortcut), results, strict=True):
            node.replace_all_uses_with(result)
            graph.erase_node(node)
    return bool(pairs)


def _pairs(module: nn.Module, graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    for source in graph.nodes:
        users = [user for user in source.users if _is_plain_conv(user, module)]
        if len(users) != 2:
            continue
        first, shortcut = users if _is_shortcut(users[1], module) else users[::-1]
        if not _is_shortcut(shortcut, module) or _is_shortcut(first, module):
            continue
        convs = [module.get_submodule(str(node.target)) for node in (first, shortcut)]
        if convs[0].stride == convs[1].stride:
            yield first, shortcut


def _is_plain_conv(node: fx.Node, module: nn.Module) -> bool:
    """Whether it is a call of a convolution without bias, groups or a padding that is not zeros."""
    conv = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(conv) is not nn.Conv2d or len(node.args) != 1 or node.kwargs:
        return False
    plain = conv.groups == 1 and conv.bias is None and conv.padding_mode == "zeros"
    return plain and not isinstance(conv.padding, str)


def _is_shortcut(node: fx.Node, module: nn.Module) -> bool:
    conv = module.get_submodule(str(node.target))
    assert isinstance(conv, nn.Conv2d)
    sizes = conv.kernel_size, conv.padding
    return sizes == ((1, 1), (0, 0)) and max(conv.stride) > 1
