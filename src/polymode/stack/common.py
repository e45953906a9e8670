"""What members share and train together: one row (1, ...), whose gradient is the members' mean.

`Stack.common` holds leaves (1, ...) beside the members' own; `Stack.frozen` has the same memory as
all members see it, so whatever reads frozen tensors (files, slices, prediction) reads these. A
step sets their `.grad` to the mean of the gradients of the members' losses, as one network has it
whose batch is divided among members: sums would make the step depend on how many members there are.

Shapes: `M` modes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polymode.stack.sharing import spread
from polymode.tracing.modules import channels_to_last, keep_statistics

if TYPE_CHECKING:
    from polymode.stack.stack import Stack


def train_in_common(stack: Stack, names: Iterable[str]) -> None:
    """Let frozen parameters, of which all members have the same, be trained as one."""
    for name in names:
        leaf = stack.frozen[name][:1].detach().clone().requires_grad_()
        stack.common[name] = leaf
        stack.frozen[name] = spread(leaf.detach(), stack.num_modes)
    keep_statistics(stack.template, stack.frozen.keys() - stack.common.keys())
    stack._renew()


def take_in_common(stack: Stack, name: str, row: Tensor) -> None:
    """Let a parameter have the same values (1, ...) in all members, which train it as one."""
    leaf = row.detach().clone().requires_grad_()
    stack.params = {n: tensor for n, tensor in stack.params.items() if n != name}
    stack.common[name] = leaf
    frozen = {**stack.frozen, name: spread(leaf.detach(), stack.num_modes)}
    stack.frozen = {n: frozen[n] for n in stack.network.aliases if n in frozen}
    stack._renew()


def lay_out_last(stack: Stack, name: str) -> None:
    """Keep a convolution's weight in channels_last format, in the leaf that an optimiser holds."""
    leaf = stack.common[name]
    leaf.data = channels_to_last(leaf.data)
    stack.frozen[name] = spread(leaf.detach(), stack.num_modes)


def rows(stack: Stack) -> dict[str, Tensor]:
    """Return what is trained in common without a member axis, differentiable."""
    return {name: leaf[0] for name, leaf in stack.common.items()}


def clear_gradients(leaves: Iterable[Tensor]) -> None:
    """Set gradients to zero, to which members' are added."""
    for leaf in leaves:
        leaf.grad = torch.zeros_like(leaf)


@torch.no_grad()
def add_gradients(leaves: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    """Add gradients, of one member (...) or of several (1, ...), to those that are there."""
    for leaf, grad in zip(leaves, grads, strict=True):
        assert leaf.grad is not None
        leaf.grad += grad.reshape(leaf.shape)


@torch.no_grad()
def average_gradients(stack: Stack) -> None:
    """Make sums over members the mean."""
    for leaf in stack.common.values():
        if leaf.grad is not None:
            leaf.grad /= stack.num_modes
