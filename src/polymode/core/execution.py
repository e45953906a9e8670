"""How a stack evaluates its members: the same numbers, at different speeds.

- `batched`: all members in one computation; batched matrix products for dense networks
  (`core/dense.py`), `vmap` for others;
- `chunked`: batched, a few members at a time, to bound memory;
- `loop`: member by member, each operation on all cores;
- `threads`: members side by side, one core each (`core/threads.py`).

Loop and threads can keep convolution weights and images in `channels_last` format. `auto` measures
the candidates on the first batch and remembers the fastest in `core/choice.py`, so that the same
job on the same machine runs in the same way.

Shapes: `M` modes, `B` batch, `K` outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from polymode.core.dense import dense_forward
from polymode.core.memory import keep_freed_memory
from polymode.core.modules import channels_to_last
from polymode.core.noise import MemberNoise, step_seeds, watch
from polymode.core.prefix import Prefix, prefix_of, wide_gradients, wide_outputs
from polymode.core.stack import Stack, Tensors
from polymode.core.threads import for_each_member
from polymode.core.trace import quick_of

Loss = Callable[[Tensor, Tensor, Tensors], Tensor]


class Plan(NamedTuple):
    """One way to evaluate a stack."""

    execution: str
    channels_last: bool = False
    chunk_size: int | None = None
    num_threads: int | None = None  # intra-operation threads; None leaves torch's setting
    wide: bool = False  # the first convolution of all members as one, see `core/prefix.py`


def outputs(stack: Stack, x: Tensor, own: bool, step: int) -> Tensor:
    """Return the outputs of all members (M, B, ...); differentiable when gradients are recorded."""
    _check_inputs(stack, x, own)
    plan = stack._plans.get("outputs") or plan_for(
        stack, "outputs", lambda part, xs, _: outputs(part, xs, own, step), x, x, own
    )
    seeds = noise_seeds(stack, x, own, step)
    with limit_threads(plan.num_threads):
        return _outputs(stack, plan, x, own, seeds)


def _outputs(stack: Stack, plan: Plan, x: Tensor, own: bool, seeds: list[int] | None) -> Tensor:
    if plan.execution in ("batched", "chunked"):
        parts = [
            batched(part, x[a:b] if own else x, own, seeds and seeds[a:b])
            for part, a, b in chunks(stack, plan, views=torch.is_grad_enabled())
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    prefix = _prefix(stack, plan, own, seeds)
    if prefix is not None and not torch.is_grad_enabled():
        return wide_outputs(stack, prefix, x)
    results: list[Any] = [None] * stack.num_modes
    shared = formatted(x, plan.channels_last)

    def work(k: int) -> None:
        inputs = shared[k] if own else shared
        with noise_of(seeds and seeds[k : k + 1], stacked=False):
            results[k] = _single(stack, k, inputs)

    if plan.execution == "threads" and not torch.is_grad_enabled():
        for k in range(stack.num_modes):
            quick_module(stack, k)
        for_each_member(stack.num_modes, work)
    else:
        for k in range(stack.num_modes):
            work(k)
    return torch.stack(results)


def gradients(stack: Stack, loss: Loss, x: Tensor, y: Tensor, own: bool, step: int) -> Tensor:
    """Set `.grad` of the stack's leaves to each member's own gradient; return the losses (M,)."""
    _check_inputs(stack, x, own)
    plan = stack._plans.get("gradients") or plan_for(
        stack, "gradients", lambda part, xs, ys: gradients(part, loss, xs, ys, own, step), x, y, own
    )
    seeds = noise_seeds(stack, x, own, step)
    by_member = plan.execution in ("loop", "threads")
    compute = _gradients_each if by_member else _gradients_batched
    if plan.num_threads is None:
        return compute(stack, plan, loss, x, y, own, seeds)
    with limit_threads(plan.num_threads):
        return compute(stack, plan, loss, x, y, own, seeds)


def _gradients_batched(
    stack: Stack,
    plan: Plan,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    own: bool,
    seeds: list[int] | None,
) -> Tensor:
    """All members, or a chunk of them, in one forward and one backward pass."""
    leaves = stack.leaves()
    parts = chunks(stack, plan, views=False)
    if len(parts) == 1:
        losses = loss(batched(stack, x, own, seeds), y, stack.extra)
        for leaf, grad in zip(leaves, _grad(losses, leaves), strict=True):
            leaf.grad = in_layout_of(leaf, grad)
        return losses.detach()
    grad_buffers(stack)
    found = []
    for part, a, b in parts:
        inputs, targets = (x[a:b], y[a:b]) if own else (x, y)
        losses = loss(batched(part, inputs, own, seeds and seeds[a:b]), targets, part.extra)
        for leaf, grad in zip(leaves, _grad(losses, part.leaves()), strict=True):
            assert leaf.grad is not None
            leaf.grad[a:b] = grad
        found.append(losses.detach())
    return torch.cat(found)


def _gradients_each(
    stack: Stack,
    plan: Plan,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    own: bool,
    seeds: list[int] | None,
) -> Tensor:
    """Loop and threads: forward and backward pass of one member after another."""
    buffers = grad_buffers(stack)
    prefix = _prefix(stack, plan, own, seeds)
    if prefix is not None:
        for k in range(stack.num_modes):
            stack.leaf_views(k)
        return wide_gradients(stack, prefix, loss, x, y, buffers)
    x = formatted(x, plan.channels_last)
    if stack.num_modes == 1:
        value, grads = _member_gradients(
            stack, 0, loss, x[0] if own else x, y[0] if own else y, seeds
        )
        torch._foreach_copy_(buffers[0], grads)
        return value.view(1)
    losses: list[Any] = [None] * stack.num_modes
    for k in range(stack.num_modes):
        stack.leaf_views(k), quick_module(stack, k)  # built here: that is not for several threads

    def work(k: int) -> None:
        inputs, targets = (x[k], y[k]) if own else (x, y)
        streams = seeds and seeds[k : k + 1]
        losses[k], grads = _member_gradients(stack, k, loss, inputs, targets, streams)
        torch._foreach_copy_(buffers[k], grads)

    if plan.execution == "threads":
        for_each_member(stack.num_modes, work)
    else:
        for k in range(stack.num_modes):
            work(k)
    return torch.stack(losses)


def _prefix(stack: Stack, plan: Plan, own: bool, seeds: list[int] | None) -> Prefix | None:
    """Return the prefix if the plan wants it and this call allows it: shared inputs, no noise."""
    if not plan.wide or own or seeds is not None:
        return None
    mode = stack.training, torch.is_grad_enabled()
    if mode not in stack._prefixes:
        stack._prefixes[mode] = prefix_of(stack)
    return stack._prefixes[mode]


def quick_module(stack: Stack, k: int) -> nn.Module:
    """Return member k in its quick form, if it has one."""
    mode = stack.training, torch.is_grad_enabled()
    if mode not in stack._quick:
        stack._quick[mode] = quick_of(stack)
    quick = stack._quick[mode]
    return stack.module(k) if quick is None else quick.member(stack, k)


def _member_gradients(
    stack: Stack, k: int, loss: Loss, x: Tensor, y: Tensor, seeds: list[int] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of member k and its gradients, in the order of `leaves()`."""
    if seeds is None:
        out = quick_module(stack, k)(x)
    else:
        with MemberNoise(seeds, stacked=False):
            out = quick_module(stack, k)(x)
    if stack.training and stack.buffers:
        stack.write_back_buffers(k)
    value = loss(out, y, stack.extra_of(k) if stack.extra else {})
    return value.detach(), _grad(value, stack.leaf_views(k))


