"""What members have in common: frozen tensors that are held once.

A frozen tensor with the same values in all members is held as one row that is expanded,
`(1, ...).expand(M, ...)`: every index stays right, and the memory is that of one member. Such rows
are never written in place, since other stacks, and the network that they come from, may hold them;
other values take their place (`Stack.load_tensors`).

Shapes: `M` modes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from polymode.tracing.modules import channels_to_last


def is_shared(tensor: Tensor) -> bool:
    """Whether a tensor (M, ...) is one row that all members see."""
    return tensor.dim() > 0 and tensor.stride(0) == 0


def row_of(tensor: Tensor) -> Tensor:
    """Return what a tensor (M, ...) takes in memory: (1, ...) where members share it."""
    return tensor[0].unsqueeze(0) if is_shared(tensor) else tensor  # no stride of 0 is left


def num_bytes(tensor: Tensor) -> int:
    """Return the memory that a tensor (M, ...) takes."""
    row = row_of(tensor)
    return row.numel() * row.element_size()


def digest(tensor: Tensor) -> str:
    """Return a hash of the values of one row (1, ...), and of their type and shape."""
    row = tensor.detach()[0].cpu().contiguous()
    digest = hashlib.blake2b(f"{row.dtype}{tuple(row.shape)}".encode(), digest_size=16)
    digest.update(row.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def spread(row: Tensor, num_modes: int) -> Tensor:
    """Return one row (1, ...) as all members see it, (M, ...)."""
    return row.expand(num_modes, *row.shape[1:])


def pick(tensor: Tensor, members: Sequence[int]) -> Tensor:
    """Return some members of a frozen tensor; what they share, or have of one member, is shared."""
    if is_shared(tensor) or len(tensor) == 1:
        return spread(tensor[:1], len(members))
    return tensor[torch.tensor(members, device=tensor.device)]


def last_channels(tensor: Tensor) -> Tensor:
    """Return (M, O, C, H, W) in channels_last format, shared if it was."""
    return spread(channels_to_last(row_of(tensor)), len(tensor))


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return frozen tensors (m, ...) of several parts as one (M, ...), shared if all are equal."""
    first, num_modes = parts[0][:1], sum(len(part) for part in parts)
    one_row = all(is_shared(part) or len(part) == 1 for part in parts)
    if one_row and all(torch.equal(part[:1], first) for part in parts):
        return spread(first, num_modes)
    return torch.cat(list(parts))


def replaced(tensor: Tensor, values: Tensor) -> Tensor:
    """Return a frozen tensor with other values (M, ...), shared if these agree; the tensor itself
    if they are its own."""
    if values.data_ptr() == tensor.data_ptr() and values.stride() == tensor.stride():
        return tensor
    values = row_of(values)
    if torch.equal(spread(values, len(tensor)) if len(values) == 1 else values, tensor):
        return tensor
    if len(values) > 1 and torch.equal(values, spread(values[:1], len(values))):
        values = values[:1]
    return spread(values.detach().to(tensor, copy=True), len(tensor))
