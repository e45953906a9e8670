"""The graph of a network, and the same network in fewer passes over memory.

Two rewritings change no bit of outputs or gradients: max-pooling before a ReLU instead of after it
(the largest value of a window stays the largest, and a ReLU of a quarter of the values costs a
quarter), and a ReLU in place where nobody else sees its input. Where no gradients are wanted,
max-pooling by 2 of channels_last maps is two maxima of slices, without indices.
"""

from __future__ import annotations

import copy
import operator
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polymode.core.modules import assign

if TYPE_CHECKING:
    from polymode.core.stack import Stack

PLAIN = (int, float, bool, str, type(None))
_FRESH = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d, nn.MaxPool2d, nn.AvgPool2d)
_RELUS = (F.relu, torch.relu)


def trace(template: nn.Module) -> tuple[nn.Module, fx.Graph] | None:
    """Return a copy of the network with its graph for the present mode, or None if it has none.

    Networks with hooks, with Python code that depends on values, or whose forward pass changes
    plain attributes or draws from Python's or NumPy's global streams have no graph.
    """
    module = copy.deepcopy(template)  # tracing runs the forward method, which may leave traces
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in module.modules()):
        return None
    before = _state(module)
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # fx has no one kind of error for what it cannot do
        return None
    return (module, graph) if _state(module) == before else None


def _state(module: nn.Module) -> tuple[Any, ...]:
    """What a forward pass might change without torch knowing."""
    plain = {
        f"{path}.{key}": value
        for path, sub in module.named_modules()
        for key, value in vars(sub).items()
        if isinstance(value, PLAIN)
    }
    numpy: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return plain, random.getstate(), numpy["pos"], numpy["key"].tobytes()


def quicken(module: nn.Module, graph: fx.Graph, *, gradients: bool) -> bool:
    """Rewrite the graph of `module` in place, see above; return whether anything has changed."""
    changed = False
    for node in list(graph.nodes):
        source = _only_source(node)
        if source is None:
            continue
        if _is(node, module, nn.MaxPool2d) and _is_relu(source, module) and _only_source(source):
            relu = source
            node.replace_all_uses_with(relu)
            node.args, relu.args = (relu.args[0],), (node, *relu.args[1:])
            node.append(relu)
            changed = True
    for node in list(graph.nodes):
        source = _only_source(node)
        if source is not None and _is_relu(node, module) and _makes_memory(source, module):
            with graph.inserting_before(node):
                inplace = graph.call_function(F.relu, (source,), {"inplace": True})
            node.replace_all_uses_with(inplace)
            graph.erase_node(node)
            changed = True
        elif not gradients and _is(node, module, nn.MaxPool2d):
            pool = module.get_submodule(str(node.target))
            if _halves(pool):
                with graph.inserting_before(node):
                    quick = graph.call_function(pool_by_2, (node.args[0],))
                node.replace_all_uses_with(quick)
                graph.erase_node(node)
                changed = True
    return changed


def pool_by_2(x: Tensor) -> Tensor:
    """Return `F.max_pool2d(x, 2)`, without indices where the format allows it."""
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return F.max_pool2d(x, 2)
    rows, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = torch.maximum(x[:, :, 0:rows:2], x[:, :, 1:rows:2])
    return torch.maximum(x[..., 0:columns:2], x[..., 1:columns:2])


def _bind(module: nn.Module, stack: Stack, k: int) -> nn.Module:
    """Return a copy of a traced module (or of a part of it) with the tensors of member k."""
    bound = copy.deepcopy(module)
    whole = stack.module(k)
    named: dict[str, Tensor] = dict(whole.named_parameters(remove_duplicate=False))
    named |= dict(whole.named_buffers(remove_duplicate=False))
    held = [name for name, _ in bound.named_parameters(remove_duplicate=False)]
    held += [name for name, _ in bound.named_buffers(remove_duplicate=False)]
    for name in held:
        assign(bound, name, named[name])
    return bound


class Bound:
    """The members of a stack in one traced form, whole or in part: one graph for all."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._members: dict[int, nn.Module] = {}

    def member(self, stack: Stack, k: int) -> nn.Module:
        """Return member k; it shares the stack's memory."""
        if k not in self._members:
            self._members[k] = _bind(self._module, stack, k)
        return self._members[k]


def quick_of(stack: Stack) -> Bound | None:
    """Return the stack's members in quick form, or None where that is no quicker."""
    traced = None if stack._apart else trace(stack.template)
    if traced is None:
        return None
    module, graph = traced
    reads = any(node.op == "get_attr" for node in graph.nodes)  # may read what a pass changes
    if reads or not quicken(module, graph, gradients=torch.is_grad_enabled()):
        return None
    graph.lint()
    return Bound(fx.GraphModule(module, graph).train(module.training))


def _only_source(node: fx.Node) -> fx.Node | None:
    """Return the node whose result `node` alone takes, as its first argument."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or list(source.users) != [node]:
        return None
    return source


def _is(node: fx.Node, module: nn.Module, kind: type[nn.Module]) -> bool:
    return node.op == "call_module" and type(module.get_submodule(str(node.target))) is kind


def _is_relu(node: fx.Node, module: nn.Module) -> bool:
    function = node.op == "call_function" and node.target in _RELUS
    return function or _is(node, module, nn.ReLU)


def _makes_memory(node: fx.Node, module: nn.Module) -> bool:
    """Whether the result is a tensor of its own that its backward pass does not look at."""
    if node.op == "call_function":
        return node.target is operator.add and all(isinstance(a, fx.Node) for a in node.args)
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), _FRESH)


def _halves(pool: nn.Module) -> bool:
    assert isinstance(pool, nn.MaxPool2d)
    facts = pool.kernel_size, pool.stride, pool.padding, pool.dilation
    plain = not (pool.ceil_mode or pool.return_indices)
    return plain and all(_one(f) == n for f, n in zip(facts, (2, 2, 0, 1), strict=True))


def _one(value: Any) -> Any:
    """Return the number that stands for both sides, or the pair itself."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
