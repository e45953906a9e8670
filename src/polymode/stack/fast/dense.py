"""Small dense networks, all members at once, as batched matrix products.

`torch.func.vmap` runs any network for all members together, but pays for its generality at every
operation. Networks made of linear layers, activations, normalisation, dropout, sums and products
are common enough, and small enough, to be worth a way of their own: the forward method is traced
once (`torch.fx`) and each step of it is replaced by one that carries the member axis, a linear
layer by a single `baddbmm`.

A layer of another kind takes part if it has a method `for_all_members(tensors, x)`: from its own
parameters by name, (M, ...) each, and inputs (M, B, ...) to outputs (M, B, ...).

`dense_forward` returns None for every network with a step it does not know; the caller then takes
`vmap`.
Shapes: `M` members, `B` batch, `H` features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from polymode.tracing.graph import trace
from polymode.tracing.operations import (
    PLAIN,
    function_of,
    is_flatten,
    operation_at,
    repeat_rows,
)

if TYPE_CHECKING:
    from polymode.stack.stack import Stack

Tensors = dict[str, Tensor]
Forward = Callable[[Tensors, Tensor], Tensor]


def dense_program(stack: Stack) -> Forward | None:
    """Return the forward pass of all members as batched products, or None where there is none."""
    return stack.network.program("dense", stack.mode, dense_forward)


def dense_forward(template: nn.Module) -> Forward | None:
    """Return `f(tensors, x) -> outputs` for all members, or None if a step is not known.

    `tensors` holds parameters and buffers by name, each (M, ...); `x` is (M, B, ...), outputs
    likewise. The trace belongs to the template's present mode (training or evaluation).
    """
    traced = trace(template)
    if traced is None:  # it goes through vmap
        return None
    template, graph = traced
    steps: list[tuple[str, _Step]] = []
    for node in graph.nodes:
        if node.op == "placeholder" and not steps:
            steps.append((node.name, lambda run: run[""]))
            continue
        if node.op == "placeholder" and node.args:  # a further argument, left at its default
            continue
        step = _compile(node, template)
        if step is None:
            return None
        steps.append((node.name, step))

    def forward(tensors: Tensors, x: Tensor) -> Tensor:
        run: dict[str, Any] = {"": x, "tensors": tensors}
        value = x
        for name, step in steps:
            run[name] = value = step(run)
        return value

    return forward


_Step = Callable[
    [dict[str, Any]], Any
]  # from the values so far (by node name) to this node's value


def _compile(node: fx.Node, template: nn.Module) -> _Step | None:
    """Return what evaluates one node of the trace, or None if it is not known."""
    target = node.target
    if node.op == "output" and isinstance(node.args[0], fx.Node):
        source = node.args[0].name
        return lambda run: run[source]
    if is_flatten(node, template):
        source = _name(node.args[0])
        return lambda run: run[source].flatten(2)
    if target is repeat_rows:
        source, times = _name(node.args[0]), node.args[1]
        assert isinstance(times, int)
        return lambda run: repeat_rows(run[source], times, axis=1)
    operation = operation_at(node, template)
    if operation is not None and operation.entrywise and not operation.in_place:
        return _elementwise_step(node, function_of(node, template))
    if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        assert isinstance(target, str)
        return _module_step(target, template.get_submodule(target), node.args[0])
    return None


def _name(argument: Any) -> str:
    assert isinstance(argument, fx.Node)
    return argument.name


def _elementwise_step(node: fx.Node, function: Callable[..., Any]) -> _Step | None:
    """Element by element, so the member axis passes through."""
    if any(not isinstance(a, (fx.Node, *PLAIN)) for a in node.args):
        return None
    if any(not isinstance(v, PLAIN) for v in node.kwargs.values()):
        return None
    args, kwargs = node.args, dict(node.kwargs)
    first = args[0] if args else None
    writes = kwargs.get("inplace") or getattr(function, "inplace", False)
    if writes and isinstance(first, fx.Node) and first.op == "placeholder":
        return None  # it would write into the caller's inputs
    if len(args) == 1:
        source = _name(args[0])
        return lambda run: function(run[source], **kwargs)
    return lambda run: function(
        *(run[a.name] if isinstance(a, fx.Node) else a for a in args), **kwargs
    )


def _module_step(path: str, module: nn.Module, argument: Any) -> _Step | None:
    if not isinstance(argument, fx.Node):
        return None
    source, kind = argument.name, type(module)
    layer: Callable[[Tensors, Tensor], Tensor]
    if hasattr(module, "for_all_members"):
        layer = _own_layer(path, module)
    elif isinstance(module, nn.Linear) and kind is nn.Linear:
        layer = _linear(path, module)
    elif isinstance(module, nn.LayerNorm) and kind is nn.LayerNorm:
        layer = _layer_norm(path, module)
    elif isinstance(module, nn.BatchNorm1d) and kind is nn.BatchNorm1d and module.momentum:
        layer = _batch_norm(path, module)
    else:
        return None
    return lambda run: layer(run["tensors"], run[source])


def _own_layer(path: str, module: nn.Module) -> Callable[[Tensors, Tensor], Tensor]:
    names = [name for name, _ in module.named_parameters(recurse=False)]
    run: Callable[[Tensors, Tensor], Tensor] = module.for_all_members  # type: ignore[assignment]
    return lambda tensors, x: run({name: tensors[f"{path}.{name}"] for name in names}, x)


def _linear(path: str, module: nn.Linear) -> Callable[[Tensors, Tensor], Tensor]:
    weight_name, bias_name = f"{path}.weight", f"{path}.bias"
    has_bias = module.bias is not None

    def apply(tensors: Tensors, x: Tensor) -> Tensor:
        weight, bias = tensors[weight_name], tensors[bias_name] if has_bias else None
        if _pays_as_one(x, weight):
            return linear_as_one(x[0], weight, bias)
        return linear_each(x, weight, bias)

    return apply


def _pays_as_one(x: Tensor, weight: Tensor) -> bool:
    """Whether members that share their inputs are faster as one layer: heads of few outputs on many
    features. A step of 10 heads 1024-10 on 128 rows then takes 1 / 1.5 of the time; with fewer
    members, rows or inputs, or more outputs, less than 1.2 was gained."""
    members, outputs, inputs = weight.shape
    if x.dim() != 3 or x.stride(0) != 0 or members < 4 or outputs > 16 or inputs < 256:
        return False
    return members * x.shape[1] * inputs >= 250_000


def linear_as_one(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return what `linear_each` does for inputs (B, I) that all members share."""
    out = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return out.unflatten(1, weight.shape[:2]).transpose(0, 1)