def batched(stack: Stack, x: Tensor, own: bool, seeds: list[int] | None) -> Tensor:
    """All members in one computation."""
    if stack.members_differ:
        raise ValueError(
            "execution='batched' needs members that differ in tensors alone, but they differ in"
            f" {', '.join(stack.members_differ[:3])}; use execution='loop' or 'threads'"
        )
    if stack.training not in stack._forwards:
        stack._forwards[stack.training] = dense_forward(stack.template)
    dense = stack._forwards[stack.training]
    if dense is not None:
        tensors = {**stack.params, **stack.frozen, **stack.buffers}
        for alias, name in stack._second_names:
            tensors[alias] = tensors[name]
        with noise_of(seeds, stacked=True):
            return dense(tensors, x if own else x.expand(stack.num_modes, *x.shape))
    if seeds is not None and not own:  # noise on inputs must differ between members
        x, own = x.expand(stack.num_modes, *x.shape), True

    def one(params: Tensors, buffers: Tensors, x: Tensor) -> tuple[Any, Tensors]:
        tensors = {
            alias: value
            for name, value in (*params.items(), *buffers.items())
            for alias in stack._aliases[name]
        }
        out = functional_call(stack.template, tensors, (x,), tie_weights=False)
        anew = {name: tensors[name] for name in buffers if tensors[name] is not buffers[name]}
        return out, anew

    with noise_of(seeds, stacked=True):
        out, anew = vmap(one, in_dims=(0, 0, 0 if own else None), randomness="different")(
            {**stack.params, **stack.frozen}, stack.buffers, x
        )
    for name, value in anew.items():
        stack.buffers[name].copy_(value.detach())
    return out


