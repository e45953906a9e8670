"""Permutations and scalings as they act on stacked tensors, all members at once.

An element of the group has, per member, a permutation (new unit u is old unit `order[u]`) and a
positive number for each scaling. Scalings act first. `M` modes, `U` units, `V` scalings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from polymode.symmetry.groups import Place, Symmetries
from polymode.tracing.modules import Tensors


def scaled(tensors: Tensors, symmetries: Symmetries, scales: Tensor) -> Tensors:
    """Return tensors (M, ...) after scaling by `scales` (M, V), whose first column is 1."""
    result = dict(tensors)
    for each in symmetries.rescalings:
        factor = factors(scales, each.label, each.exponents)
        factor = factor.reshape(*factor.shape[:1], *each.label.shape)
        tensor = result[each.name]
        if each.eps is None and tensor is not tensors[each.name]:
            tensor.mul_(factor)
        elif each.eps is None:
            result[each.name] = tensor * factor
        else:
            result[each.name] = factor**2 * (tensor + each.eps) - each.eps
    return result


def factors(scales: Tensor, label: np.ndarray, exponents: np.ndarray) -> Tensor:
    """Return s ** exponent by a label, (M, label)."""
    taken = scales[:, torch.from_numpy(label.reshape(-1))]
    powers = torch.from_numpy(np.broadcast_to(exponents, label.shape).reshape(-1).copy())
    return torch.where(powers == 1, taken, taken**powers)


def permuted(
    tensors: Tensors,
    symmetries: Symmetries,
    order: Tensor,
    places: Iterable[Place] | None = None,
) -> Tensors:
    """Return tensors (M, ...) after permuting by `order` (M, U), which maps 0 to 0."""
    result = dict(tensors)
    for place in symmetries.places if places is None else places:
        result[place.name] = _permuted(result[place.name], place, order)
    return result


def _permuted(tensor: Tensor, place: Place, order: Tensor) -> Tensor:
    label = torch.from_numpy(place.label)
    if not len(place.table) or label.numel() == 1:
        return tensor
    if place.axis < 0:  # entries in a row
        row = replace(place, axis=0)
        return _permuted(tensor.flatten(1), row, order).reshape(tensor.shape)
    modes, axis = len(tensor), place.axis
    old = order[:, label.reshape(-1)].reshape(modes, *label.shape)
    index = torch.from_numpy(place.table)[
        torch.from_numpy(place.local)[old], torch.from_numpy(place.number)
    ]
    stay = torch.arange(tensor.shape[axis + 1]).reshape(
        [-1 if a == axis else 1 for a in range(label.dim())]
    )
    index = torch.where(old == 0, stay, index)
    if label.numel() == label.shape[axis]:  # the same for all rows: whole slices move
        rows = index.reshape(modes, -1)
        if axis == 0:
            return tensor[torch.arange(modes)[:, None], rows]
        index = rows.reshape(modes, *[-1 if a == axis else 1 for a in range(label.dim())])
    return torch.gather(tensor, axis + 1, index.expand(tensor.shape))


def identity(symmetries: Symmetries, num_modes: int) -> Tensor:
    """Return the order (M, U) that changes nothing."""
    return torch.arange(symmetries.num_units).repeat(num_modes, 1)


def random_order(symmetries: Symmetries, num_modes: int, stream: torch.Generator) -> Tensor:
    """Draw permutations of all groups and blocks uniformly, (M, U)."""
    order = identity(symmetries, num_modes)
    blocks = {
        name: torch.rand(num_modes, size, generator=stream).argsort(1)
        for name, size in symmetries.blocks.items()
    }
    for group in symmetries.groups:
        units = torch.from_numpy(group.units)
        shape = (num_modes, *units.shape)
        inner = torch.rand(shape, generator=stream).argsort(2)
        outer = blocks[group.blocks] if group.blocks else torch.arange(len(units)).expand(shape[:2])
        order[:, units.reshape(-1)] = units[outer[:, :, None], inner].reshape(num_modes, -1)
    return order


def random_scales(
    symmetries: Symmetries, num_modes: int, stream: torch.Generator, spread: float = 0.5
) -> Tensor:
    """Draw scalings exp(spread N(0, 1)), (M, V)."""
    noise = torch.randn(num_modes, symmetries.num_scales, generator=stream, dtype=torch.float64)
    scales = torch.exp(spread * noise)
    scales[:, 0] = 1
    return scales
