"""Which operations of a traced network are known, by what they do to the axes of their input.

The one table: batched products (`stack/fast/dense.py`), wide first convolutions
(`stack/fast/prefix.py`) and the rewriting of graphs (`tracing/rewrite.py`) all read it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

PLAIN = (int, float, bool, str, type(None))

# Every entry of the result depends on the same entry of the input.
ELEMENTWISE: frozenset[Any] = frozenset((
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.LeakyReLU, nn.Softplus,
    nn.Hardtanh, nn.ReLU6, nn.Mish, nn.Hardswish, nn.Softsign, nn.Identity, nn.Dropout,
    F.relu, torch.relu, torch.tanh, F.tanh, torch.sigmoid, F.sigmoid, F.gelu, F.silu, F.elu, F.selu,
    F.leaky_relu, F.softplus, F.dropout, torch.sin, torch.cos, torch.exp, torch.square, torch.abs,
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, torch.add, torch.sub,
    torch.mul, torch.div,
    "relu", "tanh", "sigmoid", "exp", "sin", "cos", "square", "abs", "add", "mul",
))  # fmt: skip
# Every channel of the result depends on the same channel of an image.
CHANNELWISE: frozenset[Any] = ELEMENTWISE | {nn.MaxPool2d, nn.AvgPool2d, F.avg_pool2d}
RELU: frozenset[Any] = frozenset((nn.ReLU, F.relu, torch.relu))


def repeat_rows(x: Tensor, times: int, axis: int = 0) -> Tensor:
    """Return `times` copies of the rows, one copy of all behind another; a new tensor.

    >>> repeat_rows(torch.tensor([[1], [2]]), 2).flatten().tolist()
    [1, 2, 1, 2]
    """
    if isinstance(x, fx.Proxy):  # one step of a graph that is traced again
        arguments = (x, times) if axis == 0 else (x, times, axis)
        return x.tracer.create_proxy("call_function", repeat_rows, arguments, {})  # type: ignore[return-value]
    ones = [1] * x.dim()
    ones[axis] = times
    return x.repeat(ones)


def called(node: fx.Node, module: nn.Module) -> Any:
    """Return what a node calls: a module's class, a function, or a method's name."""
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target)))
    return node.target if node.op in ("call_function", "call_method") else None


def function_of(node: fx.Node, module: nn.Module) -> Callable[..., Any]:
    """Return the function that a node calls."""
    if node.op == "call_module":
        return module.get_submodule(str(node.target))
    if node.op == "call_method":
        method: Callable[..., Any] = getattr(Tensor, str(node.target))
        return method
    assert callable(node.target)
    return node.target


def is_kind(node: fx.Node, module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the node calls a module of this class, not of a subclass."""
    return called(node, module) is kind


def is_relu(node: fx.Node, module: nn.Module) -> bool:
    """Whether the node is a ReLU, module or function."""
    return called(node, module) in RELU


def is_flatten(node: fx.Node, module: nn.Module) -> bool:
    """Whether the node flattens all dimensions of an example into one."""
    if is_kind(node, module, nn.Flatten):
        flatten = module.get_submodule(str(node.target))
        return (flatten.start_dim, flatten.end_dim) == (1, -1)
    if node.op == "call_module" or node.target not in (torch.flatten, "flatten"):
        return False
    return (*node.args[1:], *node.kwargs.items()) in ((1,), (("start_dim", 1),))
