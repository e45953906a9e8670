"""How a stack evaluates its members: the same numbers, at different speeds.

- `batched`: all members in one computation; batched matrix products for dense networks
  (`stack/fast/dense.py`), `vmap` for others;
- `chunked`: batched, a few members at a time, to bound memory;
- `loop`: member by member, each operation on all cores;
- `threads`: members side by side, one core each (`core/threads.py`).

Loop and threads can keep convolution weights and images in `channels_last` format. `auto` follows a
rule of layers and sizes (`stack/fast/plan.py`), so that the same job runs in the same way in every
process; `measure` takes what is the fastest on the first batch (`stack/fast/measure.py`).

Shapes: `M` modes, `B` batch, `K` outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from polymode.core.memory import keep_freed_memory
from polymode.core.rng import private_stream
from polymode.core.rows import Ragged, copies_of_first, leaves_of, map_leaves, spread
from polymode.core.threads import for_each_member, use_threads
from polymode.distributed import ranks
from polymode.stack import common
from polymode.stack.fast.dense import Forward, dense_program
from polymode.stack.fast.measure import measure
from polymode.stack.fast.plan import Job, Plan, choose, in_chunks
from polymode.stack.fast.prefix import Prefix, prefix_of, wide_gradients, wide_graph, wide_outputs
from polymode.stack.fast.rewrite import quick_module
from polymode.stack.sharing import is_shared
from polymode.tracing.attention import plain_attention
from polymode.tracing.modules import (
    Tensors,
    channels_to_last,
    keeps_statistics,
    normalisation_layers,
    set_mode,
)
from polymode.tracing.noise import (
    MemberNoise,
    Streams,
    batch_axes,
    drawing,
    habits,
    pinned_seeds,
    step_seeds,
)

if TYPE_CHECKING:
    from polymode.stack.stack import Stack

Loss = Callable[[Tensor, Tensor, Tensors], Tensor]
Seen = TypeVar("Seen")


def outputs(stack: Stack, x: Tensor, per_member: bool, step: int) -> Tensor:
    """Return the outputs of all members (M, B, ...); differentiable when gradients are recorded."""
    _check_inputs(stack, x, per_member)
    kind = "graph" if torch.is_grad_enabled() else "outputs"
    job = Job(kind, lambda part, xs, _: _trial(part, xs, per_member, step), x, x, per_member)
    plan = _possible(plan_for(stack, job), x)
    streams = streams_of(stack, x, per_member, step)
    with limit_threads(plan.num_threads), _attention(stack, plan.execution, x, per_member):
        return _outputs(stack, plan, x, per_member, streams)


def _trial(stack: Stack, x: Tensor, per_member: bool, step: int) -> None:
    """Compute outputs, and their gradients where these are recorded: they take most of the time."""
    sources = []
    if torch.is_grad_enabled():
        sources = [leaf for leaf in stack.leaves() if leaf.requires_grad]
        if x.requires_grad:
            x = map_leaves(x, _as_source)
            sources = [leaf for leaf in leaves_of(x) if leaf.requires_grad]
    values = outputs(stack, x, per_member, step)
    if sources and values.requires_grad:
        torch.autograd.grad(values.sum(), sources, allow_unused=True)


def _as_source(leaf: Tensor) -> Tensor:
    """Return a tensor by which outputs are differentiated if this one is."""
    return leaf.detach().requires_grad_() if leaf.requires_grad else leaf


def _outputs(
    stack: Stack, plan: Plan, x: Tensor, per_member: bool, streams: Streams | None
) -> Tensor:
    if plan.execution in ("batched", "chunked"):
        parts = [
            batched(part, x[a:b] if per_member else x, per_member, streams and streams[a:b])
            for part, a, b in chunks(stack, plan, views=torch.is_grad_enabled())
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    prefix = _prefix(stack, plan, per_member, streams)
    if prefix is not None and not torch.is_grad_enabled():
        return wide_outputs(stack, prefix, x)
    if prefix is not None and not stack.differentiable:
        return wide_graph(stack, prefix, x)
    results: list[Any] = [None] * stack.num_modes
    shared = formatted(x, plan.channels_last)

    def work(k: int) -> None:
        inputs = shared[k] if per_member else shared
        with noise_of(streams and streams[k : k + 1], stacked=False):
            results[k] = _single(stack, k, inputs)

    if plan.execution == "threads" and not torch.is_grad_enabled():
        for k in range(stack.num_modes):
            quick_member(stack, k)
        for_each_member(stack.num_modes, work)
    else:
        for k in range(stack.num_modes):
            work(k)
    return torch.stack(results)


def gradients(
    stack: Stack, loss: Loss, x: Tensor, y: Tensor, per_member: bool, step: int
) -> Tensor:
    """Set `.grad` of the stack's leaves to each member's own gradient; return the losses (M,)."""
    _check_inputs(stack, x, per_member)

    def run(part: Stack, xs: Tensor, ys: Tensor) -> Tensor:
        return gradients(part, loss, xs, ys, per_member, step)

    plan = _possible(plan_for(stack, Job("gradients", run, x, y, per_member)), x)
    batch = _Batch(x, y, per_member, streams_of(stack, x, per_member, step))
    by_member = plan.execution in ("loop", "threads")
    compute = _gradients_each if by_member else _gradients_batched
    attention = _attention(stack, plan.execution, x, per_member)
    if plan.num_threads is None and attention is _SILENCE:
        losses = compute(stack, plan, loss, batch)
    else:
        with limit_threads(plan.num_threads), attention:
            losses = compute(stack, plan, loss, batch)
    common.average_gradients(stack)
    return losses


def _possible(plan: Plan, x: Any) -> Plan:
    """Return the plan, or a loop where members' inputs differ in size and cannot be batched."""
    together = plan.execution in ("batched", "chunked")
    return plan._replace(execution="loop") if together and isinstance(x, Ragged) else plan


