"""The same network in fewer passes over memory.

Two rewritings, neither of which changes a bit of outputs or gradients: max-pooling before a ReLU
instead of after it (the largest value of a window stays the largest, and a ReLU of a quarter of the
values costs a quarter); and, where no gradients are wanted, max-pooling by 2 of channels_last maps
as two maxima of slices, without indices, and ReLUs in the memory of a layer's result.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polymode.tracing.graph import trace
from polymode.tracing.operations import called, is_kind, is_relu


def quicken(module: nn.Module, graph: fx.Graph, *, gradients: bool) -> bool:
    """Rewrite the graph of `module` in place, see above; return whether anything has changed."""
    changed = False
    for node in list(graph.nodes):
        relu = _only_source(node)
        if relu is None or not is_kind(node, module, nn.MaxPool2d):
            continue
        if is_relu(relu, module) and _only_source(relu):
            node.replace_all_uses_with(relu)
            node.args, relu.args = (relu.args[0],), (node, *relu.args[1:])
            node.append(relu)
            changed = True
        if not gradients and _halves(module.get_submodule(str(node.target))):
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.call_function(pool_by_2, (node.args[0],)))
            graph.erase_node(node)
            changed = True
    if not gradients:
        for node in list(graph.nodes):
            source = _only_source(node)
            if source is not None and is_relu(node, module) and _is_fresh(source, module):
                with graph.inserting_before(node):
                    in_place = graph.call_function(F.relu, (source,), {"inplace": True})
                node.replace_all_uses_with(in_place)
                graph.erase_node(node)
                changed = True
    return changed


def _is_fresh(node: fx.Node, module: nn.Module) -> bool:
    """Whether the result is a tensor that nothing else holds."""
    return called(node, module) in _FRESH


def quick_module(template: nn.Module, *, gradients: bool) -> nn.Module | None:
    """Return the network in its quick form, or None where that is not faster."""
    traced = trace(template)
    if traced is None:
        return None
    module, graph = traced
    reads = any(node.op == "get_attr" for node in graph.nodes)  # may read what a pass changes
    if reads or not quicken(module, graph, gradients=gradients):
        return None
    graph.lint()
    return fx.GraphModule(module, graph)


def pool_by_2(x: Tensor) -> Tensor:
    """Return `F.max_pool2d(x, 2)`, without indices where the format allows it."""
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return F.max_pool2d(x, 2)
    rows, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = torch.maximum(x[:, :, 0:rows:2], x[:, :, 1:rows:2])
    return torch.maximum(x[..., 0:columns:2], x[..., 1:columns:2])


_FRESH = {nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d, nn.MaxPool2d, pool_by_2}


def _only_source(node: fx.Node) -> fx.Node | None:
    """Return the node whose result `node` alone takes, as its first argument."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or list(source.users) != [node]:
        return None
    return source


def _halves(pool: nn.Module) -> bool:
    assert isinstance(pool, nn.MaxPool2d)
    facts = pool.kernel_size, pool.stride, pool.padding, pool.dilation
    plain = not (pool.ceil_mode or pool.return_indices)
    return plain and all(_one(f) == n for f, n in zip(facts, (2, 2, 0, 1), strict=True))


def _one(value: Any) -> Any:
    """Return the number that stands for both sides, or the pair itself."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
