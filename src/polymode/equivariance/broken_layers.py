"""Layers of a network whose geometry breaks a symmetry, by name.

The theorem on ensembles needs an invariant law of the initial network. Turning the input is then
equivalent to turning all filters, so each layer must commute with turns once its filter is
symmetric. This is tested layer by layer: with filters whose entries are all equal, on random maps
of the sizes that the layer meets. Filters that are not square, padding on one side only, and a
stride that leaves columns over at one edge fail. Dense layers pass, because the law of their
weights is invariant to the order of their inputs. Functions that a module calls, such as
F.max_pool2d, are not checked.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.rng import generator
from polymode.equivariance.groups import Group
from polymode.equivariance.planar import Planar, Translations

SPATIAL = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.LPPool2d, nn.ConvTranspose2d)
TOLERANCE = 1e-4


class Broken(NamedTuple):
    """A layer that breaks the symmetry: its name in the network, what it is, and why."""

    name: str
    layer: str
    group: str
    cause: str

    def __str__(self) -> str:
        return (
            f"layer '{self.name}' ({self.layer}) breaks the symmetry under {self.group}:"
            f" {self.cause}. An ensemble of such networks is not invariant in the mean"
        )


def broken_layers(net: nn.Module, group: Group, input_shape: Sequence[int]) -> list[Broken]:
    """Return the convolutions and poolings whose geometry breaks the symmetry under `group`.

    Args:
        net: a network. group: exact groups of the plane are checked; interpolated turns by their
            quarter turns; what acts on vectors has no layers to check.
        input_shape: (C, H, W) of one input.

    >>> from polymode.equivariance import group
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(98, 3))
    >>> [layer.name for layer in broken_layers(net, group("C4"), (1, 16, 16))]
    ['0']
    """
    if not isinstance(group, Planar) or len(input_shape) != 3:
        return []
    first = next(net.parameters(), torch.zeros(1))
    x = torch.randn((2, *input_shape), generator=generator(0, "check")).to(first)
    visited: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}
    hooks = [
        layer.register_forward_hook(_note(visited, name))
        for name, layer in net.named_modules()
        if isinstance(layer, SPATIAL)
    ]
    training = net.training
    try:
        net.eval()
        with torch.no_grad():
            net(x)
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    return [
        Broken(name, _described(layer), group.name, _cause(layer, shape, group))
        for name, (layer, shape) in visited.items()
        if _breaks(layer, shape, group)
    ]


def _note(visited: dict[str, tuple[nn.Module, tuple[int, ...]]], name: str) -> Any:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        visited.setdefault(name, (layer, tuple(inputs[0].shape)))

    return hook


def _breaks(layer: nn.Module, shape: tuple[int, ...], group: Group) -> bool:
    """Whether the layer with equal filter entries fails to commute with an exact element."""
    plain = copy.deepcopy(layer).double()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.fill_(1.0)
        x = torch.randn((1, *shape[1:]), generator=generator(0, "layer"), dtype=torch.float64)
        before = plain(x)
        if isinstance(group, Translations):
            if tuple(x.shape[-2:]) != group.sides:
                return True  # a coarser lattice has fewer translations
            actions = [lambda y, k=k: group.act(y, k) for k in range(1, len(group))]
        else:
            actions = [lambda y, k=k: _turned(y, k, group) for k in _exact_elements(group)]
        for act in actions:
            moved, expected = plain(act(x)), act(before)
            if moved.shape != expected.shape:
                return True
            if (moved - expected).abs().max() > TOLERANCE * before.abs().max().clamp_min(1e-12):
                return True
    return False


def _exact_elements(group: Group) -> list[tuple[int, bool]]:
    """Return quarter turns and whether they are mirrored, for each exact element but the first."""
    order, mirror = getattr(group, "order", 4), getattr(group, "mirror", False)
    turns = [a * (4 // order) for a in range(order)]
    return [(turn, flip) for flip in ([False, True] if mirror else [False]) for turn in turns][1:]


def _turned(y: Tensor, element: tuple[int, bool], group: Group) -> Tensor:
    turns, flip = element
    return (y.flip(-1) if flip else y).rot90(turns, (-2, -1))


def _described(layer: nn.Module) -> str:
    return repr(layer).split("\n")[0]


def _cause(layer: Any, shape: tuple[int, ...], group: Group) -> str:
    """Return the first cause that the geometry shows."""
    kernel, stride = _pair(layer.kernel_size), _pair(layer.stride or layer.kernel_size)
    if isinstance(group, Translations):
        return "translations need padding_mode='circular' and stride 1"
    padding, dilation = layer.padding, _pair(getattr(layer, "dilation", 1))
    if isinstance(padding, str):
        return f"padding='{padding}' of an even kernel has one more column at one edge"
    pads = _pair(padding)
    if len({*zip(kernel, stride, pads, dilation, strict=True)}) > 1 and group_turns(group):
        return "kernel, stride, padding and dilation must be the same along both axes"
    for side, k, s, p, d in zip(shape[-2:], kernel, stride, pads, dilation, strict=True):
        left = (side + 2 * p - d * (k - 1) - 1) % s
        if left:
            return (
                f"stride {s} on {side} pixels leaves {left} over at one edge; choose padding or"
                " sizes so that none is left"
            )
    return "its windows are not symmetric about the middle"


def group_turns(group: Group) -> bool:
    """Whether the group has turns by 90 degrees, which exchange the axes."""
    return getattr(group, "square", True)


def _pair(value: Any) -> tuple[int, int]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)  # type: ignore[return-value]
