r"""Try symmetries on random weights: the function must stay, whatever the weights are.

The claimed elements that keep the function of every network are a subgroup. If a group of n units
is wrong, the subgroup of its permutations that keep the function is not all of S_n, so a uniformly
drawn permutation is outside of it with a probability of at least 1/2. For n >= 5 it is at least
1 - 1/n, unless all even permutations are inside (subgroups of S_n of index below n contain the
alternating group; for n = 4 the index is at least 3). Elements are drawn independently, as many as
make a false group of the smallest size pass with a probability below 1e-7; a false scaling fails
with probability 1. What an element changes shows only where its units are not dead: a draw counts
for a unit if outputs depend on its weights, and networks and inputs are drawn until every unit has
been tried that often.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from polymode.core.rng import generator
from polymode.symmetry.apply import permuted, random_order, random_scales, scaled
from polymode.symmetry.unit_groups import Symmetries
from polymode.tracing.modules import Tensors, aliases_of, named_tensors, tie_again

TOLERANCE = 1e-10
MISSED = 1e-7  # probability that a false group passes, if outputs depend on its units
NETWORKS = 4  # drawn at least
MOST_NETWORKS = 24
INPUTS = 32  # entries along other axes than channels, over all inputs


@dataclass
class Trial:
    """One network and what it gives: tensors, inputs, outputs."""

    tensors: Tensors
    x: Tensor
    outputs: list[Tensor]


def num_elements(symmetries: Symmetries) -> int:
    """Return how many elements have to keep the function; see the module."""
    sizes = [g.size for g in symmetries.groups if g.size > 1] + [
        n for n in symmetries.blocks.values()
    ]
    smallest = min(sizes, default=math.inf)
    passing = {2: 1 / 2, 3: 1 / 2, 4: 1 / 3}.get(int(min(smallest, 100)), 1 / min(smallest, 100))
    return max(NETWORKS, math.ceil(math.log(MISSED) / math.log(passing)))


def verified(
    symmetries: Symmetries,
    template: nn.Module,
    input_shape: tuple[int, ...],
    ignore_eps: bool,
    buffers: Tensors | None = None,
) -> Symmetries:
    """Return the symmetries; drop groups that change the function, and name them as unseen.

    Args:
        template: the network without values. buffers: values of those that are not numbers to draw.
    """
    module = copy.deepcopy(template).to_empty(device="cpu").double().eval()
    tie_again(module, aliases_of(template))
    if ignore_eps:
        for layer in module.modules():
            if hasattr(layer, "eps"):
                setattr(layer, "eps", 0.0)  # noqa: B010
    check = _Check(module, input_shape, buffers or {})
    if check.holds(symmetries):
        notes = tuple(f"{name} (not reached when tried)" for name in check.unreached)
        return replace(symmetries, unseen=(*symmetries.unseen, *notes)) if notes else symmetries
    return _without_failures(symmetries, check.holds)


class _Check:
    """Networks and inputs at random, and whether elements of a group keep their functions."""

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], buffers: Tensors) -> None:
        self.module, self.input_shape, self.buffers = module, input_shape, buffers
        self.unreached: list[str] = []

    def holds(self, symmetries: Symmetries) -> bool:
        """Whether all elements that are tried keep the function."""
        needed = num_elements(symmetries)
        times = np.zeros(symmetries.num_units, int)
        moving = _moving(symmetries)
        finite = 0
        for number in range(MOST_NETWORKS):
            trial, reached = self._draw(symmetries, number)
            if not all(torch.isfinite(part).any() for part in trial.outputs):
                continue
            finite += 1
            elements = math.ceil(needed / NETWORKS)
            if not all(self._stays(symmetries, trial, number, k) for k in range(elements)):
                return False
            times[reached] += elements
            if finite >= NETWORKS and (not len(moving) or times[moving].min() >= needed):
                break
        late = set(moving[times[moving] == 0].tolist())
        self.unreached = [g.name for g in symmetries.groups if late & set(g.units.ravel().tolist())]
        return finite > 0

    def _draw(self, symmetries: Symmetries, number: int) -> tuple[Trial, np.ndarray]:
        """Draw a network and inputs; return also the units that outputs depend on."""
        stream = generator(number, "symmetry")
        size = 10.0 ** (number // NETWORKS)  # larger ones where units are hard to reach
        tensors = self._tensors(stream, size)
        count = max(2, INPUTS // max(1, math.prod(self.input_shape[1:])))
        x = size * torch.randn(count, *self.input_shape, generator=stream, dtype=torch.float64)
        learned = {name for name, _ in self.module.named_parameters()}
        for name, tensor in tensors.items():
            tensor.requires_grad_(name in learned and tensor.is_floating_point())
        with torch.enable_grad():
            outputs = _outputs(self.module, tensors, x)
        slopes = _slopes(outputs, tensors)
        tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        trial = Trial(tensors, x, [part.detach() for part in outputs])
        return trial, _reached(symmetries, slopes)

    def _tensors(self, stream: torch.Generator, size: float) -> Tensors:
        """Draw weights that keep activations at about `size`, positive where they must be."""
        tensors: Tensors = {}
        for name, tensor in named_tensors(self.module).items():
            if not tensor.is_floating_point():
                buffer = self.buffers.get(name)
                tensors[name] = torch.zeros_like(tensor) if buffer is None else buffer.clone()
                continue
            noise = torch.randn(tensor.shape, generator=stream, dtype=torch.float64)
            inputs = max(tensor[0].numel(), 1) if tensor.dim() > 1 else 1
            tensors[name] = noise / inputs**0.5
            if "running_var" in name:
                tensors[name] = 0.5 + noise.abs()
        return tensors

    @torch.no_grad()
    def _stays(self, symmetries: Symmetries, trial: Trial, network: int, number: int) -> bool:
        """Whether an element at random keeps the outputs of a network."""
        stream = generator(number, "symmetry", network)
        scales, order = random_scales(symmetries, 1, stream), random_order(symmetries, 1, stream)
        batched = {name: tensor.unsqueeze(0) for name, tensor in trial.tensors.items()}
        acted = permuted(scaled(batched, symmetries, scales), symmetries, order)
        tensors = {name: tensor[0] for name, tensor in acted.items()}
        after = _outputs(self.module, tensors, trial.x)
        return all(map(_agree, trial.outputs, after))


def _agree(before: Tensor, after: Tensor) -> bool:
    finite = torch.isfinite(before)
    if not torch.equal(finite, torch.isfinite(after)):
        return False
    change = (after - before)[finite].norm()
    return bool(change <= TOLERANCE * before[finite].norm())


def _moving(symmetries: Symmetries) -> np.ndarray:
    """Return the units that permutations of groups or blocks move."""
    moved = [g.units.ravel() for g in symmetries.groups if g.size > 1 or g.blocks is not None]
    return np.concatenate(moved) if moved else np.zeros(0, int)


def _slopes(outputs: list[Tensor], tensors: Tensors) -> Tensors:
    """Return derivatives of a sum of the outputs at random weights, by tensor."""
    stream = generator(0, "symmetry slopes")
    used = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    total = torch.zeros((), dtype=torch.float64)
    for part in outputs:
        weights = torch.randn(part.shape, generator=stream, dtype=torch.float64)
        total = total + (weights * torch.where(torch.isfinite(part), part, 0.0)).sum()
    if not total.requires_grad:
        return {}
    slopes = torch.autograd.grad(total, list(used.values()), allow_unused=True)
    return {
        name: torch.nan_to_num(slope)
        for name, slope in zip(used, slopes, strict=True)
        if slope is not None
    }


def _reached(symmetries: Symmetries, slopes: Tensors) -> np.ndarray:
    """Return which units (U,) have weights that the outputs depend on."""
    total = np.zeros(symmetries.num_units)
    for place in symmetries.places:
        if place.name in slopes:
            slope = slopes[place.name].abs().numpy()
            label = place.label if place.axis >= 0 else place.label.reshape(slope.shape)
            axes = tuple(a for a in range(label.ndim) if label.shape[a] == 1)
            np.add.at(total, label.ravel(), slope.sum(axes, keepdims=True).ravel())
    return total > 0


def _without_failures(symmetries: Symmetries, holds: Callable[[Symmetries], bool]) -> Symmetries:
    """Return what holds of the symmetries: groups one by one, then blocks, then scalings."""
    still = replace(symmetries, groups=(), blocks={}, rescalings=(), scale_groups=())
    alone = [replace(group, blocks=None) for group in symmetries.groups]
    good = [holds(replace(still, groups=(group,))) for group in alone]
    lost = [group.name for group, fine in zip(alone, good, strict=True) if not fine]
    result = replace(symmetries, rescalings=(), scale_groups=())
    if lost or not holds(result):
        holding = tuple(group for group, fine in zip(alone, good, strict=True) if fine)
        lost += [name for name in symmetries.blocks]
        result = replace(result, groups=holding, blocks={})
    wrong = [
        g for g in symmetries.scale_groups if not holds(_only_scalings(still, symmetries, [g]))
    ]
    right = [g for g in symmetries.scale_groups if g not in wrong]
    lost += ["all scalings"] if not right and wrong else [f"scalings of {g.name}" for g in wrong]
    scales = _only_scalings(result, symmetries, right)
    if not holds(scales):  # nothing can be tried, as where outputs are never finite
        lost, scales = ["all symmetries"], _only_scalings(still, symmetries, [])
    return replace(scales, unseen=(*symmetries.unseen, *(f"{n} (fails when tried)" for n in lost)))


def _only_scalings(base: Symmetries, symmetries: Symmetries, groups: list[Any]) -> Symmetries:
    """Return the symmetries `base` with some of the scalings of `symmetries`."""
    chosen = [variable for group in groups for variable in group.variables.tolist()]
    rescalings = []
    for rescaling in symmetries.rescalings if groups else ():
        inside = np.isin(rescaling.label, chosen)
        label, exponents = (
            np.where(inside, rescaling.label, 0),
            np.where(inside, rescaling.exponents, 1.0),
        )
        rescalings.append(replace(rescaling, label=label, exponents=exponents))
    size = symmetries.num_scales if groups else 1
    return replace(base, rescalings=tuple(rescalings), scale_groups=tuple(groups), num_scales=size)


def _outputs(module: nn.Module, tensors: Tensors, x: Tensor) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noise of a forward pass is the same in all of them
        outputs = torch.func.functional_call(module, tensors, (x,))
    parts: list[Tensor] = []
    map_aggregate(outputs, lambda part: parts.append(part) if isinstance(part, Tensor) else None)
    return [part.double() for part in parts]
