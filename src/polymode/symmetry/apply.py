"""Elements of the group of symmetries, chosen or drawn, and their action on stacked networks.

An element has, per member, a permutation (new unit u is old unit `order[u]`) and a positive number
for each scaling. Scalings act first. `M` modes, `U` units, `V` scalings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import NumModes, check_call
from polymode.core.registry import suggest
from polymode.core.rng import generator
from polymode.stack.stack import Stack
from polymode.symmetry.stacked_tensors import (
    Networks,
    in_parts,
    stack_of,
    symmetries_of,
    tensors_of,
    write,
)
from polymode.symmetry.unit_groups import Place, Symmetries
from polymode.tracing.modules import Tensors


def scaled(tensors: Tensors, symmetries: Symmetries, scales: Tensor) -> Tensors:
    """Return tensors (M, ...) after scaling by `scales` (M, V), whose first column is 1."""
    result = dict(tensors)
    for rescaling in symmetries.rescalings:
        factor = factors(scales, rescaling.label, rescaling.exponents)
        factor = factor.reshape(*factor.shape[:1], *rescaling.label.shape)
        tensor = result[rescaling.name]
        if rescaling.eps is None and tensor is not tensors[rescaling.name]:
            tensor.mul_(factor)
        elif rescaling.eps is None:
            result[rescaling.name] = tensor * factor
        else:
            result[rescaling.name] = factor**2 * (tensor + rescaling.eps) - rescaling.eps
    return result


def factors(scales: Tensor, label: np.ndarray, exponents: np.ndarray) -> Tensor:
    """Return s ** exponent by a label, (M, label)."""
    chosen = scales[:, torch.from_numpy(label.reshape(-1))]
    powers = torch.from_numpy(np.broadcast_to(exponents, label.shape).reshape(-1).copy())
    return torch.where(powers == 1, chosen, chosen**powers)


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


@dataclass(frozen=True, eq=False)
class Element:
    """One permutation and scaling per network.

    Attributes:
        order: (M, U), new unit u is old unit `order[:, u]`; 0 stays.
        scales: (M, V), positive; the first column, of no unit, is 1. Scalings act first.
    """

    order: Tensor
    scales: Tensor


def element(
    symmetries: Symmetries,
    num_modes: NumModes = 1,
    *,
    permutations: Mapping[str, Any] | None = None,
    scales: Mapping[str, Any] | None = None,
) -> Element:
    """Return the element with these permutations and scalings; what is left out stays.

    Args:
        symmetries: from `find`.
        num_modes: M, networks that it acts on.
        permutations: name of a group -> order of its units, (n,) or (M, n), in blocks (g, n) or
            (M, g, n); new unit k is old unit p[k]. Name of a set of blocks -> order of the blocks,
            (g,) or (M, g), which acts after the orders inside.
        scales: name of a group of scalings -> positive numbers, (n,) or (M, n).
    """
    check_call(element, locals())
    order = identity(symmetries, num_modes)
    orders = dict(permutations or {})
    outer = {
        name: _orders(name, orders.pop(name, range(size)), num_modes, (size,))
        for name, size in symmetries.blocks.items()
    }
    for group in symmetries.groups:
        units = torch.from_numpy(group.units)
        shape = tuple(units.shape) if group.blocks else (group.size,)
        inner = torch.arange(group.size).expand(num_modes, *units.shape)
        if group.name in orders:
            inner = _orders(group.name, orders.pop(group.name), num_modes, shape)
            inner = inner.reshape(num_modes, *units.shape)
        new = units.expand(inner.shape).gather(2, inner)
        if group.blocks:
            new = new[torch.arange(num_modes)[:, None], outer[group.blocks]]
        order[:, units.reshape(-1)] = new.flatten(1)
    _require_none_left(orders, [*symmetries.by_name, *symmetries.blocks], "permutations")
    return Element(order, _scales(symmetries, num_modes, dict(scales or {})))


def _scales(symmetries: Symmetries, num_modes: int, chosen: dict[str, Any]) -> Tensor:
    values = torch.ones(num_modes, symmetries.num_scales, dtype=torch.float64)
    names = [group.name for group in symmetries.scale_groups]
    for group in symmetries.scale_groups:
        if group.name in chosen:
            value = torch.as_tensor(chosen.pop(group.name), dtype=torch.float64)
            if not (value > 0).all() or not torch.isfinite(value).all():
                raise ValueError(
                    f"scales of '{group.name}' must be positive and finite, got {value.min():g}"
                )
            size = len(group.variables)
            if tuple(value.shape) not in ((size,), (num_modes, size)):
                raise ValueError(
                    f"scales of '{group.name}' must have shape {(size,)} or {(num_modes, size)},"
                    f" got {tuple(value.shape)}"
                )
            values[:, torch.from_numpy(group.variables)] = value
    _require_none_left(chosen, names, "scales")
    return values


def _orders(name: str, values: Any, num_modes: int, shape: tuple[int, ...]) -> Tensor:
    """Return orders (M, *shape), checked."""
    order = torch.as_tensor(values if not isinstance(values, range) else list(values))
    if tuple(order.shape) not in (shape, (num_modes, *shape)):
        raise ValueError(
            f"the permutation of '{name}' must have shape {shape} or {(num_modes, *shape)}, got"
            f" {tuple(order.shape)}"
        )
    if not (order.sort(-1).values == torch.arange(shape[-1])).all():
        raise ValueError(f"the permutation of '{name}' must hold each of 0..{shape[-1] - 1} once")
    return order.expand(num_modes, *shape)


def _require_none_left(names: Mapping[str, Any], expected: list[str], what: str) -> None:
    for name in names:
        raise ValueError(
            f"unknown group '{name}' in `{what}`.{suggest(name, expected)} Known:"
            f" {', '.join(expected)}."
        )


def random_element(
    symmetries: Symmetries, num_modes: NumModes = 1, *, seed: int = 0, spread: float = 0.5
) -> Element:
    """Draw an element: permutations uniformly, scalings exp(spread N(0, 1))."""
    check_call(random_element, locals())
    stream = generator(seed, "symmetry element")
    scales = random_scales(symmetries, num_modes, stream, spread)
    return Element(random_order(symmetries, num_modes, stream), scales)


def apply(networks: Networks, acting: Element, symmetries: Symmetries | None = None) -> Stack:
    """Return the networks after an element of the group has acted on each; functions stay.

    Args:
        networks: a stack, a posterior (all its samples, mode by mode), a module or a list of these.
        acting: one element per network, or one for all.
        symmetries: from `find`; found here if left out.
    """
    check_call(apply, locals(), but=("acting",))
    if not isinstance(acting, Element):
        raise ValueError(
            "`acting` of apply must be an Element, which `element` or `random_element` makes, got a"
            f" {type(acting).__name__}"
        )
    stack = stack_of(networks)
    symmetries = symmetries_of(networks, stack, symmetries)
    if (
        acting.order.shape[1] != symmetries.num_units
        or acting.scales.shape[1] != symmetries.num_scales
    ):
        raise ValueError(
            f"the element is one of another group: {acting.order.shape[1] - 1:,} units and"
            f" {acting.scales.shape[1] - 1:,} scalings, this network has"
            f" {symmetries.num_units - 1:,} and {symmetries.num_scales - 1:,}"
        )
    if len(acting.order) not in (1, len(stack)):
        raise ValueError(
            f"the element acts on {len(acting.order)} networks, but there are {len(stack)}"
        )
    order, scales = acting.order.expand(len(stack), -1), acting.scales.expand(len(stack), -1)
    result = stack.clone()
    for part, work in in_parts(tensors_of(stack)):
        write(
            result, part, permuted(scaled(work, symmetries, scales[part]), symmetries, order[part])
        )
    return result