def linear_each(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs (M, B, ..., O) of each member's own linear layer, weight (M, O, I)."""
    columns = (x if x.dim() == 3 else x.flatten(1, -2)).transpose(1, 2)  # (M, I, B)
    # weight × inputs, not inputs × weight: so the weight's gradient comes in its own layout
    if bias is None:
        out = torch.bmm(weight, columns)
    else:
        out = torch.baddbmm(bias.unsqueeze(2), weight, columns)
    out = out.transpose(1, 2)
    return out if x.dim() == 3 else out.reshape(*x.shape[:-1], out.shape[-1])


def _layer_norm(path: str, module: nn.LayerNorm) -> Callable[[Tensors, Tensor], Tensor]:
    def apply(tensors: Tensors, x: Tensor) -> Tensor:
        x = F.layer_norm(x, module.normalized_shape, eps=module.eps)
        for name, join in (("weight", torch.mul), ("bias", torch.add)):
            affine = tensors.get(f"{path}.{name}")  # (M, *normalized_shape)
            if affine is not None:
                middle = (1,) * (x.dim() - affine.dim())
                x = join(x, affine.view(affine.shape[0], *middle, *affine.shape[1:]))
        return x

    return apply


def _batch_norm(path: str, module: nn.BatchNorm1d) -> Callable[[Tensors, Tensor], Tensor]:
    """Statistics of each member's own batch: the members stand side by side as M H features."""

    def flat(tensors: Tensors, name: str) -> Tensor | None:
        tensor = tensors.get(f"{path}.{name}")
        if tensor is None:
            return None
        moves = module.training and name.startswith("running")  # in place, so not in a copy
        return tensor.view(-1) if moves else tensor.reshape(-1)

    def apply(tensors: Tensors, x: Tensor) -> Tensor:
        members, batch, features = x.shape[:3]
        counter = tensors.get(f"{path}.num_batches_tracked")
        if module.training and counter is not None:
            counter.add_(1)
        out = F.batch_norm(
            x.transpose(0, 1).reshape(batch, members * features, *x.shape[3:]),
            flat(tensors, "running_mean"),
            flat(tensors, "running_var"),
            flat(tensors, "weight"),
            flat(tensors, "bias"),
            module.training or not module.track_running_stats,
            module.momentum or 0.0,
            module.eps,
        )
        return out.view(batch, members, *x.shape[2:]).transpose(0, 1)

    return apply