def _single(stack: Stack, k: int, x: Tensor) -> Tensor:
    """Member k alone; through `functional_call` where gradients must reach the stacked tensors."""
    if not torch.is_grad_enabled():
        out = quick_module(stack, k)(x)
    else:
        module = stack.module(k)
        tensors = {
            alias: value[k]
            for name, value in {**stack.params, **stack.frozen}.items()
            for alias in stack._aliases[name]
        }
        out = functional_call(module, tensors, (x,), tie_weights=False)
    if stack.training and stack.buffers:
        stack.write_back_buffers(k)
    return out


def _grad(losses: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Each loss depends on its own member alone, so the gradient of their sum holds them all."""
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
    leaves = stack.leaves()
    if stack._grads is None:
        grads = [torch.zeros_like(leaf) for leaf in leaves]
        stack._grads = grads, [[grad[k] for grad in grads] for k in range(stack.num_modes)]
    grads, views = stack._grads
    for leaf, grad in zip(leaves, grads, strict=True):
        if leaf.grad is not grad:
            leaf.grad = grad
    return views


def chunks(stack: Stack, plan: Plan, *, views: bool) -> list[tuple[Stack, int, int]]:
    """Return sub-stacks with the span of their members; `views` keeps them differentiable."""
    size = min(plan.chunk_size or stack.num_modes, stack.num_modes)
    if size == stack.num_modes:
        return [(stack, 0, size)]
    parts = stack._parts.get((size, views))
    if parts is None:
        spans = [(a, min(a + size, stack.num_modes)) for a in range(0, stack.num_modes, size)]
        parts = stack._parts[size, views] = [(stack[a:b], a, b) for a, b in spans]
    for part, a, b in parts:
        part.train(stack.training)
        part._forwards = stack._forwards
        if views:
            part.params = {name: tensor[a:b] for name, tensor in stack.params.items()}
    return parts


class limit_threads:
    """Let torch use `number` threads within an operation; None changes nothing."""

    def __init__(self, number: int | None) -> None:
        self.before = torch.get_num_threads()
        self.number = number or self.before

    def __enter__(self) -> None:
        if self.number != self.before:
            torch.set_num_threads(self.number)

    def __exit__(self, *error: object) -> None:
        if torch.get_num_threads() != self.before:
            torch.set_num_threads(self.before)


_SILENCE = nullcontext()


def noise_of(seeds: list[int] | None, *, stacked: bool) -> Any:
    return _SILENCE if seeds is None else MemberNoise(seeds, stacked=stacked)


def noise_seeds(stack: Stack, x: Tensor, own: bool, step: int) -> list[int] | None:
    """Return the members' streams for this pass, or None for a network that draws nothing."""
    if stack.training not in stack._random:
        probe = stack[[0]].train(stack.training)
        with torch.no_grad(), watch() as watcher:
            probe.module(0)(x[0, :2] if own else x[:2])
        stack._random[stack.training] = watcher.drew
    return step_seeds(stack.seeds, step) if stack._random[stack.training] else None


def formatted(x: Tensor, channels_last: bool) -> Tensor:
    return channels_to_last(x) if channels_last and x.dim() >= 4 else x


def _check_inputs(stack: Stack, x: Tensor, own: bool) -> None:
    if own and x.shape[0] != stack.num_modes:
        raise ValueError(
            f"own=True takes inputs with one batch a member, ({stack.num_modes}, B, ...), got"
            f" {tuple(x.shape)}"
        )


def plan_for(
    stack: Stack,
    kind: str,
    run: Callable[[Stack, Tensor, Tensor], Any],
    x: Tensor,
    y: Tensor,
    own: bool,
) -> Plan:
    """Choose the plan for this kind of work, at the first call."""
    from polymode.core.choice import choose

    if stack.device.type == "cpu":
        keep_freed_memory()
    plan = choose(stack, kind, run, x, y, own)
    if stack.channels_last is None:
        stack.lay_out(plan.channels_last)
    stack._plans[kind] = plan
    return plan
