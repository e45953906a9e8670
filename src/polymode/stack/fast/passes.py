"""Several noisy passes over the same inputs, with what comes before the noise computed once.

A network is cut before its first random operation, at the last place where one tensor carries all
that is needed later. What comes before, `early`, runs once; what comes after, `late`, runs on rows
that are repeated, one group for each pass. So the convolutions of a network with dropout in its
dense layers are computed once, however many passes there are. Where the first random operation is
comes from watching a pass, not from the classes of layers. A network without a graph, with noise at
its inputs, or whose forward method makes tensors of its own is not cut: its inputs are repeated.

Shapes: `M` modes, `L` passes, `B` batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from polymode.core.rng import private_stream
from polymode.stack.execution import in_layout_of
from polymode.stack.stack import Stack
from polymode.tracing.graph import trace
from polymode.tracing.modules import Tensors, set_mode
from polymode.tracing.network import Network
from polymode.tracing.noise import batch_axes, drawing
from polymode.tracing.operations import function_of, repeat_rows

_PIECE = 2**25  # bytes of intermediate results at a time: more leave the caches

Loss = Callable[[Tensor, Tensor, Tensors], Tensor]


class Halves(NamedTuple):
    """A network in two parts.

    Attributes:
        early: what comes before the noise, None where that is nothing.
        late: the rest, None for the whole network.
        grouped: whether rows of one batch may belong to several passes; not so where the whole
            batch shares a noise, as with DropConnect.
        row_bytes: intermediate results of `late` for one row.
    """

    early: Network | None
    late: Network | None
    grouped: bool
    row_bytes: int


def noisy_passes(stack: Stack, x: Tensor, numbers: Sequence[int]) -> Tensor:
    """Return the outputs (M, L, B, ...) of L passes, pass l with the noise pinned to `numbers[l]`.

    Equal to `stack.set_mode("noisy", number)(x)` for each number, up to rounding. Intermediate
    results are those of a few passes at a time, unless gradients are recorded.
    """
    halves = halves_of(stack, x)
    late = stack if halves.late is None else part_of(stack, halves.late)
    h, per_member = x, False
    if halves.early is not None:
        h, per_member = part_of(stack, halves.early).set_mode("noisy")(x), True
    results = []
    for some in _pieces(numbers, halves, stack.num_modes * len(x)):
        late.set_mode("noisy", some if len(some) > 1 else some[0])
        outputs = late(repeat_rows(h, len(some), axis=int(per_member)), own=per_member)
        results.append(outputs.unflatten(1, (len(some), -1)))
    return results[0] if len(results) == 1 else torch.cat(results, 1)


def _pieces(numbers: Sequence[int], halves: Halves, rows: int) -> Iterator[tuple[int, ...]]:
    size = 1
    if halves.grouped:
        size = max(1, _PIECE // (rows * halves.row_bytes))
    for start in range(0, len(numbers), size):
        yield tuple(numbers[start : start + size])


def gradients_of_passes(
    stack: Stack, times: int, loss: Loss, x: Tensor, y: Tensor, *, own: bool, step: int
) -> Tensor:
    """Set `.grad` as `stack.gradients` does, where the loss takes outputs of `times` passes.

    `loss(outputs, y, extra)` gets outputs (..., times B, K), pass by pass, each row with a noise of
    its own; targets y are those of the B examples. Returns the losses (M,).
    """
    example = x[0] if own else x
    if not _by_row(stack, example):
        return _gradients_by_pass(stack, times, loss, x, y, own, step)
    name = f"{times} passes, {stack.mode}"
    if name not in stack.views.derived:
        stack.views.derived[name] = _repeating_stack(stack, name, example, times)
    body: Stack | None = stack.views.derived[name]
    if body is None:
        return stack.gradients(loss, repeat_rows(x, times, axis=int(own)), y, own=own, step=step)
    losses = body.set_mode(stack.mode).gradients(loss, x, y, own=own, step=step)
    if body.channels_last != stack.channels_last:  # their memory is one
        stack.lay_out(bool(body.channels_last))
    return losses


def _by_row(stack: Stack, x: Tensor) -> bool:
    """Whether each row has a noise of its own; DropConnect's is shared by the whole batch."""
    return stack.network.program(
        "noise by row", stack.mode, lambda _: _grouped(_member(stack), x)
    )  # fmt: skip


def _gradients_by_pass(
    stack: Stack, times: int, loss: Loss, x: Tensor, y: Tensor, per_member: bool, step: int
) -> Tensor:
    """One pass after another, each with a noise for its whole batch."""
    passes = [stack(x, own=per_member, step=step * times + number) for number in range(times)]
    losses = loss(torch.cat(passes, 1), y, stack.extra)
    leaves = stack.leaves()
    grads = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.grad = in_layout_of(leaf, grad)
    return losses.detach()


def halves_of(stack: Stack, x: Tensor) -> Halves:
    """Return the stack's network in two parts, made once for each architecture."""
    return stack.network.program("halves", "noisy", lambda _: _halves(stack, x))


def _halves(stack: Stack, x: Tensor) -> Halves:
    module = set_mode(_member(stack), "noisy")
    early, late, h = None, None, x[:1]
    parts = None if stack.members_differ or _ties(stack) else _cut(module, x)
    if parts is not None:
        traced, graph, cut = parts
        first, second = _split(traced, graph, cut)
        if any(True for _ in first.parameters()):  # else next to nothing would be saved
            with torch.no_grad():
                h = first(h)
            early, late, module = Network(first), Network(second), second
    return Halves(early, late, _grouped(module, h), _row_bytes(module, h))


