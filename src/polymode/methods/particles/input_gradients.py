"""Gradients of members that repel each other through their input gradients.

Member i minimises loss_i + weight · R_i(J_1, ..., J_M), where J_i is the gradient of a scalar of
its outputs by the inputs, and in R_i the other members' gradients are constants. So the members
meet once, in between: (1) forward pass and input gradient of every member, (2) R and ∂R_i/∂J_i from
the numbers J alone, (3) one backward pass a member, through its outputs and its input gradient
together. (1) and (3) run as the stack's gradients do: batched, in a loop or in threads.

Where the network is piecewise linear and so is the scalar, J depends on weights and masks but not
on activations. Then the losses have their backward pass in (1) already, and what it needed is freed
before the next member's turn. Members whose graphs do not fit into half of the free memory go
through (1) again in (3).

Where only some of the inputs are to repel, the others go through a forward pass of their own,
unless the network mixes examples (BatchNorm) or draws noise (dropout): then all go through one, so
that statistics and masks are those of the plain step.

Chains of linear layers, convolutions, ReLUs and max-pooling do the same without autograd
(`chains.py`).

With a basis U (D, K) of the inputs, J is the gradient by the K coordinates z of the inputs x + U z:
Uᵀ times that by the inputs, and quicker where a wide linear layer comes first.

Shapes: `M` modes, `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `K`
coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from polymode.core import execution
from polymode.core.choice import Plan, members_that_fit
from polymode.core.execution import Loss, limit_threads
from polymode.core.stack import Stack
from polymode.core.threads import for_each_member
from polymode.methods.particles.chains import dense_chain, member_chain
from polymode.methods.particles.dense_chains import DenseChain
from polymode.methods.particles.derivatives import QuickDerivatives
from polymode.methods.particles.member_chains import MemberChain


class Terms(NamedTuple):
    """What the members minimise.

    Attributes:
        loss: (outputs (..., B, K), targets, extra) -> (...).
        scalar: (outputs (..., R, K), targets, extra) -> (..., R), what is differentiated by inputs.
        repel: J (M, R, D) -> R_i (M,) and ∂R_i/∂J_i (M, R, D).
        weight: of the repulsion beside the loss.
        rows: R ≤ B; the first of the batch.
        basis: U (D, K), orthonormal, or None; with it J is (M, R, K).
        slopes: (outputs, targets) -> (R, K), gradients of the scalar by the outputs where it is
            linear in them, so that all members have the same; None where it is not.
        loss_gradient: (outputs, targets) -> the loss and its gradient by the outputs, beside
            `slopes`.
    """

    loss: Loss
    scalar: Loss
    repel: Callable[[Tensor], tuple[Tensor, Tensor]]
    weight: float
    rows: int
    basis: Tensor | None = None
    slopes: Callable[[Tensor, Tensor], Tensor] | None = None
    loss_gradient: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None


class _Unit(NamedTuple):
    """What is evaluated at once: one member, or several with a leading axis."""

    forward: Callable[[Tensor], Tensor]
    extra: dict[str, Tensor]
    leaves: list[Tensor]
    grads: list[Tensor] | None  # where gradients are written, views of the stack's `.grad`;
    # None: the leaves are the stack's own
    members: int | None  # None: one member without the axis
    mode: QuickDerivatives
    buffers: list[Tensor]  # views of the stack's
    chain: DenseChain | MemberChain | None = None


class _Passed(NamedTuple):
    """A unit after its forward pass; with their graphs, unless these were dropped."""

    losses: Tensor  # requires gradients if their backward pass is still to come
    graph: Any  # where a backward pass of the input gradient begins, or what a chain keeps for it
    shape: torch.Size  # of the input gradient
    written: bool  # whether the gradients of the losses are


def repelled_gradients(
    stack: Stack, terms: Terms, x: Tensor, y: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """Set `.grad` of the stack's leaves; return the members' losses (M,) and repulsions (M,)."""
    if "repulsion" not in stack.plans:

        def run(part: Stack, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
            return _run(part, part.plans["gradients"], terms, xs, ys, step)

        plan = execution.plan_for(stack, "repulsion", run, x, y, False)
        if plan.execution in ("loop", "threads"):  # so many members keep their graphs
            kept = stack.chunk_size or members_that_fit(stack, run, x, y, False)
            stack.plans["repulsion"] = plan._replace(chunk_size=kept)
    return _run(stack, stack.plans["repulsion"], terms, x, y, step)


def _run(
    stack: Stack, plan: Plan, terms: Terms, x: Tensor, y: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    seeds = execution.streams_of(stack, x, False, step)
    whole = terms.rows == len(x) or seeds is not None or _mixes_examples(stack)
    x = execution.formatted(x, plan.channels_last)
    with limit_threads(plan.num_threads):
        units = _units(stack, plan, seeds, None if terms.slopes is None else x)
        kept = 1 if plan.execution in ("batched", "chunked") else plan.chunk_size
        spread = for_each_member if plan.execution == "threads" else _in_turn
        passed: list[Any] = [None] * len(units)
        parts: list[Any] = [None] * len(units)

        def forward(k: int) -> None:
            found, parts[k] = _forward(units[k], terms, x, y, whole)
            fits = kept is None or k >= len(units) - kept  # the last: none waits for others
            passed[k] = found if fits else found._replace(losses=found.losses.detach(), graph=None)

        spread(len(units), forward)
        gradients = parts[0] if len(parts) == 1 else torch.cat(parts)
        parts.clear()
        values, cotangent = terms.repel(gradients)
        del gradients
        cotangents = cotangent.split([unit.members or 1 for unit in units])
        losses = torch.cat([p.losses.detach().reshape(-1) for p in passed])

        def backward(turn: int) -> None:
            k = len(units) - 1 - turn
            found, passed[k] = passed[k], None  # frees the graph
            before = []
            if found.graph is None:  # it was dropped
                before = [buffer.clone() for buffer in units[k].buffers]
                found, _ = _forward(units[k], terms, x, y, whole, found.written)
            _backward(units[k], found, cotangents[k], terms)
            for buffer, value in zip(units[k].buffers, before, strict=False):
                buffer.copy_(value)  # running statistics do not move twice

        spread(len(units), backward)
    return losses, values


def _in_turn(number: int, work: Callable[[int], None]) -> None:
    for k in range(number):
        work(k)


def _units(stack: Stack, plan: Plan, seeds: list[int] | None, x: Tensor | None) -> list[_Unit]:
    """Return the members, or chunks of them, as the plan evaluates them; with inputs x as chains
    where they are such."""
    if plan.execution in ("batched", "chunked"):
        chunks = execution.chunks(stack, plan, views=False)
        if len(chunks) == 1:
            mode = QuickDerivatives()
            whole = partial(_together, stack, seeds, mode)
            chain = None if x is None else dense_chain(stack, x)
            leaves = stack.leaves()
            return [_Unit(whole, stack.extra, leaves, None, stack.num_modes, mode, [], chain)]
        execution.grad_buffers(stack)
        grads = [leaf.grad for leaf in stack.leaves()]
        modes = [QuickDerivatives() for _ in chunks]
        return [
            _Unit(
                partial(_together, part, seeds and seeds[a:b], mode),
                part.extra,
                part.leaves(),
                [grad[a:b] for grad in grads if grad is not None],
                b - a,
                mode,
                list(part.buffers.values()),
                None if x is None else dense_chain(part, x),
            )
            for (part, a, b), mode in zip(chunks, modes, strict=True)
        ]
    views = execution.grad_buffers(stack)
    modes = [QuickDerivatives() for _ in range(stack.num_modes)]
    return [
        _Unit(
            _member(stack, k, seeds and seeds[k : k + 1], modes[k]),
            stack.extra_of(k) if stack.extra else {},
            stack.leaf_views(k),
            views[k],
            None,
            modes[k],
            [buffer[k] for buffer in stack.buffers.values()],
            None if x is None else member_chain(stack, k, x),
        )
        for k in range(stack.num_modes)
    ]


def _together(part: Stack, seeds: list[int] | None, mode: QuickDerivatives, x: Tensor) -> Tensor:
    """The forward pass of all members of `part`; under vmap, derivatives stay torch's own."""
    with nullcontext() if execution.dense_program(part) is None else mode:
        return execution.batched(part, x, True, seeds)


