"""Finite ensembles for the theory: full-batch gradient descent, and how far from symmetric it ends.

Members train as stacks, on the loss and with the parametrisation of `InfiniteEnsemble`, so that its
predictions have no free parameter.

Shapes: `M` members, `G` elements of the group, `N` inputs, `K` outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.rng import fold
from polymode.equivariance.groups import Group
from polymode.equivariance.infinite_ensemble import InfiniteEnsemble
from polymode.stack.stack import Stack

TOGETHER = 2**23  # parameters of the members that are trained together


def half_squares(outputs: Tensor, y: Tensor, extra: Mapping[str, Tensor]) -> Tensor:
    """Return the mean over examples of half the squared error, for each member."""
    return (outputs - y).square().sum(-1).mean(-1) / 2


def trained(
    whole: InfiniteEnsemble,
    width: int,
    num_modes: int,
    new: Tensor,
    steps: Sequence[int],
    seed: int,
    execution: str = "auto",
) -> dict[int, Tensor]:
    """Return outputs (M, N, K) at `new` after each of `steps` of gradient descent.

    Args:
        whole: what the members are a finite sample of: network, data, learning rate.
        steps: rising; 0 is the initialisation.
    """
    x, y = whole.x.float(), whole.y.float()
    shape, outputs = tuple(x.shape[1:]), y.shape[1]
    one = whole.kernel.network(shape, width, outputs)
    together = max(1, TOGETHER // sum(p.numel() for p in one.parameters()))
    found: dict[int, list[Tensor]] = {step: [] for step in steps}
    for number, start in enumerate(range(0, num_modes, together)):
        stack = Stack(
            lambda: whole.kernel.network(shape, width, outputs),
            min(together, num_modes - start),
            seed=fold(seed, "members", number),
            execution=execution,
        )
        for step in range(max(steps) + 1):
            if step in found:
                with torch.no_grad():
                    found[step].append(stack(new.float()).double())
            if step < max(steps):
                stack.gradients(half_squares, x, y)
                with torch.no_grad():
                    for leaf in stack.leaves():
                        assert leaf.grad is not None
                        leaf.add_(leaf.grad, alpha=-whole.lr)
    return {step: torch.cat(parts) for step, parts in found.items()}


class Asymmetry(NamedTuple):
    """Mean squares of f(g x) − ρ(g) f(x) over inputs and g ≠ e.

    Attributes:
        member: of single members. ensemble: of their mean.
        infinite: of the mean of infinitely many such members, unbiased: what is left of `ensemble`
            without the part that is due to few members; it may be below 0.
    """

    member: float
    ensemble: float
    infinite: float


def over_orbits(values: Tensor, group: Group) -> Tensor:
    """Return outputs (M, G N, K) at an orbit, all g of the first input last, as (M, G, N, K)."""
    return values.view(len(values), len(group), -1, values.shape[-1])


def _apart(values: Tensor, group: Group) -> Tensor:
    """Return f(g x) − ρ(g) f(x) of each member for g ≠ e, (M, G − 1, N, K)."""
    outputs = over_orbits(values, group)
    moved = group.orbit_of_outputs(outputs[:, 0]).transpose(0, 1)
    return (outputs - moved)[:, 1:]


def mean_deviation(values: Tensor, group: Group) -> float:
    """Return the mean square of f(g x) − ρ(g) f(x) for the mean of outputs (M, G N, K)."""
    return float(_apart(values, group).mean(0).square().sum(-1).mean())


def asymmetry(values: Tensor, group: Group) -> Asymmetry:
    """Return how far outputs (M, G N, K) at the orbits of N inputs are from equivariant."""
    apart = _apart(values, group)
    mean = apart.mean(0)
    ensemble = float(mean.square().sum(-1).mean())
    spread = float((apart - mean).square().sum(0).sum(-1).mean()) / (len(values) - 1)
    return Asymmetry(
        float(apart.square().sum(-1).mean()), ensemble, ensemble - spread / len(values)
    )


def orbit_spread(values: Tensor, group: Group) -> tuple[float, float]:
    """Return the root mean squares, over inputs, of the standard deviation over the orbit and of
    the mean over it, for the mean of outputs (M, G N, 1)."""
    mean = over_orbits(values, group).mean(0)
    return (
        float(mean.var(0, correction=0).mean().sqrt()),
        float(mean.mean(0).square().mean().sqrt()),
    )


def predicted_spread(
    whole: InfiniteEnsemble, x: Tensor, group: Group, t: int, num_modes: float
) -> tuple[float, float]:
    """Return the same, expected of ensembles of infinite width with invariant outputs."""
    found = whole.non_invariance(x, group, t)
    at = whole.at(group.orbit(x).flatten(0, 1))
    mean = at.mean(t).view(len(group), -1)
    part = (len(group) - 1) / (2 * len(group))
    apart = part * float(found.variance[1:].mean())  # variance of a member over its orbit
    shared = float(at.variance(t).mean()) - apart
    over = mean.var(0, correction=0).mean() + apart / num_modes
    return float(over.sqrt()), float((mean.mean(0).square().mean() + shared / num_modes).sqrt())
