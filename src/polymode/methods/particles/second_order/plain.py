"""Input gradients and what they repel, by torch.autograd alone.

Shapes: `B` batch, `R` inputs of the batch that repel, `D` input dimensions, `K` coordinates; a
leading axis of members where there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.rows import leaves_of, map_leaves, spread
from polymode.methods.particles.terms import Terms
from polymode.tracing.attention import plain_attention


class Kept(NamedTuple):
    """What is kept between the passes: losses and input gradient, with their graphs."""

    losses: Tensor
    gradient: Tensor


class Plain(NamedTuple):
    """One member without a leading axis (`members` is None), or several with one.

    `whole`: all inputs go through the pass that is differentiated twice, also those that do not
    repel; networks whose examples see each other need that.
    """

    network: Callable[[Tensor], Tensor]
    leaves: list[Tensor]
    extra: dict[str, Tensor]
    members: int | None
    whole: bool

    def forward(self, terms: Terms, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Kept]:
        """Return losses (members,), J (members, R, D or K), and what the backward pass needs."""
        axis, rows = (0, terms.rows) if self.members is None else (1, terms.rows)
        inputs = x if self.members is None else spread(x, self.members)
        leaf = map_leaves(inputs, lambda t: _source(t if self.whole else t.narrow(axis, 0, rows)))
        sources = [t for t in leaves_of(leaf) if t.requires_grad]
        with plain_attention():  # the fused one has no second derivative
            outputs = self.network(leaf)
        scalars = terms.scalar(outputs.narrow(axis, 0, rows), y[:rows], self.extra)
        derivatives = _derivatives(scalars, sources)
        parts = [d.narrow(axis, 0, rows).flatten(axis + 1) for d in derivatives]
        gradient = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if terms.basis is not None:
            gradient = gradient @ terms.basis
        losses = terms.loss(outputs if self.whole else self.network(inputs), y, self.extra)
        values = gradient.detach() if self.members else gradient.detach().unsqueeze(0)
        return losses.detach().reshape(-1), values, Kept(losses, gradient)

    def backward(self, terms: Terms, kept: Kept, cotangent: Tensor) -> list[Tensor]:
        """Return the gradients of losses + weight · ⟨C, J⟩ with respect to the leaves."""
        heads = [torch.ones_like(kept.losses), (terms.weight * cotangent).view_as(kept.gradient)]
        number = 2 if kept.gradient.requires_grad else 1  # else J is the same for all weights
        gradients = torch.autograd.grad(
            kept[:number], self.leaves, heads[:number], allow_unused=True, materialize_grads=True
        )
        return list(gradients)


def _source(leaf: Tensor) -> Tensor:
    """Return what outputs are differentiated with respect to; identifiers and masks stay as they
    are."""
    leaf = leaf.detach()
    return leaf.requires_grad_() if leaf.is_floating_point() else leaf


def _derivatives(scalars: Tensor, sources: list[Tensor]) -> list[Tensor]:
    """Return the derivatives with respect to all inputs, 0 for one that the outputs ignore."""
    derivatives: Sequence[Tensor | None] = [None]
    if scalars.requires_grad:
        derivatives = torch.autograd.grad(
            scalars.sum(), sources, create_graph=True, allow_unused=True
        )
    if all(derivative is None for derivative in derivatives):
        raise ValueError(
            "the network's outputs do not depend on its inputs in a differentiable way, so there"
            " are no input gradients to repel; look for .detach(), no_grad or rounding in its"
            " forward method"
        )
    pairs = zip(derivatives, sources, strict=True)
    return [torch.zeros_like(source) if d is None else d for d, source in pairs]