def _member(
    stack: Stack, k: int, seeds: list[int] | None, mode: QuickDerivatives
) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of member k; the module is built here, not in a thread."""
    module = execution.quick_member(stack, k)

    def forward(x: Tensor) -> Tensor:
        with execution.noise_of(seeds, stacked=False), mode:
            outputs = module(x)
        if stack.training and stack.buffers:
            stack.write_back_buffers(k)
        return outputs

    return forward


def _forward(
    unit: _Unit, terms: Terms, x: Tensor, y: Tensor, whole: bool, written: bool = False
) -> tuple[_Passed, Tensor]:
    """Return losses and input gradient of a unit, and the latter's values (members, R, D).

    Writes the gradients of the losses where J allows it; leaves the losses alone if theirs are
    `written` already.
    """
    if unit.chain is not None:
        losses, grads, kept, gradient = unit.chain.forward(terms, x, y, written)
        if not written:
            _write(unit, grads)
        return _Passed(losses, kept, gradient.shape, True), gradient
    axis, rows = (0, terms.rows) if unit.members is None else (1, terms.rows)
    inputs = x if unit.members is None else x.expand(unit.members, *x.shape)
    leaf = inputs if whole else inputs.narrow(axis, 0, rows)
    leaf = leaf.detach().requires_grad_()
    unit.mode.inputs = leaf.data_ptr()
    if terms.basis is not None:
        shape = *leaf.shape[: axis + 1], terms.basis.shape[1]
        coordinates = leaf.new_zeros(1).expand(shape).requires_grad_()
        unit.mode.basis, unit.mode.coordinates = terms.basis, coordinates
    outputs = unit.forward(leaf)
    repelled = outputs if rows == outputs.shape[axis] else outputs.narrow(axis, 0, rows)
    scalars = terms.scalar(repelled, y[:rows], unit.extra)
    if not scalars.requires_grad:
        raise _independent()
    gradient = _input_gradient(unit, scalars, leaf, terms.basis)
    if gradient.shape[axis] != rows:
        gradient = gradient.narrow(axis, 0, rows)
    losses = scalars.new_empty(0)
    if not written:
        losses = terms.loss(outputs if whole else unit.forward(inputs), y, unit.extra)
        if not whole or not _leads_to(gradient, leaf):
            ones, leaves = torch.ones_like(losses), unit.leaves
            found = torch.autograd.grad(losses, leaves, ones, retain_graph=True, allow_unused=True)
            _write(unit, found)
            losses, written = losses.detach(), True
    edge = get_gradient_edge(gradient) if gradient.requires_grad else None
    values = gradient.detach()
    values = (values if unit.members else values.unsqueeze(0)).flatten(2)
    return _Passed(losses, edge, gradient.shape, written), values


def _input_gradient(unit: _Unit, scalars: Tensor, leaf: Tensor, basis: Tensor | None) -> Tensor:
    """Return J with its graph: by the inputs, or by their coordinates along the basis."""
    sources = [leaf]
    if unit.mode.coordinates is not None:
        sources.append(unit.mode.coordinates)
    unit.mode.inputs_only = True
    found = torch.autograd.grad(scalars.sum(), sources, create_graph=True, allow_unused=True)
    unit.mode.inputs_only = False
    if basis is not None and found[0] is not None:
        axis = 1 if unit.members is None else 2
        found = (found[0].flatten(axis) @ basis, *found[1:])
    parts = [part for part in found if part is not None]
    if not parts:
        raise _independent()
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _leads_to(value: Tensor, leaf: Tensor) -> bool:
    """Whether the graph of `value` ends in `leaf`, too."""
    todo, seen = [value.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", None) is leaf:
            return True
        seen.add(node)
        todo += [source for source, _ in node.next_functions]
    return False


def _backward(unit: _Unit, passed: _Passed, cotangent: Tensor, terms: Terms) -> None:
    """Add the gradients of weight · ⟨cotangent, input gradient⟩ to those of the losses."""
    losses, graph, shape, _ = passed
    if graph is None:  # the input gradient is the same whatever the weights are
        return
    if unit.chain is not None:
        unit.chain.backward(terms, graph, cotangent, _grads(unit))
        return
    force = cotangent.reshape(shape)
    if losses.requires_grad:
        heads = [torch.ones_like(losses), force.mul(terms.weight)]
        ends = [get_gradient_edge(losses), graph]
        found = torch.autograd.grad(ends, unit.leaves, heads, allow_unused=True)
        _write(unit, found)
        return
    pairs = zip(unit.leaves, _grads(unit), strict=True)
    unit.mode.sums = {leaf.data_ptr(): grad for leaf, grad in pairs}
    unit.mode.factor = terms.weight
    found = torch.autograd.grad(graph, unit.leaves, force, allow_unused=True)
    _write(unit, found, terms.weight)


def _write(unit: _Unit, found: Sequence[Tensor | None], weight: float | None = None) -> None:
    """Set the unit's gradients, or add `weight` times these to them; None is zero."""
    if weight is not None:
        pairs = [p for p in zip(_grads(unit), found, strict=True) if p[1] is not None]
        if pairs:
            torch._foreach_add_(*map(list, zip(*pairs, strict=True)), alpha=weight)
        return
    grads = [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(unit.leaves, found, strict=True)
    ]
    if unit.grads is not None:
        torch._foreach_copy_(unit.grads, grads)
        return
    for leaf, grad in zip(unit.leaves, grads, strict=True):
        leaf.grad = execution.in_layout_of(leaf, grad)


def _grads(unit: _Unit) -> list[Tensor]:
    """Return where the unit's gradients are, in the order of its leaves."""
    return unit.grads or [leaf.grad for leaf in unit.leaves if leaf.grad is not None]


def _mixes_examples(stack: Stack) -> bool:
    """Whether an example's output may depend on the others: statistics of the batch."""
    norms = (nn.modules.batchnorm._BatchNorm,)
    mixing = any(isinstance(module, norms) for module in stack.template.modules())
    return stack.training and (mixing or bool(stack.buffers))


def _independent() -> ValueError:
    return ValueError(
        "the network's outputs do not depend on its inputs in a differentiable way, so there are no"
        " input gradients to repel; look for .detach(), no_grad or rounding in its forward method"
    )
