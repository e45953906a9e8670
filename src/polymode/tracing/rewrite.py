"""The graph of a network, and the same network in fewer passes over memory.

Two rewritings, neither of which changes a bit of outputs or gradients: max-pooling before a ReLU
instead of after it (the largest value of a window stays the largest, and a ReLU of a quarter of the
values costs a quarter); and, where no gradients are wanted, max-pooling by 2 of channels_last maps
as two maxima of slices, without indices, and ReLUs in the memory of a layer's result.
"""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polymode.tracing.graph import reached_by, traced
from polymode.tracing.noise import NoDraws
from polymode.tracing.operations import PLAIN, called, is_kind, is_relu


def trace(template: nn.Module) -> tuple[nn.Module, fx.Graph] | None:
    """Return a copy of the network with its graph for its present mode, or None if it has none.

    Networks with hooks, with Python code that depends on values, or whose forward pass changes
    plain attributes or draws from Python's or NumPy's global streams have no graph; neither have
    those that draw noise whatever the inputs: in a graph it would be drawn once and for all.
    """
    if any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in template.modules()
    ):
        return None
    before, streams = _state(template), _global_streams()
    try:
        with NoDraws():
            module, graph = traced(template, _runs_for_all)
            if _global_streams() != streams and _draws_globally(template):
                return None
    except Exception:  # fx has no one kind of error for what it cannot do
        return None
    return (module, graph) if _state(module) == before else None


def _runs_for_all(module: nn.Module) -> bool:
    """Layers that know how to run for all members are one step, see `stack/fast/dense.py`."""
    return hasattr(module, "for_all_members")


def _state(module: nn.Module) -> dict[str, Any]:
    """What a forward pass might change without torch knowing."""
    return {
        f"{path}.{key}": value
        for path, sub in module.named_modules()
        for key, value in vars(sub).items()
        if isinstance(value, PLAIN)
    }


def _global_streams() -> tuple[Any, ...]:
    """Where Python's and NumPy's global streams are."""
    numpy: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return random.getstate(), numpy["pos"], numpy["key"].tobytes()


def _draws_globally(template: nn.Module) -> bool:
    """Whether a forward pass draws from those streams itself: another thread may have done so.

    It does if its code names them. Otherwise it is traced again: a stream that stays where it is
    once tells that it does not, and streams that move only while it is traced that it does.
    """
    if any(
        name == "random" or isinstance(getattr(value, "__self__", None), _GLOBAL)
        for name, value in reached_by(template)
    ):
        return True
    still = 0
    for _ in range(_ATTEMPTS):
        before, start = _global_streams(), time.perf_counter()
        traced(template, _runs_for_all)
        if _global_streams() == before:
            return False
        before, taken = _global_streams(), time.perf_counter() - start
        time.sleep(taken)
        still += _global_streams() == before
    return still > _ATTEMPTS / 2


_GLOBAL = (random.Random, np.random.RandomState)
_ATTEMPTS = 16  # traces: a thread that draws now and then moves all of them, but no pause, once in
# 10^4 at most


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
