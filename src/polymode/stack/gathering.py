"""From modules to stacked tensors: what a stack is built of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.memory import free_bytes, human, require_free
from polymode.stack.sharing import spread
from polymode.stack.trainable import Choice, trained_names
from polymode.tracing.modules import (
    Tensors,
    check_same,
    differing,
    keep_statistics,
    named_tensors,
    plain_attributes,
    with_registered_tensors,
)
from polymode.tracing.network import Network, without_values

Types = Callable[[str], torch.dtype]  # of floating-point tensors, by name


class Gathered(NamedTuple):
    """The members' tensors (M, ...) by name, and their common network.

    Frozen parameters that all members have in common are one row, see `stack/sharing.py`. `apart`
    holds members whose plain attributes differ from those of member 0, `apart_keys` in what.
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
    dtype: torch.dtype | Types | None,
    device: torch.device,
    *,
    trainable: Choice = None,
    fresh: bool = False,
) -> Gathered:
    """Copy the tensors of modules into stacked ones, one module after another; where there are
    fewer modules than `num_modes`, the rest holds no values.

    Frozen parameters are held once as long as all members have the same.

    Args:
        dtype: of floating-point tensors, one for all or by name; None keeps theirs.
        trainable: see `trained_names`.
        fresh: whether the modules come from a factory: nobody else trains them, so that frozen
            parameters are not copied, and no two may have a trained parameter in common.
    """
    apart: dict[int, nn.Module] = {}
    apart_keys: set[str] = set()
    for k, given in enumerate(modules):
        module = with_registered_tensors(given)
        tensors = named_tensors(module)
        if k == 0:
            first, first_state, first_module = tensors, plain_attributes(module), given
            network = Network(module)
            names = [name for name, _ in module.named_parameters()]
            trained = set(trained_names(given, trainable))
            frozen_names = set(names) - trained
            keep_statistics(network.template, frozen_names)
            _require_room(tensors, frozen_names, num_modes, dtype, device)
            stacked = {
                name: torch.empty(
                    (1 if name in frozen_names else num_modes, *tensor.shape),
                    dtype=_type(name, tensor, dtype),
                    device="meta" if name in frozen_names else device,
                )
                for name, tensor in tensors.items()
            }
        else:
            check_same(first, tensors, k)
            if fresh:
                _refuse_common(first_module, given, trained, k)
            attributes = differing(first_state, plain_attributes(module))
            if attributes:
                apart[k] = without_values(module)
                keep_statistics(apart[k], frozen_names)
                apart_keys |= attributes
        for name, tensor in tensors.items():
            if name in frozen_names:
                row = tensor.detach().to(
                    device, _type(name, tensor, dtype), copy=not fresh and k == 0
                )
                stacked[name] = _with_row(stacked[name], row, k, num_modes)
            else:
                stacked[name][k] = tensor.detach()
    params = {n: stacked[n].requires_grad_() for n in names if n in trained}
    frozen = {n: spread(stacked[n], num_modes) for n in names if n in frozen_names}
    buffers = {n: t for n, t in stacked.items() if n not in trained | frozen_names}
    return Gathered(network, params, frozen, buffers, apart, apart_keys)


def _type(name: str, tensor: Tensor, dtype: torch.dtype | Types | None) -> torch.dtype:
    if dtype is None or not tensor.is_floating_point():
        return tensor.dtype
    return dtype if isinstance(dtype, torch.dtype) else dtype(name)


def _with_row(held: Tensor, row: Tensor, k: int, num_modes: int) -> Tensor:
    """Return a frozen tensor of the members before k with the one of member k: one row (1, ...) as
    long as these agree, then all (M, ...)."""
    if k == 0:
        return row.unsqueeze(0)
    if len(held) == 1:
        if row.data_ptr() == held.data_ptr() or torch.equal(row, held[0]):
            return held
        need = num_modes * row.numel() * row.element_size()
        require_free(
            need,
            f"a frozen parameter that differs between {num_modes:,} members",
            "Let the factory return one frozen body for all",
            row.device,
        )
        held = torch.cat([held.expand(k, *row.shape), row.new_empty(num_modes - k, *row.shape)])
    held[k] = row
    return held


def _refuse_common(first: nn.Module, other: nn.Module, trained: set[str], k: int) -> None:
    """Refuse networks of a factory that share what is trained."""
    held = {id(p) for name, p in first.named_parameters() if name in trained}
    for name, parameter in other.named_parameters():
        if name in trained and id(parameter) in held:
            raise ValueError(
                f"the factory returned networks that share '{name}' for members 0 and {k}, which"
                " would be trained as one; build a new one at each call, or freeze what they"
                " share: `trainable='head'`, or requires_grad_(False)"
            )


def _require_room(
    tensors: Tensors,
    frozen: set[str],
    num_modes: int,
    dtype: torch.dtype | Types | None,
    device: torch.device,
) -> None:
    """Refuse a stack that is larger than the free memory."""
    sizes = {name: t.numel() * _type(name, t, dtype).itemsize for name, t in tensors.items()}
    once = sum(size for name, size in sizes.items() if name in frozen)
    member_bytes = sum(sizes.values()) - once
    fit = int((free_bytes(device) - once) // max(member_bytes, 1))
    networks = (
        f"{num_modes:,} networks of {human(member_bytes)}" if num_modes > 1 else "one network"
    )
    remedy = f"Take fewer: {fit:,} would fit" if fit > 0 else "Take a smaller one"
    if num_modes > 1 and fit > 0:
        remedy += ", and training needs two to four times as much"
    require_free(once + member_bytes * num_modes, f"{networks} in a stack", remedy, device)
