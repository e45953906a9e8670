"""Steps that the curvature allows: how large it is along a chain, and steps cut to suit it.

    v ← H v / |H v|,   κ ← max(|H v|, 0.95 κ),   H v ≈ (∇U(θ + ε v) − ∇U(θ)) / (ε N)
    lr κ ≤ `step_limit`

H is the Hessian of U/N on a batch, v a direction that is carried along: one round of the power
method per measurement, at the price of one gradient. A leapfrog step is stable for lr κ < 4, a
Langevin step for lr κ < 2; the noise of a regression falls by orders of magnitude while a chain
learns it, and the curvature grows with its inverse square. A step that is too long is cut for that
chain alone, as by a preconditioner s² = step_limit / (lr κ). It is measured while no sample is kept
and frozen afterwards, so that the law stays the same.

Shapes: `M` modes (chains), `P` parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from polymode.stack.stack import Stack
from polymode.tracing.modules import Tensors

DIRECTION, CURVATURE = "direction", "curvature"
_MEMORY, _REACH = 0.95, 1e-3  # of κ from one measurement to the next; of ε in units of |θ|
_FIRST, _EVERY = 10, 5  # steps that are all measured at the start, and steps from then on


def no_curvature(stack: Stack) -> Tensors:
    """Return the state before the first measurement: v (M, P), of length 1, and κ (M,)."""
    direction = stack.normal_rows("step_limit", "start")
    direction /= direction.norm(dim=1, keepdim=True)
    return {DIRECTION: direction, CURVATURE: direction.new_zeros(len(direction))}


def is_due(number: int) -> bool:
    """Whether step `number`, from 0, is one of those that measure."""
    return number < _FIRST or number % _EVERY == 0


@torch.no_grad()
def measure_curvature(
    state: Tensors,
    stack: Stack,
    gradients: list[Tensor],
    gradients_again: Callable[[], list[Tensor]],
    scales: Tensor | None,
) -> None:
    """Take one round of the power method; the networks are left as they were.

    Args:
        gradients: of U/N at θ, like `stack.leaves()`, and afterwards in their `.grad` again.
        gradients_again: returns them at the parameters as they are then, on the same batch.
        scales: of a preconditioner, (M, P), in whose coordinates the step is taken.
    """
    leaves, size = stack.leaves(), len(state[CURVATURE])
    before = [tensor.clone() for tensor in leaves]
    buffers = {name: tensor.clone() for name, tensor in stack.buffers.items()}
    first = _rows(gradients, size)
    reach = _REACH * _rows(before, size).norm(dim=1, keepdim=True).clamp_min(1.0)
    shift = reach * state[DIRECTION] * (1.0 if scales is None else scales)
    torch._foreach_add_(leaves, stack.as_leaves(shift))
    with torch.enable_grad():
        moved = gradients_again()
    change = (_rows(moved, size) - first) / reach
    change = change if scales is None else change * scales
    torch._foreach_copy_(leaves, before)
    for leaf, gradient in zip(leaves, stack.as_leaves(first), strict=True):
        assert leaf.grad is not None
        leaf.grad.copy_(gradient)
    for name, tensor in buffers.items():
        stack.buffers[name].copy_(tensor)
    length = change.norm(dim=1)
    usable = torch.isfinite(length) & (length > 0)
    longest = torch.maximum(length, _MEMORY * state[CURVATURE])
    state[CURVATURE].copy_(torch.where(usable, longest, state[CURVATURE]))
    rows = usable.unsqueeze(1)
    state[DIRECTION].copy_(torch.where(rows, change / length.unsqueeze(1), state[DIRECTION]))


def _rows(tensors: list[Tensor], size: int) -> Tensor:
    return torch.cat([tensor.reshape(size, -1) for tensor in tensors], 1)


def shortening(state: Tensors, lr: float, limit: float) -> Tensor:
    """Return s (M, 1), at most 1, so that the step lr s² has lr s² κ ≤ limit."""
    curvature = state[CURVATURE].clamp_min(torch.finfo(state[CURVATURE].dtype).tiny)
    return (limit / (lr * curvature)).clamp_max(1.0).sqrt().unsqueeze(1)
