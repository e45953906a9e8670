"""Augmentation of training batches: crop, flip and rotation as batched code on the loop's hook.

A step is a function (x (B, C, H, W), generator) -> x of the same shape; each image of the batch
gets one draw of its own, all from the given generator, so a run repeats and resumes exactly. Steps
are joined by `+`, or made from a name as a command line gives it:

>>> augmentation("crop+flip")
Crop(padding=4, outside='zero') + Flip(probability=0.5)

Batches are normalised before they come here: the 0 that fills what lies outside an image is the
mean of the training pixels, not black. `B` batch, `C` channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from polymode.core.registry import suggest

OUTSIDE = ("zero", "reflect")


class Augmentation:
    """A step of augmentation, or several in a row. Abstract: use `Crop`, `Flip`, `Rotate`, `+`."""

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Return the augmented batch (B, C, H, W); x stays as it is."""
        raise NotImplementedError

    def __add__(self, other: Augmentation) -> Compose:
        """Return both, first `self`."""
        if not isinstance(other, Augmentation):
            return NotImplemented
        return Compose((*_steps(self), *_steps(other)))

    def to_config(self) -> dict[str, Any]:
        """Return name and options, JSON-safe; `augmentation` makes the same step of them."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


def _steps(step: Augmentation) -> tuple[Augmentation, ...]:
    return step.steps if isinstance(step, Compose) else (step,)


@dataclass(frozen=True)
class Crop(Augmentation):
    """A window of the image's size, at a random place of the image with `padding` around it.

    Args:
        padding: pixels on every side, ≥ 1; 4 is usual for 32x32 images. The image is moved by up to
            so many pixels along each axis.
        outside: what the padding holds: "zero" (the mean, as batches are normalised) or "reflect"
            (the image mirrored at its edge).
    """

    padding: int = 4
    outside: str = "zero"
    name: str = field(default="crop", init=False, repr=False)

    def __post_init__(self) -> None:
        whole = isinstance(self.padding, int) and not isinstance(self.padding, bool)
        if not (whole and self.padding >= 1):
            raise ValueError(f"`padding` of Crop must be an integer >= 1, got {self.padding!r}")
        if self.outside not in OUTSIDE:
            raise ValueError(
                f"`outside` of Crop must be one of {', '.join(OUTSIDE)}, got {self.outside!r}."
                f"{suggest(self.outside, OUTSIDE)}"
            )

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        batch, channels, height, width = x.shape
        pad, mode = self.padding, "constant" if self.outside == "zero" else "reflect"
        if mode == "reflect" and pad >= min(height, width):
            raise ValueError(
                f"`padding` of Crop is {pad}, but images of {height}x{width} pixels can be"
                f" mirrored by at most {min(height, width) - 1}; choose less, or outside='zero'"
            )
        padded = F.pad(x, (pad, pad, pad, pad), mode=mode)
        across = width + 2 * pad
        plane = (height + 2 * pad) * across
        places = torch.randint(2 * pad + 1, (2, batch), generator=generator)
        # A line of the window is `width` values in a row of the flat batch; lines are copied whole.
        corners = (places[0] * across + places[1])[:, None, None]
        planes = torch.arange(batch * channels).view(batch, channels, 1) * plane
        starts = corners + planes + torch.arange(height) * across
        lines = padded.flatten().unfold(0, width, 1)
        return lines.index_select(0, starts.flatten().to(x.device)).view(x.shape)


@dataclass(frozen=True)
class Flip(Augmentation):
    """The image mirrored left to right, with a probability in [0, 1]."""

    probability: float = 0.5
    name: str = field(default="flip", init=False, repr=False)

    def __post_init__(self) -> None:
        if not (_number(self.probability) and 0 <= self.probability <= 1):
            raise ValueError(f"`probability` of Flip must be in [0, 1], got {self.probability!r}")

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        kept = torch.rand(len(x), generator=generator) >= self.probability
        rows = kept.nonzero().flatten().to(x.device)
        return x.flip(-1).index_copy_(0, rows, x.index_select(0, rows))


@dataclass(frozen=True)
class Rotate(Augmentation):
    """The image turned about its middle by an angle uniform on [-degrees, degrees], in (0, 180].

    Bilinear; what comes in from outside the image is 0, the mean of normalised pixels.
    """

    degrees: float = 15.0
    name: str = field(default="rotate", init=False, repr=False)

    def __post_init__(self) -> None:
        if not (_number(self.degrees) and 0 < self.degrees <= 180):
            raise ValueError(f"`degrees` of Rotate must be in (0, 180], got {self.degrees!r}")

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        largest = math.radians(self.degrees)
        angles = (2 * torch.rand(len(x), generator=generator) - 1) * largest
        cos, sin = angles.cos(), angles.sin()
        ratio = x.shape[-2] / x.shape[-1]  # both sides count as 2 in grids
        none = torch.zeros_like(cos)
        turns = torch.stack([cos, -sin * ratio, none, sin / ratio, cos, none], dim=1)
        grid = F.affine_grid(turns.view(-1, 2, 3).to(x), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


@dataclass(frozen=True)
class Compose(Augmentation):
    """Steps one after the other."""

    steps: tuple[Augmentation, ...]
    name: str = field(default="compose", init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.steps or not all(isinstance(step, Augmentation) for step in self.steps):
            raise ValueError(f"`steps` of Compose must be augmentations, got {self.steps!r}")

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        for step in self.steps:
            x = step(x, generator)
        return x

    def __repr__(self) -> str:
        return " + ".join(repr(step) for step in self.steps)


STEPS: dict[str, type[Augmentation]] = {"crop": Crop, "flip": Flip, "rotate": Rotate}


def augmentation(spec: str | Mapping[str, Any]) -> Augmentation:
    """Return the augmentation that a string or a configuration stands for.

    A string names steps joined by "+", each with its options behind colons in the order of its
    class: "crop+flip", "crop:4:reflect+flip", "rotate:10". A configuration is what `to_config`
    gives.

    >>> augmentation("rotate:10").to_config()
    {'degrees': 10.0, 'name': 'rotate'}
    """
    if isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("name", None)
        if name == "compose":
            return Compose(tuple(augmentation(step) for step in options["steps"]))
        return _class(name)(**options)
    if not isinstance(spec, str):
        raise ValueError(f"an augmentation is a string such as 'crop+flip', got {spec!r}")
    steps = tuple(_parse(part) for part in spec.split("+"))
    return steps[0] if len(steps) == 1 else Compose(steps)


def _parse(part: str) -> Augmentation:
    name, *options = part.strip().split(":")
    kind = _class(name)
    most = {"crop": 2, "flip": 1, "rotate": 1}[name]
    if len(options) > most:
        raise ValueError(f"augmentation '{name}' takes {most} options, got {part!r}")
    return kind(*(_value(option) for option in options))


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def _class(name: Any) -> type[Augmentation]:
    if name not in STEPS:
        raise ValueError(
            f"Unknown augmentation '{name}'.{suggest(str(name), STEPS)} Known: {', '.join(STEPS)},"
            " joined by '+'."
        )
    return STEPS[name]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