@dataclass(frozen=True)
class _Batch:
    """What members learn from.

    Attributes:
        x, y: inputs and targets (B, ...), or (M, B, ...) if `per_member`.
        streams: of the noise in the forward pass, None without any.
    """

    x: Tensor
    y: Tensor
    per_member: bool
    streams: Streams | None

    def of(self, members: slice | int) -> tuple[Tensor, Tensor, Streams | None]:
        """Return inputs, targets and streams of some members, or of one."""
        x, y = (self.x[members], self.y[members]) if self.per_member else (self.x, self.y)
        span = slice(members, members + 1) if isinstance(members, int) else members
        return x, y, self.streams and self.streams[span]


def _gradients_batched(stack: Stack, plan: Plan, loss: Loss, batch: _Batch) -> Tensor:
    """All members, or a chunk of them, in one forward and one backward pass."""
    leaves, shared = stack.leaves(), list(stack.common.values())
    parts = chunks(stack, plan, views=False)
    together = len(parts) == 1
    if not together:
        grad_buffers(stack)
    common.clear_gradients(shared)
    losses_of_parts = []
    for part, a, b in parts:
        x, y, streams = batch.of(slice(a, b))
        losses = loss(batched(part, x, batch.per_member, streams), y, part.extra)
        grads = _grad(losses, [*part.leaves(), *shared])
        common.add_gradients(shared, grads[len(leaves) :])
        for leaf, grad in zip(leaves, grads, strict=False):
            if together:
                leaf.grad = in_layout_of(leaf, grad)
            else:
                assert leaf.grad is not None
                leaf.grad[a:b] = grad
        losses_of_parts.append(losses.detach())
    return losses_of_parts[0] if together else torch.cat(losses_of_parts)


def _gradients_each(stack: Stack, plan: Plan, loss: Loss, batch: _Batch) -> Tensor:
    """Loop and threads: forward and backward pass of one member after another."""
    buffers = grad_buffers(stack)
    prefix = _prefix(stack, plan, batch.per_member, batch.streams)
    if prefix is not None:
        for k in range(stack.num_modes):
            stack.leaf_views(k)
        return wide_gradients(stack, prefix, loss, batch.x, batch.y, buffers)
    batch = replace(batch, x=formatted(batch.x, plan.channels_last))
    losses: list[Any] = [None] * stack.num_modes
    shared = list(stack.common.values())
    of_shared: list[Any] = [None] * stack.num_modes
    common.clear_gradients(shared)
    for k in range(stack.num_modes):
        stack.leaf_views(k), quick_member(stack, k)  # built here: that is not for several threads

    def work(k: int) -> None:
        x, y, streams = batch.of(k)
        losses[k], grads = _member_gradients(stack, k, loss, x, y, streams)
        number = len(buffers[k])
        if number:
            torch._foreach_copy_(buffers[k], grads[:number])
        of_shared[k] = grads[number:]

    def add(k: int) -> None:  # in the order of members, so that sums have the same bits
        common.add_gradients(shared, of_shared[k])
        of_shared[k] = None

    if plan.execution == "threads":
        for_each_member(stack.num_modes, work)
        for k in range(stack.num_modes):
            add(k)
    else:
        for k in range(stack.num_modes):
            work(k)
            add(k)
    return torch.stack(losses)