def _grouped(module: nn.Module, x: Tensor) -> bool:
    """Whether all that a pass draws has a batch axis."""
    return all(axis.axis is not None for axis in batch_axes(module, x))


def _member(stack: Stack) -> nn.Module:
    """Return a copy of the first member in the stack's mode."""
    return set_mode(stack.views.build(0, share=False), stack.mode)


def _ties(stack: Stack) -> bool:
    """Whether a tensor has several names: parts of the network may know it by another one."""
    return any(len(names) > 1 for names in stack.network.aliases.values())


def part_of(stack: Stack, network: Network, more: Tensors | None = None) -> Stack:
    """Return the stack of a part or another form of its network, in the same memory.

    Args:
        more: parameters (M, ...) that only the other form has.
    """
    part = stack.on(network, more)
    part.plans = network.plans.setdefault((1, stack.num_modes), {})
    return part


class _Noticed(NamedTuple):
    """What a pass through a graph shows: the shape of each tensor, and which node draws first."""

    shapes: dict[fx.Node, tuple[int, ...]]
    first: fx.Node | None


def _notice(module: nn.Module, graph: fx.Graph, x: Tensor) -> _Noticed:
    """Run a graph node by node, and look at its values."""
    values: dict[fx.Node, Any] = {}
    shapes: dict[fx.Node, tuple[int, ...]] = {}
    first = None
    with drawing() as drawn:
        for node in graph.nodes:
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            if node.op == "placeholder":
                value = x
            elif node.op == "get_attr":
                value = attrgetter(str(node.target))(module)
            elif node.op == "output":
                break
            else:
                value = function_of(node, module)(*args, **kwargs)
            values[node] = value
            if isinstance(value, Tensor):
                shapes[node] = tuple(value.shape)
            if first is None and drawn:
                first = node
    return _Noticed(shapes, first)


def _cut(module: nn.Module, x: Tensor) -> tuple[nn.Module, fx.Graph, fx.Node] | None:
    """Return the network's graph with the node after which it is cut, or None without a graph."""
    traced = trace(module)
    if traced is None:
        return None
    module, graph = traced
    nodes = list(graph.nodes)
    if [node.op for node in nodes].count("placeholder") != 1 or _makes_tensors(module, graph):
        return None
    of_two, of_three = (_notice(module, graph, repeat_rows(x[:1], n)) for n in (2, 3))
    if of_two.first is None:
        return None
    for place in range(nodes.index(of_two.first), 0, -1):
        before = set(nodes[:place])
        live = {
            node
            for later in nodes[place:]
            for node in later.all_input_nodes
            if node in before and node.op != "get_attr"
        }
        if len(live) == 1:
            (cut,) = live
            rows = [noticed.shapes.get(cut, ())[:1] for noticed in (of_two, of_three)]
            if rows == [(2,), (3,)]:
                return module, graph, cut
    return None


def _makes_tensors(module: nn.Module, graph: fx.Graph) -> bool:
    """Whether a forward method reads tensors that are neither parameters nor buffers, such as those
    it makes itself; parts of the network would not have them."""
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    names |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    names = {name for name in names if not hasattr(fx.GraphModule, name)}  # torch.fx's own: "code"
    return any(node.op == "get_attr" and node.target not in names for node in graph.nodes)


def _split(module: nn.Module, graph: fx.Graph, cut: fx.Node) -> tuple[nn.Module, nn.Module]:
    """Return what comes up to `cut`, and what comes after it, as modules of their own."""
    nodes = list(graph.nodes)
    place = nodes.index(cut) + 1
    early, late = fx.Graph(), fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in nodes[:place]:
        values[node] = early.node_copy(node, lambda old: values[old])
    early.output(values[cut])
    later: dict[fx.Node, fx.Node] = {cut: late.placeholder("h")}
    for node in nodes[:place]:
        if node.op == "get_attr":
            later[node] = late.node_copy(node)
    for node in nodes[place:]:
        if all(source in later for source in node.all_input_nodes):  # else it leads nowhere
            later[node] = late.node_copy(node, lambda old: later[old])
    parts = fx.GraphModule(module, early), fx.GraphModule(module, late)
    for part in parts:
        part.graph.lint()
        set_mode(part, "noisy")
    return parts


def _repeating_stack(stack: Stack, name: str, x: Tensor, times: int) -> Stack | None:
    """Return the stack whose networks repeat their rows, None where there is no such network."""
    if stack.members_differ:
        return None
    network = stack.network.program(
        name, stack.mode, lambda _: _repeating(_member(stack), x, times)
    )
    if network is None:
        return None
    body = part_of(stack, network)
    complete = body.params.keys() == stack.params.keys()  # a graph has what a pass uses, no more
    return body if complete else None


def _repeating(module: nn.Module, x: Tensor, times: int) -> Network | None:
    """Return the network with its rows repeated before the first random operation."""
    parts = _cut(module, x)
    if parts is None:
        return None
    traced, graph, cut = parts
    with graph.inserting_after(cut):
        repeated = graph.call_function(repeat_rows, (cut, times))
    cut.replace_all_uses_with(repeated, delete_user_cb=lambda user: user is not repeated)
    graph.lint()
    return Network(fx.GraphModule(traced, graph))


class _Bytes(TorchDispatchMode):
    """Adds up the sizes of all results."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.total += result.numel() * result.element_size()
        return result


def _row_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the size of intermediate results for one row: what a third adds to two."""
    totals = []
    for number in (2, 3):
        with private_stream(0), torch.no_grad(), _Bytes() as counted:
            module(repeat_rows(x[:1], number))
        totals.append(counted.total)
    return max(totals[1] - totals[0], 1)
