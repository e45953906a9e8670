"""One network for all that symmetries make of it: scaled, then sorted.

Scaling: units are visited in the order of the graph. A unit's scale is such that the first weights
that write it have norm 1, after division by the scales of what they read; a gain of a normalisation
becomes 1 or -1. Units that a residual sum ties have one scale, set by the first layer that writes
them. A unit whose weights are all 0 takes the next layer that writes it, then its bias, then the
running variance of what normalises it (v + eps becomes 1), then the weights that read it; if all
are 0 it stays.

Sorting: in the same order, groups are sorted in descending order of a key: the first incoming
weight, as in the paper; the norm of all weights of the unit; or the mean of the incoming ones. Keys
that agree to rounding are ties; see `sorting.py` for how they are broken. Blocks (heads, groups of
convolutions) are sorted inside, then by their first unit.

The paper leaves channels of residual streams unsorted; here they are sorted like all others.

Source: O. Laurent, E. Aldea, G. Franchi, "A symmetry-aware exploration of Bayesian neural network
posteriors", ICLR 2024. `M` modes, `V` scalings, `g` blocks, `n` units of a block, `K` weights.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.core.warn import warn
from polymode.stack.stack import Stack
from polymode.symmetry.apply import factors, scaled
from polymode.symmetry.sorting import KEYS, Sorting
from polymode.symmetry.stacked_tensors import (
    IN_CACHE,
    Networks,
    in_parts,
    require_finite,
    stack_of,
    symmetries_of,
    tensors_of,
    write,
)
from polymode.symmetry.unit_groups import Rescaling, Symmetries
from polymode.tracing.modules import Tensors


def canonical(
    networks: Networks,
    symmetries: Symmetries | None = None,
    *,
    scale: bool = True,
    sort: str | None = "first",
) -> Stack:
    """Return the networks in canonical form; their functions stay.

    Args:
        networks: a stack, a posterior (all its samples, mode by mode), a module or a list of these.
        symmetries: from `find`; found here if left out.
        scale: whether scalings are removed.
        sort: "first", "norm", "mean", or None to leave the order as it is.

    Returns:
        a stack with memory of its own, in the precision of the networks; the work is in float64.
    """
    check_call(canonical, locals())
    if sort is not None and sort not in KEYS:
        raise ValueError(
            f"`sort` of canonical must be None or one of {', '.join(KEYS)}, got {sort!r}."
            + suggest(str(sort), KEYS)
        )
    stack = stack_of(networks)
    symmetries = symmetries_of(networks, stack, symmetries)
    tensors = tensors_of(stack)
    require_finite(tensors)
    result, rounding = stack.clone(), 64 * torch.finfo(stack.dtype).eps
    unset = unsorted = 0
    for part, work in in_parts(tensors, IN_CACHE):
        if scale:
            scales, determined = _unit_scales(work, symmetries)
            unset += _count_unset(work, symmetries, determined)
            work = scaled(work, symmetries, scales)
        if sort is not None:
            work, number = _sorted(work, symmetries, sort, rounding)
            unsorted += number
        write(result, part, work)
    _warn_of(unset, len(stack), "weights between units that nothing else scales")
    _warn_of(unsorted, len(stack), "more than 720 orders of units that no key tells apart")
    return result


def _warn_of(number: int, total: int, what: str) -> None:
    if number:
        warn(
            f"canonical: {number:,} of {total:,} networks have {what}; their form keeps the"
            " function, but is not one per orbit",
        )


# -------------------------------------------------------------------- scaling


def unit_scales(tensors: Tensors, symmetries: Symmetries) -> Tensor:
    """Return scales (M, V) that give incoming weights norm 1; see the module."""
    return _unit_scales(tensors, symmetries)[0]


def _unit_scales(tensors: Tensors, symmetries: Symmetries) -> tuple[Tensor, Tensor]:
    """Return scales (M, V), and which of them weights determine."""
    modes = len(next(iter(tensors.values())))
    scales = torch.ones(modes, symmetries.num_scales, dtype=torch.float64)
    determined = torch.zeros_like(scales, dtype=torch.bool)
    determined[:, 0] = True
    acting: dict[str, list[Rescaling]] = defaultdict(list)
    for rescaling in symmetries.rescalings:
        acting[rescaling.name].append(rescaling)
    kinds = ("weight", "gain"), ("bias",), ("statistic",), ("weight", "gain", "bias")
    number = -1
    while number != (number := int(determined.sum())):  # what is set may be what others wait for
        for sign, roles in zip((1, 1, 1, -1), kinds, strict=True):
            for name, role in symmetries.roles.items():
                if role in roles and (role != "statistic" or acting[name][0].eps is not None):
                    _determine(tensors[name], acting[name], sign, scales, determined)
    return scales, determined


def _count_unset(tensors: Tensors, symmetries: Symmetries, determined: Tensor) -> int:
    """Return how many members have scalings that change a weight and that nothing determines."""
    unset = torch.zeros(len(determined), dtype=torch.bool)
    for rescaling in symmetries.rescalings:
        loose = ~determined[:, torch.from_numpy(rescaling.label.reshape(-1))]
        if loose.any():
            touched = loose.reshape(-1, *rescaling.label.shape) & (tensors[rescaling.name] != 0)
            unset |= touched.reshape(len(determined), -1).any(1)
    return int(unset.sum())


def _determine(
    tensor: Tensor, acting: list[Rescaling], sign: int, scales: Tensor, determined: Tensor
) -> None:
    """Set scales that are not known yet by the mass of one tensor, of what is known of it."""
    powers = [np.broadcast_to(rescaling.exponents, rescaling.label.shape) for rescaling in acting]
    for power in sorted({p for part in powers for p in part[part * sign > 0].tolist()}):
        total = torch.zeros_like(scales)
        for rescaling, part in zip(acting, powers, strict=True):
            chosen = torch.from_numpy(((part == power) & (rescaling.label > 0)).reshape(-1))
            label = torch.from_numpy(rescaling.label.reshape(-1))[chosen]
            if not determined[:, label].all():
                remaining = [candidate for candidate in acting if candidate is not rescaling]
                mass = _known_mass(tensor, rescaling, remaining, scales, determined)
                total.index_add_(1, label, mass[:, chosen])
        new = ~determined & (total > torch.finfo(torch.float64).tiny)
        scales[new] = total[new] ** (-0.5 / power)
        determined |= new


def _known_mass(
    tensor: Tensor,
    rescaling: Rescaling,
    remaining: list[Rescaling],
    scales: Tensor,
    determined: Tensor,
) -> Tensor:
    """Return masses (M, label) with all other scalings applied, of entries where these are known;
    of a running variance, v + eps."""
    mass = tensor * tensor if rescaling.eps is None else tensor + rescaling.eps
    for factor_of in remaining:
        factor = factors(scales, factor_of.label, factor_of.exponents) ** 2
        factor = factor * determined[:, torch.from_numpy(factor_of.label.reshape(-1))]
        mass = mass * factor.reshape(-1, *factor_of.label.shape)
    axes = [a + 1 for a in range(rescaling.label.ndim) if rescaling.label.shape[a] == 1]
    return (mass.sum(axes) if axes else mass).reshape(len(tensor), -1)


# -------------------------------------------------------------------- sorting


def _sorted(
    tensors: Tensors, symmetries: Symmetries, key: str, rounding: float
) -> tuple[Tensors, int]:
    """Sort all members at once, those with units that no key tells apart by a search; return also
    how many of these have too many cases."""
    sorting = Sorting(symmetries, tensors, key, rounding)
    start, unsettled = tensors, set()
    for step in sorting.steps:
        order, open_members = sorting.order(tensors, step)
        tensors = sorting.moved(tensors, step, order)
        unsettled |= open_members
    if not unsettled:
        return tensors, 0
    result = {name: tensor.clone() for name, tensor in tensors.items()}
    given_up = 0
    for member in sorted(unsettled):
        network = {name: tensor[member : member + 1] for name, tensor in start.items()}
        best, complete = sorting.search(network)
        given_up += not complete
        for name, tensor in best.items():
            result[name][member] = tensor[0]
    return result, given_up
