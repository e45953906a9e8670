"""Masked members: one network, of which each member sees its own fixed part of the units.

    layer(x ∘ mask_m),    mask_m in {0, 1}ᶜ over the units or channels that a layer takes in

Every Linear and convolution whose input is made by trained layers gets a mask; all parameters are
trained in common. Masks are made as published: M random sets of m among T positions, of which
those are dropped that no set has; T is such that C remain, the units of the layer.

    m = ⌊C / (s (1 − (1 − 1/s)ᴹ))⌋,    expected overlap of two masks |∩| / |∪| = 1 / (2 s − 1)

Shapes: `M` modes, `C` units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from polymode.nets.conversion.conversion import Conversion, Sample, private, require_gradients

KINDS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)  # fmt: skip
_TRIES = 20_000


def _masked_class(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self: Any, x: Tensor) -> Tensor:
        tail = (1,) * len(getattr(self, "kernel_size", ()))
        return kind.forward(self, x * self.mask.view(-1, *tail))  # type: ignore[no-any-return]

    return type(f"Masked{kind.__name__}", (kind,), {"forward": forward})


LAYERS = {kind: _masked_class(kind) for kind in KINDS}


def plan(sample: Sample) -> Conversion:
    """Return which layers get masks; all that is trained is shared."""
    hidden: list[str] = []

    def look(path: str) -> Any:
        def hook(_layer: Any, args: Any) -> None:
            if args and args[0].requires_grad and path not in hidden:
                hidden.append(path)

        return hook

    with private(sample) as module:
        hooks = [
            layer.register_forward_pre_hook(look(path))
            for path, layer in module.named_modules()
            if type(layer) in LAYERS and _trains(sample, path, layer)
        ]
        try:
            outputs = module(sample.x.clone())
        finally:
            for hook in hooks:
                hook.remove()
        require_gradients(outputs)
    names = [n for n, _ in sample.module.named_parameters() if n in sample.trained]
    return Conversion("masked", {"layers": hidden, "common": names})


def _trains(sample: Sample, path: str, layer: nn.Module) -> bool:
    return any(f"{path}.{n}".lstrip(".") in sample.trained for n, _ in layer.named_parameters())


def apply(module: nn.Module, numbers: Mapping[str, Any]) -> None:
    """Give layers masks that let everything pass, in place; a method sets them."""
    for block in module.modules():
        if isinstance(block, nn.TransformerEncoderLayer):
            block.activation_relu_or_gelu = 0  # torch's fast path would read weights past masks
    for path in numbers["layers"]:
        layer: Any = module.get_submodule(path)
        units = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
        layer.__class__ = LAYERS[type(layer)]
        layer.register_buffer("mask", layer.weight.new_ones(units))


def active_units(units: int, num_modes: int, scale: float) -> int:
    """Return how many units a mask leaves, m.

    >>> active_units(100, 4, 2.0)
    53
    """
    return int(units / (scale * (1 - (1 - 1 / scale) ** num_modes)))


def draw_masks(units: int, num_modes: int, scale: float, stream: torch.Generator) -> Tensor:
    """Return masks (M, C) of zeros and ones; every unit is in one of them."""
    active = active_units(units, num_modes, scale)
    if scale == 1:
        return torch.ones(num_modes, units)
    if active < 1 or active * num_modes < units:
        raise ValueError(
            f"{num_modes} masks of {active} units each cannot cover {units} units with"
            f" scale={scale:g}"
        )
    total = _positions(units, num_modes, active)
    for attempt in range(_TRIES):
        size = max(total + attempt % 3 - 1, active, 1) if units > active else units
        chosen = torch.rand(num_modes, size, generator=stream).argsort(1)[:, :active]
        masks = torch.zeros(num_modes, size).scatter_(1, chosen, 1.0)
        used = masks.any(0)
        if int(used.sum()) == units:
            return masks[:, used]
    raise ValueError(f"{num_modes} masks of {active} units do not come out at {units} units")


def _positions(units: int, num_modes: int, active: int) -> int:
    """Return the T at which, on average, so many positions are used: T (1 − (1 − m/T)ᴹ) = C."""
    low, high = float(active), 1e3 * units
    for _ in range(60):
        middle = (low + high) / 2
        used = middle * (1 - (1 - active / middle) ** num_modes)
        low, high = (middle, high) if used < units else (low, middle)
    return max(round(low), units)
