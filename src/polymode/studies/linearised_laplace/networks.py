"""The networks of Table 1, of about 50,000 weights each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from polymode import nets


def cnn(input_shape: Sequence[int], num_outputs: int, *, channels: Sequence[int]) -> nn.Module:
    """Return 3x3 convolutions with BatchNorm and ReLU, all but the first with stride 2; mean over
    the pixels; a linear layer."""
    layers: list[nn.Module] = []
    inputs = input_shape[0]
    for number, size in enumerate(channels):
        stride = 1 if number == 0 else 2
        conv = nn.Conv2d(inputs, size, 3, stride=stride, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(size), nn.ReLU()]
        inputs = size
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_outputs)]
    return nn.Sequential(*layers, *head)


class Grid(nn.Module):
    """Every fourth pixel of every fourth row, as one row per image: (B, 1, H, W) to (B, K)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., 2::4, 2::4].flatten(1)


def image_to_image(input_shape: Sequence[int], num_outputs: int, **options: Any) -> nn.Module:
    """Return a U-Net of whose image a grid of pixels is kept, so that many images make few rows."""
    return nn.Sequential(nets.unet(input_shape, 1, **options), Grid())


_BLOCKS = (1, 1, 1)
IMAGE_NETS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "transformer": (nets.vit, {"patch": 2, "dim": 48, "depth": 2}),
    "cnn": (cnn, {"channels": (16, 48, 80)}),
    "resnet": (nets.resnet, {"blocks": _BLOCKS, "width": 12}),
    "preactivation_resnet": (nets.resnet, {"blocks": _BLOCKS, "width": 12, "preactivation": True}),
    "fixup": (nets.resnet, {"blocks": _BLOCKS, "width": 12, "norm": None}),
    "unet": (image_to_image, {"channels": (24, 24, 24), "skips": (4, 4), "norm": "group"}),
}


def part_of(net: str) -> str:
    """Return the part of the study that a network belongs to.

    >>> part_of("cnn"), part_of("unet")
    ('networks', 'unet')
    """
    return "unet" if net == "unet" else "networks"


NORMALISED = [name for name in IMAGE_NETS if name != "fixup"]


def as_image_net(
    build: Callable[..., nn.Module], options: dict[str, Any], width: float
) -> Callable[..., nn.Module]:
    """Return a builder whose channels are `width` times as many, multiples of 4."""

    def scaled(value: int) -> int:
        return max(4, 4 * round(width * value / 4))

    sizes: dict[str, Any] = {}
    for key in ("width", "dim"):
        if key in options:
            sizes[key] = scaled(options[key])
    if "channels" in options:
        sizes["channels"] = tuple(scaled(size) for size in options["channels"])
    return partial(_built, build, {**options, **sizes})


def _built(
    build: Callable[..., nn.Module],
    options: dict[str, Any],
    input_shape: Sequence[int],
    num_outputs: int,
) -> nn.Module:
    return build(input_shape, num_outputs, **options)
