"""Networks as symmetries act on them: stacked tensors in float64, some members at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from polymode.posterior import Noisy, Posterior
from polymode.stack.stack import Stack
from polymode.symmetry.find import find
from polymode.symmetry.unit_groups import Symmetries
from polymode.tracing.modules import Tensors

Networks = Stack | Posterior | nn.Module | Sequence[nn.Module]
IN_CACHE, IN_MEMORY = 2**23, 2**28  # bytes of the members that are worked on at a time


def stack_of(networks: Networks) -> Stack:
    """Return networks as a stack; of a posterior, all samples of its modes, mode by mode."""
    if isinstance(networks, Stack):
        stack = networks
    elif isinstance(networks, Posterior):
        weights = networks.weights
        if isinstance(weights.inner, Noisy):
            raise ValueError(
                f"samples of {networks.method} are noise of the forward pass, not weights; take the"
                " networks that carry the noise: post.stack"
            )
        pairs = [(m, j) for m in range(weights.num_modes) for j in range(weights.samples_per_mode)]
        stack = (
            weights.stack
            if len(pairs) == weights.num_modes and weights.most == 1
            else weights.gather(pairs, 0)
        )
    else:
        stack = Stack(networks)
    if stack.members_differ:
        raise ValueError(
            f"members differ in {', '.join(stack.members_differ)}, so that they are not one"
            " architecture; give those of one kind"
        )
    return stack


def symmetries_of(networks: Networks, stack: Stack, symmetries: Symmetries | None) -> Symmetries:
    """Return the symmetries of networks, those that were given if any."""
    if symmetries is None:
        return find(networks if isinstance(networks, Posterior) else stack)
    shapes = tensors_of(stack)
    for place in symmetries.places:
        have = shapes.get(place.name)
        if have is None or (place.axis >= 0 and have.dim() - 1 != place.label.ndim):
            raise ValueError(
                f"the symmetries are those of another network, {symmetries.network}: '{place.name}'"
                " does not match; find them anew with find(net)"
            )
    return symmetries


def tensors_of(stack: Stack) -> Tensors:
    """Return all tensors of the network (M, ...) by name."""
    return {n: t.detach() for n, t in {**stack.params, **stack.frozen, **stack.buffers}.items()}


def require_finite(tensors: Tensors) -> None:
    """Refuse networks with NaN or infinity, and name the first."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or torch.isfinite(tensor.sum()):
            continue
        bad = ~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1)
        if bad.any():  # a sum is fast, but may overflow
            raise ValueError(
                f"'{name}' holds NaN or infinity in {int(bad.sum())} of {len(tensor)} networks, the"
                f" first is network {int(bad.nonzero()[0])}; leave these out: stack[[0, 2, ...]]"
            )


def in_parts(tensors: Tensors, num_bytes: int = IN_MEMORY) -> Iterator[tuple[slice, Tensors]]:
    """Yield members in float64, a part at a time."""
    modes = len(next(iter(tensors.values())))
    member_bytes = sum(8 * t[0].numel() for t in tensors.values())
    step = max(1, num_bytes // max(member_bytes, 1))
    for start in range(0, modes, step):
        part = slice(start, min(start + step, modes))
        yield part, {n: _double(tensor[part]) for n, tensor in tensors.items()}


def _double(tensor: Tensor) -> Tensor:
    """A copy that may be changed."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def write(stack: Stack, part: slice, tensors: Tensors) -> None:
    """Copy tensors of some members into a stack."""
    targets = tensors_of(stack)
    for name, tensor in tensors.items():
        targets[name][part] = tensor.to(targets[name].dtype)
