"""Gradients of members that repel each other through their input gradients.

Member i minimises loss_i + weight · R_i(J_1, ..., J_M) (`terms.py`), where J_i is the gradient of a
scalar of its outputs with respect to the inputs, and in R_i the other members' gradients are
constants. So the members meet once, in between, those of other ranks included: (1) forward pass and
input gradient of every member, (2) R and ∂R_i/∂J_i from the numbers J alone, (3) one backward pass
per member, through its outputs and its input gradient together. (1) and (3) run as the stack's
gradients do: batched, in a loop or in threads, and each in the quickest of the ways in
`second_order/`. Members whose graphs do not fit into half of the free memory go through (1) again
in (3).

Where only some of the inputs are to repel, the others go through a forward pass of their own,
unless the network mixes examples (BatchNorm) or draws noise (dropout): then all go through one, so
that statistics and masks are those of the plain step.

With a basis U (D, K) of the inputs, J is the gradient with respect to the K coordinates z of the
inputs x + U z: Uᵀ times that with respect to the inputs.

Shapes: `M` modes, `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `K`
coordinates.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.memory import free_bytes
from polymode.core.rows import Inputs, leaves_of
from polymode.core.threads import for_each_member
from polymode.distributed import ranks
from polymode.methods.particles.second_order.batch_norm import QuickBatchNorm
from polymode.methods.particles.second_order.dense_chain import DenseChain, dense_chain
from polymode.methods.particles.second_order.plain import Plain
from polymode.methods.particles.terms import Terms
from polymode.stack import execution
from polymode.stack.embedded import embeddings_of, with_shifts
from polymode.stack.execution import limit_threads
from polymode.stack.fast.plan import Job, Plan, member_bytes
from polymode.stack.stack import Stack
from polymode.tracing.embeddings import with_zero_shifts
from polymode.tracing.noise import Streams


class _Unit(NamedTuple):
    """What is evaluated at once: one member or several."""

    way: Plain | DenseChain
    members: int
    grads: list[Tensor] | None  # where gradients are written, views of the leaves' `.grad`; None:
    # it is all members at once, and its gradients become the leaves' own
    buffers: list[Tensor]  # views of the stack's


def repelled_gradients(
    stack: Stack, terms: Terms, x: Tensor, y: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """Set `.grad` of the stack's leaves; return the members' losses (M,) and repulsions (M,)."""
    stack, x = with_sources(stack, x)
    if "repulsion" not in stack.plans:

        def run(part: Stack, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
            return _run(part, part.plans["gradients"], terms, xs, ys, step)

        job = Job("repulsion", run, x, y, False)
        plan = execution.plan_for(stack, job)
        if plan.execution in ("loop", "threads"):
            kept = stack.chunk_size or ranks.agreed(lambda: _graphs_that_fit(stack, job))
            stack.plans["repulsion"] = plan._replace(chunk_size=kept)
    return _run(stack, stack.plans["repulsion"], terms, x, y, step)


def with_sources(stack: Stack, x: Inputs) -> tuple[Stack, Any]:
    """Return networks and inputs with real numbers to differentiate with respect to.

    These are the floating-point inputs, and what embeddings make of identifiers: a shift of zeros
    is then an input of its own.
    """
    if all(leaf.is_floating_point() for leaf in leaves_of(x)):
        return stack, x
    shapes = embeddings_of(stack, x)
    if not shapes:
        return stack, x
    like = next(iter(stack.params.values()))
    return with_shifts(stack, list(shapes)), with_zero_shifts(x, shapes, like)


def _graphs_that_fit(stack: Stack, job: Job) -> int:
    """Return how many members keep their graphs, in half of the free memory; those of others are
    computed again, to the same bits."""
    fit = int(0.5 * free_bytes(stack.device) // member_bytes(stack, job))
    return max(1, min(stack.num_modes, fit))


def _run(
    stack: Stack, plan: Plan, terms: Terms, x: Tensor, y: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    x = execution.formatted(x, plan.channels_last)
    with limit_threads(plan.num_threads):
        units = _units(stack, plan, terms, x, step)
        chunk = 1 if plan.execution in ("batched", "chunked") else plan.chunk_size
        spread = for_each_member if plan.execution == "threads" else _in_turn
        losses: list[Any] = [None] * len(units)
        parts: list[Any] = [None] * len(units)
        graphs: list[Any] = [None] * len(units)

        def forward(k: int) -> None:
            losses[k], parts[k], graph = units[k].way.forward(terms, x, y)
            if chunk is None or k >= len(units) - chunk:  # the last: none waits for others
                graphs[k] = graph

        spread(len(units), forward)
        gradients = parts[0] if len(parts) == 1 else torch.cat(parts)
        parts.clear()
        values, cotangent = terms.repel(ranks.gather(gradients))
        del gradients
        values, cotangent = ranks.own(values), ranks.own(cotangent)
        cotangents = cotangent.split([unit.members for unit in units])

        def backward(turn: int) -> None:
            k = len(units) - 1 - turn
            unit, before = units[k], []
            if graphs[k] is None:  # it was dropped
                before = [buffer.clone() for buffer in unit.buffers]
                *_, graphs[k] = unit.way.forward(terms, x, y)
            found = unit.way.backward(terms, graphs[k], cotangents[k])
            graphs[k] = None
            if unit.grads is None:
                for leaf, grad in zip(stack.leaves(), found, strict=True):
                    leaf.grad = execution.in_layout_of(leaf, grad)
            else:
                torch._foreach_copy_(unit.grads, found)
            for buffer, value in zip(unit.buffers, before, strict=False):
                buffer.copy_(value)  # running statistics do not move twice

        spread(len(units), backward)
    return torch.cat(losses), values


def _in_turn(number: int, work: Callable[[int], None]) -> None:
    for k in range(number):
        work(k)


def _units(stack: Stack, plan: Plan, terms: Terms, x: Tensor, step: int) -> list[_Unit]:
    """Return the members, or chunks of them, as the plan evaluates them."""
    streams = execution.streams_of(stack, x, False, step)
    whole = terms.rows == len(x) or streams is not None or _mixes_examples(stack)
    by_member = plan.execution in ("loop", "threads")
    number = stack.num_modes
    size = 1 if by_member else min(plan.chunk_size or number, number)
    spans = [(a, min(a + size, number)) for a in range(0, number, size)]
    apart = by_member or size < number
    if apart:
        execution.grad_buffers(stack)
    chain = None if terms.slopes is None else dense_chain(stack, x)
    if chain is not None:
        return [
            _Unit(chain.members(a, b), b - a, _grads(stack, a, b) if apart else None, [])
            for a, b in spans
        ]
    units = []
    if by_member:
        quick = _has_batch_norm(stack)
        for k, views in enumerate(execution.grad_buffers(stack)):
            network = _member(stack, k, streams and streams[k : k + 1], quick)
            way = Plain(network, stack.leaf_views(k), stack.extra_of(k), None, whole)
            units.append(_Unit(way, 1, views, [b[k] for b in stack.buffers.values()]))
        return units
    for part, a, b in execution.chunks(stack, plan, views=False):
        network = partial(
            execution.batched, part, per_member=True, streams=streams and streams[a:b]
        )
        way = Plain(network, part.leaves(), part.extra, b - a, whole)
        grads = _grads(stack, a, b) if apart else None
        units.append(_Unit(way, b - a, grads, list(part.buffers.values())))
    return units


def _grads(stack: Stack, a: int, b: int) -> list[Tensor]:
    """Return where the gradients of members a to b are written."""
    return [leaf.grad[a:b] for leaf in stack.leaves() if leaf.grad is not None]


def _member(
    stack: Stack, k: int, streams: Streams | None, quick: bool
) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of member k; the module is built here, not in a thread."""
    module = execution.quick_member(stack, k)

    def forward(x: Tensor) -> Tensor:
        with (
            execution.noise_of(streams, stacked=False),
            QuickBatchNorm() if quick else nullcontext(),
        ):
            outputs = module(x)
        stack.write_back_buffers(k)
        return outputs

    return forward


def _has_batch_norm(stack: Stack) -> bool:
    norms = nn.modules.batchnorm._BatchNorm
    return any(isinstance(module, norms) for module in stack.template.modules())


def _mixes_examples(stack: Stack) -> bool:
    """Whether an example's output may depend on the others: statistics of the batch."""
    return stack.training and (_has_batch_norm(stack) or bool(stack.buffers))
