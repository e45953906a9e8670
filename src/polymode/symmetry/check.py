"""Try symmetries on random weights: the function must stay."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from polymode.core.modules import Tensors, aliases_of, named_tensors, tie_again
from polymode.core.rng import generator
from polymode.symmetry.act import permuted, random_order, random_scales, scaled
from polymode.symmetry.groups import Symmetries

TOLERANCE = 1e-10


def verified(
    found: Symmetries, template: nn.Module, input_shape: tuple[int, ...], ignore_eps: bool
) -> Symmetries:
    """Return the symmetries; drop groups that change the function, and name them as unseen."""
    module = copy.deepcopy(template).to_empty(device="cpu").double().eval()
    tie_again(module, aliases_of(template))
    if ignore_eps:
        for layer in module.modules():
            if hasattr(layer, "eps"):
                setattr(layer, "eps", 0.0)  # noqa: B010
    stream = generator(0, "symmetry")
    tensors = _random_tensors(module, stream)
    x = torch.randn(2, *input_shape, generator=stream, dtype=torch.float64)
    with torch.no_grad():
        before = _outputs(module, tensors, x)
        if _same(found, module, tensors, x, before):
            return found
        return _without_failures(found, lambda part: _same(part, module, tensors, x, before))


def _without_failures(found: Symmetries, holds: Callable[[Symmetries], bool]) -> Symmetries:
    """Return what holds of the symmetries: groups one by one, then blocks, then scalings."""
    still = replace(found, groups=(), blocks={}, rescalings=())
    alone = [replace(group, blocks=None) for group in found.groups]
    good = [holds(replace(still, groups=(group,))) for group in alone]
    lost = [group.name for group, fine in zip(alone, good, strict=True) if not fine]
    result = replace(found, rescalings=())
    if lost or not holds(result):
        kept = tuple(group for group, fine in zip(alone, good, strict=True) if fine)
        lost += [name for name in found.blocks]
        result = replace(result, groups=kept, blocks={})
    if holds(replace(still, rescalings=found.rescalings)):
        result = replace(result, rescalings=found.rescalings)
    else:
        result = replace(result, scale_groups=(), num_scales=1)
        lost.append("all scalings")
    assert holds(result)
    return replace(result, unseen=(*found.unseen, *(f"{n} (fails when tried)" for n in lost)))


def _same(
    found: Symmetries, module: nn.Module, tensors: Tensors, x: Tensor, before: Tensor
) -> bool:
    stream = generator(1, "symmetry")
    scales, order = random_scales(found, 1, stream), random_order(found, 1, stream)
    batched = {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}
    acted = permuted(scaled(batched, found, scales), found, order)
    after = _outputs(module, {name: tensor[0] for name, tensor in acted.items()}, x)
    return bool((after - before).norm() <= TOLERANCE * before.norm())


def _random_tensors(module: nn.Module, stream: torch.Generator) -> Tensors:
    """Weights of the size that keeps activations at about 1, positive where they must be."""
    tensors = {}
    for name, tensor in named_tensors(module).items():
        if not tensor.is_floating_point():
            tensors[name] = torch.zeros_like(tensor)
            continue
        noise = torch.randn(tensor.shape, generator=stream, dtype=torch.float64)
        inputs = max(tensor[0].numel(), 1) if tensor.dim() > 1 else 1
        tensors[name] = noise / inputs**0.5
        if "running_var" in name:
            tensors[name] = 0.5 + noise.abs()
    return tensors


def _outputs(module: nn.Module, tensors: Tensors, x: Tensor) -> Tensor:
    made = torch.func.functional_call(module, tensors, (x,))
    parts: list[Tensor] = []
    map_aggregate(made, lambda part: parts.append(part) if isinstance(part, Tensor) else None)
    return torch.cat([part.flatten() for part in parts])
