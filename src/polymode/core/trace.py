"""The graph of a network, and the same network in fewer passes over memory.

Some rewritings change no bit of outputs or gradients: max-pooling before a ReLU instead of after it
(the largest value of a window stays the largest, and a ReLU of a quarter of the values costs a
quarter); a sum, or a ReLU, in place where nobody else sees its input, and the gradient of a ReLU in
place where nobody else sees the gradient that arrives. Where no gradients are wanted, max-pooling
by 2 of channels_last maps is two maxima of slices, without indices. Shortcuts of residual blocks
(`core/strided.py`) have their gradients in another order of additions.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from polymode.core.modules import assign
from polymode.core.strided import pair_shortcuts

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
        if is_kind(node, module, nn.MaxPool2d) and is_relu(source, module) and _only_source(source):
            relu = source
            node.replace_all_uses_with(relu)
            node.args, relu.args = (relu.args[0],), (node, *relu.args[1:])
            node.append(relu)
            changed = True
    for node in list(graph.nodes):
        source = _only_source(node)
        if source is not None and is_relu(node, module) and _makes_memory(source, module):
            own = gradients and _gradient_is_own(node, module)
            if own:
                _replace(graph, node, relu_in_place, source)
            else:
                _replace(graph, node, F.relu, source, inplace=True)
            changed = True
        elif _is_sum(node):
            spare = [a for a in node.args if list(a.users) == [node] and _makes_memory(a, module)]
            if spare:
                other = node.args[1] if spare[0] is node.args[0] else node.args[0]
                _replace(graph, node, add_in_place, spare[0], other)
                changed = True
        elif not gradients and is_kind(node, module, nn.MaxPool2d):
            if _halves(module.get_submodule(str(node.target))):
                _replace(graph, node, pool_by_2, node.args[0])
                changed = True
    return gradients and pair_shortcuts(module, graph) or changed


def _replace(
    graph: fx.Graph, node: fx.Node, function: Callable[..., Tensor], *args: Any, **named: Any
) -> None:
    with graph.inserting_before(node):
        node.replace_all_uses_with(graph.call_function(function, args, named))
    graph.erase_node(node)


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    """Return `a + b`, in the memory of `a` where the result has its shape and type."""
    return a.add_(b) if a.shape == b.shape and a.dtype == b.dtype else a + b


def relu_in_place(x: Tensor) -> Tensor:
    """Return ReLU(x) in the memory of x; its gradient takes that of the gradient that arrives."""
    if has_torch_function_unary(x):  # or a mode is active, which may know better
        return handle_torch_function(relu_in_place, (x,), x)
    result: Tensor = _ReluInPlace.apply(x)  # type: ignore[no-untyped-call]
    return result


class _ReluInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.relu_())
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            return grad * (out > 0)
        if grad.stride() != out.stride():  # expanded, or in another layout: slow in one pass
            grad = torch.empty_like(out).copy_(grad)
        return torch.ops.aten.threshold_backward.grad_input(grad, out, 0, grad_input=grad)


def pool_by_2(x: Tensor) -> Tensor:
    """Return `F.max_pool2d(x, 2)`, without indices where the format allows it."""
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return F.max_pool2d(x, 2)
    rows, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = torch.maximum(x[:, :, 0:rows:2], x[:, :, 1:rows:2])
    return torch.maximum(x[..., 0:columns:2], x[..., 1:columns:2])


def _bind(module: nn.Module, stack: Stack, k: int) -> nn.Module:
    """Return a copy of a traced module (or of a part of it) with the tensors of member k."""
    bound = _share(module)
    whole = stack.module(k)
    named: dict[str, Tensor] = dict(whole.named_parameters(remove_duplicate=False))
    named |= dict(whole.named_buffers(remove_duplicate=False))
    held = [name for name, _ in bound.named_parameters(remove_duplicate=False)]
    held += [name for name, _ in bound.named_buffers(remove_duplicate=False)]
    for name in held:
        assign(bound, name, named[name])
    return bound


def _share(module: nn.Module) -> nn.Module:
    """Return a copy with places for tensors of its own; all else is the same objects.

    A deep copy would take longer than a step of a small network; traced modules have no state but
    tensors (see `trace`).
    """
    shared = object.__new__(type(module))
    shared.__dict__.update(module.__dict__)
    for group in ("_parameters", "_buffers", "_modules"):
        shared.__dict__[group] = dict(module.__dict__[group])
    for name, child in module._modules.items():
        shared._modules[name] = None if child is None else _share(child)
    return shared


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


def is_kind(node: fx.Node, module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the node calls a module of this class, no subclass."""
    return node.op == "call_module" and type(module.get_submodule(str(node.target))) is kind


def is_relu(node: fx.Node, module: nn.Module) -> bool:
    """Whether the node is a ReLU, module or function."""
    function = node.op == "call_function" and node.target in _RELUS
    return function or is_kind(node, module, nn.ReLU)


def is_flatten(node: fx.Node, module: nn.Module) -> bool:
    """Whether the node flattens all dimensions of an example into one."""
    if is_kind(node, module, nn.Flatten):
        flatten = module.get_submodule(str(node.target))
        return (flatten.start_dim, flatten.end_dim) == (1, -1)
    if node.op == "call_module" or node.target not in (torch.flatten, "flatten"):
        return False
    return (*node.args[1:], *node.kwargs.items()) in ((1,), (("start_dim", 1),))


def _is_sum(node: fx.Node) -> bool:
    added = node.op == "call_function" and node.target is operator.add
    terms = {a for a in node.args if isinstance(a, fx.Node)}
    return added and len(terms) == 2


def _makes_memory(node: fx.Node, module: nn.Module) -> bool:
    """Whether the result is a tensor of its own that its backward pass does not look at."""
    return _is_sum(node) or node.target is add_in_place or _is_fresh(node, module)


def _is_fresh(node: fx.Node, module: nn.Module) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), _FRESH)


def _gradient_is_own(node: fx.Node, module: nn.Module) -> bool:
    """Whether the gradient that arrives at the node is a tensor that nothing else holds.

    A sum hands one and the same gradient to all its terms; layers make theirs, and what autograd
    adds up for a node with several users is new unless all of them are sums.
    """
    if any(user.op == "output" for user in node.users):
        return False
    return any(_is_fresh(user, module) for user in node.users)


def _halves(pool: nn.Module) -> bool:
    assert isinstance(pool, nn.MaxPool2d)
    facts = pool.kernel_size, pool.stride, pool.padding, pool.dilation
    plain = not (pool.ceil_mode or pool.return_indices)
    return plain and all(_one(f) == n for f, n in zip(facts, (2, 2, 0, 1), strict=True))


def _one(value: Any) -> Any:
    """Return the number that stands for both sides, or the pair itself."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
