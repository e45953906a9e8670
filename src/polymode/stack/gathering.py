"""From modules to stacked tensors: what a stack is built of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from polymode.core.memory import free_bytes, human, require_free
from polymode.tracing.modules import (
    Tensors,
    check_same,
    differing,
    named_tensors,
    plain_attributes,
    with_registered_tensors,
)
from polymode.tracing.network import Network, without_values


class Gathered(NamedTuple):
    """The members' tensors (M, ...) by name, and their common network.

    `apart` holds members whose plain attributes differ from those of member 0, `apart_keys` in
    what.
    """

    network: Network
    params: Tensors
    frozen: Tensors
    buffers: Tensors
    apart: dict[int, nn.Module]
    apart_keys: set[str]


def gather(
    modules: Iterable[nn.Module],
    num_modes: int,
    dtype: torch.dtype | None,
    device: torch.device,
) -> Gathered:
    """Copy the tensors of modules into stacked ones, one module after another; where there are
    fewer modules than `num_modes`, the rest holds no values."""
    apart: dict[int, nn.Module] = {}
    apart_keys: set[str] = set()
    for k, module in enumerate(modules):
        module = with_registered_tensors(module)
        tensors = named_tensors(module)
        if k == 0:
            first, first_state = tensors, plain_attributes(module)
            network = Network(module)
            trainable = {n: p.requires_grad for n, p in module.named_parameters()}
            _require_room(tensors, num_modes, dtype, device)
            stacked = {
                name: torch.empty(
                    (num_modes, *tensor.shape),
                    dtype=dtype if dtype and tensor.is_floating_point() else tensor.dtype,
                    device=device,
                )
                for name, tensor in tensors.items()
            }
        else:
            check_same(first, tensors, k)
            attributes = differing(first_state, plain_attributes(module))
            if attributes:
                apart[k] = without_values(module)
                apart_keys |= attributes
        for name, tensor in tensors.items():
            stacked[name][k] = tensor.detach()
    params = {n: stacked[n].requires_grad_() for n, learns in trainable.items() if learns}
    frozen = {n: stacked[n] for n, learns in trainable.items() if not learns}
    buffers = {n: t for n, t in stacked.items() if n not in trainable}
    return Gathered(network, params, frozen, buffers, apart, apart_keys)


def _require_room(
    tensors: Tensors, num_modes: int, dtype: torch.dtype | None, device: torch.device
) -> None:
    """Refuse a stack that is larger than the free memory."""
    member_bytes = sum(
        t.numel() * (dtype if dtype and t.is_floating_point() else t.dtype).itemsize
        for t in tensors.values()
    )
    fit = int(free_bytes(device) // max(member_bytes, 1))
    networks = (
        f"{num_modes:,} networks of {human(member_bytes)}" if num_modes > 1 else "one network"
    )
    remedy = f"Take fewer: {fit:,} would fit" if fit else "Take a smaller one"
    if num_modes > 1 and fit:
        remedy += ", and training needs two to four times as much"
    require_free(member_bytes * num_modes, f"{networks} in a stack", remedy, device)