def _prefix(stack: Stack, plan: Plan, per_member: bool, streams: Streams | None) -> Prefix | None:
    """Return the prefix if the plan wants it and this call allows it: shared inputs, no noise."""
    allowed = not per_member and streams is None and not stack.common
    return prefix_of(stack) if plan.wide and allowed else None


def quick_member(stack: Stack, k: int) -> nn.Module:
    """Return member k in its quick form, if it has one."""
    quick = None
    if not stack.members_differ:
        gradients = torch.is_grad_enabled()
        make = partial(quick_module, gradients=gradients)
        quick = stack.network.program(f"quick, gradients {gradients}", stack.mode, make)
    return stack.module(k) if quick is None else stack.views.bound(quick, k, stack.mode)


def _member_gradients(
    stack: Stack, k: int, loss: Loss, x: Tensor, y: Tensor, streams: Streams | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of member k and its gradients, in the order of `leaves()` and `common`."""
    with noise_of(streams, stacked=False):
        out = quick_member(stack, k)(x)
    stack.write_back_buffers(k)
    value = loss(out, y, stack.extra_of(k))
    return value.detach(), _grad(value, [*stack.leaf_views(k), *stack.common_views(k)])


def batched(stack: Stack, x: Tensor, per_member: bool, streams: Streams | None) -> Tensor:
    """All members in one computation."""
    if stack.members_differ:
        raise ValueError(
            "execution='batched' needs members that differ only in tensors, but they differ in"
            f" {', '.join(stack.members_differ[:3])}; use execution='loop' or 'threads'"
        )
    shares = stack.shares
    # a dense program has a member axis everywhere
    dense = None if shares or stack.common else dense_program(stack)
    if dense is not None:
        tensors = {**stack.params, **stack.frozen, **stack.buffers}
        return _run_dense(stack, dense, tensors, x if per_member else _for_all(stack, x), streams)
    if streams is not None and not per_member and not (shares and _starts_quietly(stack, x)):
        x, per_member = _for_all(stack, x), True  # noise on inputs must differ between members
    shared = _shared(stack, x, per_member)
    with noise_of(streams, stacked=True):
        out, anew = _side_by_side(stack, shared, x, per_member)
    for name, value in anew.items():
        stack.buffers[name].copy_(value.detach())
    return out


def _shared(stack: Stack, x: Tensor, per_member: bool) -> Tensors:
    """Return what all members have in common, without a member axis."""
    if not stack.shares:
        return common.rows(stack)
    return stack.views.shared(_seen(stack, _left_alone, x, per_member)) | common.rows(stack)


def _side_by_side(
    stack: Stack, shared: Tensors, x: Tensor, per_member: bool
) -> tuple[Tensor, Tensors]:
    """Return the outputs of all members by vmap, and the buffers that the pass bound anew.

    What is `shared` goes in without a member axis, so that every operation on it alone runs once.
    """
    template, aliases = stack.network.template_in(stack.mode), stack.network.aliases
    params = {n: t for n, t in {**stack.params, **stack.frozen}.items() if n not in shared}
    buffers = {name: t for name, t in stack.buffers.items() if name not in shared}

    def one(params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Any, Tensors]:
        tensors = {
            alias: value
            for name, value in (*params.items(), *buffers.items(), *shared.items())
            for alias in aliases[name]
        }
        out = functional_call(template, tensors, (x,), tie_weights=False)
        anew = {name: tensors[name] for name in buffers if tensors[name] is not buffers[name]}
        return out, anew

    if not (params or buffers or per_member):  # members are one network
        out, _ = one({}, {}, x)
        return out.expand(stack.num_modes, *out.shape), {}
    in_dims = (0, 0, 0 if per_member else None)
    return vmap(one, in_dims=in_dims, randomness="different")(params, buffers, x)  # type: ignore


def _left_alone(module: nn.Module, x: Tensor) -> list[str]:
    """Return the buffers that a pass neither writes nor binds anew. Statistics that training moves
    are not among them: torch writes these without a mark."""
    moving = {
        id(buffer)
        for layer in normalisation_layers(module)
        if not keeps_statistics(layer)
        for buffer in layer.buffers(recurse=False)
    }
    before = {name: (buffer, buffer._version) for name, buffer in module.named_buffers()}
    with private_stream(0), torch.no_grad():
        module(copies_of_first(x, 2))
    after = dict(module.named_buffers())
    return [
        name
        for name, (buffer, version) in before.items()
        if after[name] is buffer and buffer._version == version and id(buffer) not in moving
    ]


def _starts_quietly(stack: Stack, x: Tensor) -> bool:
    """Whether inputs without a member axis meet something of a member's own before any noise, found
    by passes of three and four members: all that is drawn must then have a member axis."""

    def probe(_: nn.Module) -> bool:
        x2 = copies_of_first(x, 2)
        shapes = []
        for number in (3, 4):
            part = stack[[0] * number]
            shared = _shared(part, x2, per_member=False)
            try:
                with drawing() as drawn:
                    _side_by_side(part, shared, x2, per_member=False)
            except (RuntimeError, ValueError):
                return False
            shapes.append(drawn)
        return len(shapes[0]) == len(shapes[1]) and all(
            a[:1] == (3,) and b[:1] == (4,) and a[1:] == b[1:] for a, b in zip(*shapes, strict=True)
        )

    names = ", ".join(name for name, tensor in stack.frozen.items() if is_shared(tensor))
    return stack.network.program(f"starts quietly, beyond {names}", stack.mode, probe)


def _for_all(stack: Stack, x: Tensor) -> Tensor:
    return spread(x, stack.num_modes)  # type: ignore[no-any-return]


def _run_dense(
    stack: Stack, dense: Forward, tensors: Tensors, x: Tensor, streams: Streams | None
) -> Tensor:
    for alias, name in stack.network.second_names:
        tensors[alias] = tensors[name]
    with noise_of(streams, stacked=True):
        return dense(tensors, x)


def pure(stack: Stack, params: Tensors, x: Tensor) -> Tensor:
    """Return the outputs (M, B, ...) at other parameters (M, ...); changes nothing.

    Dense networks run as batched products. Others run member by member on a processor, where vmap
    takes convolutions three times as long, and through vmap elsewhere.
    """
    with _attention(stack, "batched", x, False):  # may be differentiated in any way
        return _pure(stack, params, x)


def _pure(stack: Stack, params: Tensors, x: Tensor) -> Tensor:
    streams = streams_of(stack, x, False, 0)
    buffers = stack.buffers
    if stack.mode == "train":
        buffers = {name: tensor.clone() for name, tensor in buffers.items()}
    tensors = {**params, **stack.frozen, **buffers}
    dense = None if stack.members_differ else dense_program(stack)
    if dense is not None:
        return _run_dense(stack, dense, tensors, _for_all(stack, x), streams)
    if x.device.type != "cpu" and not stack.members_differ:
        return batched(stack.with_tensors(params, buffers), x, False, streams)
    results = []
    for k in range(stack.num_modes):
        module = stack.network.template_in(stack.mode)
        if stack.members_differ:
            module = stack.module(k)
        named = {
            alias: tensor[k]
            for name, tensor in tensors.items()
            for alias in stack.network.aliases[name]
        }
        with noise_of(streams and streams[k : k + 1], stacked=False):
            results.append(functional_call(module, named, (x,), tie_weights=False))
    return torch.stack(results)


def _single(stack: Stack, k: int, x: Tensor) -> Tensor:
    """Return outputs of member k, with gradients back to the stacked tensors if these want any."""
    if not torch.is_grad_enabled() or not stack.differentiable:
        out = quick_member(stack, k)(x)
    else:
        tensors = {
            alias: value[k]
            for name, value in {**stack.params, **stack.frozen}.items()
            for alias in stack.network.aliases[name]
        } | {
            alias: row
            for name, row in common.rows(stack).items()
            for alias in stack.network.aliases[name]
        }
        out = functional_call(quick_member(stack, k), tensors, (x,), tie_weights=False)
    stack.write_back_buffers(k)
    return out


def _grad(losses: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Differentiate the sum of the losses: each depends on one member, so it has all gradients."""
    if not losses.requires_grad:  # a pass that met nothing of what is trained
        return tuple(map(torch.zeros_like, leaves))
    ones = torch.ones_like(losses) if losses.dim() else None
    grads = torch.autograd.grad(losses, leaves, grad_outputs=ones, allow_unused=True)
    if any(grad is None for grad in grads):  # a parameter that the network does not use
        pairs = zip(leaves, grads, strict=True)
        return tuple(torch.zeros_like(leaf) if grad is None else grad for leaf, grad in pairs)
    return grads


def in_layout_of(leaf: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient in the memory layout of its parameter.

    Torch's fused optimisers take that for granted: with another layout they update the wrong
    entries without a word.
    """
    return grad if grad.stride() == leaf.stride() else torch.empty_like(leaf).copy_(grad)


def grad_buffers(stack: Stack) -> list[list[Tensor]]:
    """Return, for each member, where its gradients are written: views of the leaves' `.grad`."""
    return stack.views.grads(stack.num_modes)


def chunks(stack: Stack, plan: Plan, *, views: bool) -> list[tuple[Stack, int, int]]:
    """Return sub-stacks with the span of their members; `views` keeps them differentiable."""
    size = min(plan.chunk_size or stack.num_modes, stack.num_modes)
    if size == stack.num_modes:
        return [(stack, 0, size)]
    spans = [(a, min(a + size, stack.num_modes)) for a in range(0, stack.num_modes, size)]
    if views:
        return [
            (stack[a:b].with_tensors({n: t[a:b] for n, t in stack.params.items()}), a, b)
            for a, b in spans
        ]
    if size not in stack.views.parts:
        stack.views.parts[size] = [(stack[a:b], a, b) for a, b in spans]
    for part, _, _ in stack.views.parts[size]:
        part.set_mode(stack.mode)
    return stack.views.parts[size]


class limit_threads:
    """Let this thread use `number` threads within an operation; None changes nothing."""

    def __init__(self, number: int | None) -> None:
        self.before = torch.get_num_threads()
        self.number = number or self.before

    def __enter__(self) -> None:
        use_threads(self.number)

    def __exit__(self, *error: object) -> None:
        if torch.get_num_threads() != self.before:
            torch.set_num_threads(self.before)


_SILENCE = nullcontext()
_CHOOSING = threading.RLock()


def noise_of(streams: Streams | None, *, stacked: bool) -> Any:
    """Return the context in which members draw from their streams."""
    return _SILENCE if streams is None else MemberNoise(streams, stacked=stacked)


def streams_of(stack: Stack, x: Tensor, per_member: bool, step: int) -> Streams | None:
    """Return the members' streams for this pass, or None for a network that draws nothing."""
    if not _seen(stack, habits, x, per_member).draws:
        return None
    if stack.pinned is None:
        return Streams(step_seeds(stack.seeds, step))
    axes = _seen(stack, batch_axes, x, per_member)
    numbers = (stack.pinned,) if isinstance(stack.pinned, int) else stack.pinned
    return Streams(pinned_seeds(stack.seeds, numbers), axes)


def _attention(stack: Stack, execution: str, x: Tensor, per_member: bool) -> Any:
    """Return the context of attention: in steps where vmap or further derivatives follow."""
    together = execution in ("batched", "chunked")
    return (
        plain_attention() if together and _seen(stack, habits, x, per_member).attends else _SILENCE
    )


def _seen(
    stack: Stack, look: Callable[[nn.Module, Tensor], Seen], x: Tensor, per_member: bool
) -> Seen:
    """Return what `look` finds in the stack's mode, found once."""

    def probe(_: nn.Module) -> Seen:
        module = set_mode(stack.views.to_try(0), stack.mode)
        return look(module, x[0] if per_member else x)

    return stack.network.program(look.__name__, stack.mode, probe)


def formatted(x: Tensor, channels_last: bool) -> Tensor:
    """Return images in the memory format of a plan."""
    if not channels_last:
        return x
    return map_leaves(x, lambda leaf: channels_to_last(leaf) if leaf.dim() >= 4 else leaf)  # type: ignore[no-any-return]


def _check_inputs(stack: Stack, x: Tensor, per_member: bool) -> None:
    if per_member and len(x) != stack.num_modes:
        raise ValueError(
            f"own=True takes inputs with one batch per member, ({stack.num_modes}, B, ...), got"
            f" {len(x)} rows"
        )


def plan_for(stack: Stack, job: Job) -> Plan:
    """Return the plan for this kind of work, chosen at the first call (of this size, for outputs).

    One thread chooses at a time, for all: others that want a plan of the same stack get this one,
    and those that measure another are not disturbed.
    """
    plan = stack.plans.get(job.kind) or stack.plans.get(job.sized_kind)
    if plan is not None and stack.channels_last is not None:
        return plan
    with _CHOOSING:
        plan = stack.plans.get(job.kind) or stack.plans.get(job.sized_kind)
        if plan is None:
            if stack.device.type == "cpu":
                keep_freed_memory()
            if stack.execution == "measure":
                plan = ranks.agreed(lambda: measure(stack, job))
            else:
                plan = choose(stack, job)
            plan = in_chunks(stack, job, plan)
        if stack.channels_last is None:
            stack.lay_out(plan.channels_last)
        stack.plans[job.sized_kind] = plan
    return plan
