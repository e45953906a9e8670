"""Augmentation of training batches: crop, flip, rotation, orbits of groups, on the loop's hook.

A step is a function (x (B, C, H, W), generator) -> x of the same shape; each image of the batch
gets its own draw from the given generator, so a run repeats and resumes exactly. Steps
are joined by `+`, or made from a name as a command line gives it:

>>> augmentation("crop+flip")
Crop(padding=4, outside='zero') + Flip(probability=0.5)

The orbit of a group is the exception: it may make |G| examples of each, and moves targets with
inputs where the group acts on outputs.

>>> augmentation("orbit:C4")
Orbit(group='C4', how='full', elements='all')

Batches are normalised before augmentation: the 0 outside an image is the mean of the training
pixels, not black. `B` batch, `C` channels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from polymode.core.checks import is_number
from polymode.core.registry import suggest
from polymode.equivariance.groups import Group
from polymode.equivariance.groups import group as find_group

OUTSIDE = {"zero": "zeros", "reflect": "reflection"}  # as torch calls them


class Augmentation(ABC):
    """A step of augmentation, or several in a row: `Crop`, `Flip`, `Rotate`, `Orbit`, sums."""

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Return the augmented batch (B, C, H, W); x stays as it is."""
        if x.ndim != 4:
            raise ValueError(
                f"augmentation is for batches (B, C, H, W) of images, got shape {tuple(x.shape)}"
            )
        return self.apply(x, generator)

    @abstractmethod
    def apply(self, x: Tensor, generator: Generator) -> Tensor:
        """Return the augmented batch, without a check."""

    def pairs(self, x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the augmented batch with its targets; most steps leave these as they are."""
        return self(x, generator), y

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


class Window(NamedTuple):
    """What a batch shows after moves of whole pixels: pixel (row, column) of image b is pixel
    (row + down[b], sign[b] column + across[b]) of the images (B, C, H, W) it was made from.
    """

    x: Tensor
    down: Tensor
    across: Tensor
    sign: Tensor
    outside: str = "zeros"

    @classmethod
    def of(cls, x: Tensor) -> Window:
        """Return the window that shows x as it is."""
        none = torch.zeros(len(x))
        return cls(x, none, none, none + 1)

    def read(self) -> Tensor:
        """Return what the window shows, (B, C, H, W)."""
        x, (height, width) = self.x, self.x.shape[2:]
        down, across, sign = (part.to(x)[:, None] for part in (self.down, self.across, self.sign))
        # Pixels lie evenly on [-1, 1] and are read at their centres, so their values are exact.
        rows = (down + _range(height, x)) * (2 / max(height - 1, 1)) - 1
        columns = (across + sign * _range(width, x)) * (2 / max(width - 1, 1)) - 1
        grid = _grid(torch.complex(columns, torch.zeros_like(columns)), 1j * rows)
        return F.grid_sample(x, grid, "nearest", self.outside, align_corners=True)


class Move(Augmentation):
    """A step that moves whole pixels. Several in a row are composed first and read once."""

    @abstractmethod
    def move(self, window: Window, generator: Generator) -> Window:
        """Return the window after this step."""

    def apply(self, x: Tensor, generator: Generator) -> Tensor:
        return self.move(Window.of(x), generator).read()


@dataclass(frozen=True)
class Crop(Move):
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
        is_integer = isinstance(self.padding, int) and not isinstance(self.padding, bool)
        if not (is_integer and self.padding >= 1):
            raise ValueError(f"`padding` of Crop must be an integer >= 1, got {self.padding!r}")
        if self.outside not in OUTSIDE:
            raise ValueError(
                f"`outside` of Crop must be one of {', '.join(OUTSIDE)}, got {self.outside!r}."
                f"{suggest(self.outside, OUTSIDE)}"
            )

    def move(self, window: Window, generator: Generator) -> Window:
        height, width = window.x.shape[2:]
        if self.outside == "reflect" and self.padding >= min(height, width):
            raise ValueError(
                f"`padding` of Crop is {self.padding}, but images of {height}x{width} pixels can be"
                f" mirrored by at most {min(height, width) - 1}; choose less, or outside='zero'"
            )
        size = (2, len(window.x))
        down, across = torch.randint(-self.padding, self.padding + 1, size, generator=generator)
        return window._replace(
            down=window.down + down,
            across=window.across + window.sign * across,
            outside=OUTSIDE[self.outside],
        )


@dataclass(frozen=True)
class Flip(Move):
    """The image mirrored left to right, with a probability in [0, 1]."""

    probability: float = 0.5
    name: str = field(default="flip", init=False, repr=False)

    def __post_init__(self) -> None:
        if not (is_number(self.probability) and 0 <= self.probability <= 1):
            raise ValueError(f"`probability` of Flip must be in [0, 1], got {self.probability!r}")

    def move(self, window: Window, generator: Generator) -> Window:
        chosen = torch.rand(len(window.x), generator=generator) < self.probability
        last = window.x.shape[3] - 1
        return window._replace(
            across=window.across + chosen * window.sign * last,
            sign=torch.where(chosen, -window.sign, window.sign),
        )


@dataclass(frozen=True)
class Rotate(Augmentation):
    """The image turned about its middle by an angle uniform on [-degrees, degrees], in (0, 180].

    Bilinear; what comes in from outside the image is 0, the mean of normalised pixels.
    """

    degrees: float = 15.0
    name: str = field(default="rotate", init=False, repr=False)

    def __post_init__(self) -> None:
        if not (is_number(self.degrees) and 0 < self.degrees <= 180):
            raise ValueError(f"`degrees` of Rotate must be in (0, 180], got {self.degrees!r}")

    def apply(self, x: Tensor, generator: Generator) -> Tensor:
        largest = math.radians(self.degrees)
        angles = (2 * torch.rand(len(x), generator=generator) - 1) * largest
        height, width = x.shape[2:]
        cos, sin = (part.to(x)[:, None] for part in (angles.cos(), angles.sin()))
        across = (_range(width, x) - (width - 1) / 2) * (2 / width)
        down = (_range(height, x) - (height - 1) / 2) * (2 / height)
        ratio = height / width  # both sides count as 2 in grids
        columns = torch.complex(cos, sin / ratio) * across
        rows = torch.complex(-sin * ratio, cos) * down
        return F.grid_sample(x, _grid(columns, rows), align_corners=False)


@dataclass(frozen=True)
class Orbit(Augmentation):
    """Elements of a group act on inputs, and on targets where the group has an action on them.

    The loss is a mean over the batch, so an orbit weighs as much as one example: `full` changes
    neither the weight of the prior nor the number of steps, but |G| times as many rows are seen.

    Args:
        group: a name as `equivariance.group` takes it, such as "C4", "C16", "C4@5x5" or
            "SO3-octahedral->input".
        how: "full": each example once with every element, as the theorem on ensembles asks;
            "random": each once, with an element drawn uniformly.
        elements: "all"; or a part of the group: numbers joined by "-" ("0-2"), or a sequence.
            Without 0 the examples themselves are never seen.
    """

    group: str
    how: str = "full"
    elements: str | tuple[int, ...] = "all"
    name: str = field(default="orbit", init=False, repr=False)

    def __post_init__(self) -> None:
        acting = find_group(self.group)
        if self.how not in ("full", "random"):
            raise ValueError(
                f"`how` of Orbit must be 'full' or 'random', got {self.how!r}."
                f"{suggest(str(self.how), ('full', 'random'))}"
            )
        elements = self.elements
        if isinstance(elements, str) and elements != "all":
            elements = tuple(int(part) if part.isdigit() else -1 for part in elements.split("-"))
        elif isinstance(elements, int):
            elements = (elements,)
        chosen = tuple(range(len(acting))) if elements == "all" else tuple(elements)
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= {*range(len(acting))}:
            raise ValueError(
                f"`elements` of Orbit must be 'all' or different numbers of 0 ... {len(acting) - 1}"
                f" for {self.group}, got {self.elements!r}"
            )
        object.__setattr__(self, "elements", "all" if elements == "all" else chosen)
        object.__setattr__(self, "_group", acting)
        object.__setattr__(self, "_chosen", chosen)

    @property
    def moves_targets(self) -> bool:
        """Whether targets move with inputs."""
        return not find_group(self.group).invariant

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        return self.apply(x, generator)

    def apply(self, x: Tensor, generator: Generator) -> Tensor:
        return self.pairs(x, torch.zeros(len(x)), generator)[0]

    def pairs(self, x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        acting: Group = self._group  # type: ignore[attr-defined]
        chosen: tuple[int, ...] = self._chosen  # type: ignore[attr-defined]
        if self.how == "full":
            moved = [(acting.act(x, index), acting.act_on_outputs(y, index)) for index in chosen]
            return torch.cat([pair[0] for pair in moved]), torch.cat([pair[1] for pair in moved])
        places = torch.randint(len(chosen), (len(x),), generator=generator)
        indices = torch.tensor(chosen)[places]
        if not acting.invariant:
            y = torch.stack([acting.act_on_outputs(y[b], int(i)) for b, i in enumerate(indices)])
        return acting.act_each(x, indices), y


@dataclass(frozen=True)
class Mixup(Augmentation):
    r"""Each example mixed with another one of its batch, inputs and targets.

    .. math:: x' = \lambda x + (1 - \lambda)\,x_\pi, \qquad \lambda \sim
              \mathrm{Beta}(\alpha, \alpha),

    and values alike. A label stays with probability λ, and is the other one's otherwise: on average
    over that draw the loss is the mixed one, :math:`\lambda\,\ell(y) + (1 - \lambda)\,\ell(y_\pi)`.
    Not a likelihood of the data: mixed examples were not observed.

    Args:
        alpha: α > 0; 0.2 is usual, 1 mixes evenly.

    Reference: H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz, mixup: beyond empirical risk
    minimization, ICLR 2018; it draws λ once per batch, here each example has its own.
    """

    alpha: float = 0.2
    name: str = field(default="mixup", init=False, repr=False)

    def __post_init__(self) -> None:
        if not is_number(self.alpha) or not 0 < self.alpha < math.inf:
            raise ValueError(f"`alpha` of Mixup must be a finite number > 0, got {self.alpha!r}")

    @property
    def departure(self) -> str:
        """What is minimised in the place of the loss of the data."""
        return "mixup trains on mixed examples that were not observed"

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        return self.apply(x, generator)

    def apply(self, x: Tensor, generator: Generator) -> Tensor:
        return self.pairs(x, torch.zeros(len(x)), generator)[0]

    def pairs(self, x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        if not isinstance(x, Tensor) or not x.is_floating_point() or not isinstance(y, Tensor):
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"mixup needs one tensor of floats as inputs, got {kind}")
        shape = torch.full((2, len(x)), float(self.alpha), dtype=torch.float64)
        first, second = torch._standard_gamma(shape, generator=generator).clamp_min(1e-300)
        share = first / (first + second)
        stays = torch.rand(len(x), generator=generator, dtype=torch.float64) < share
        partner = torch.randperm(len(x), generator=generator).to(x.device)
        mixed = _mixed(x, share, partner)
        if y.is_floating_point():
            return mixed, _mixed(y, share, partner)
        stays = stays.view(-1, *[1] * (y.dim() - 1)).to(y.device)
        return mixed, torch.where(stays, y, y[partner])


def _mixed(values: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """Return each of the values (B, ...) mixed with its partner."""
    by = share.to(values).view(-1, *[1] * (values.dim() - 1))
    return by * values + (1 - by) * values[partner]


@dataclass(frozen=True)
class Compose(Augmentation):
    """Steps one after the other."""

    steps: tuple[Augmentation, ...]
    name: str = field(default="compose", init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.steps or not all(isinstance(step, Augmentation) for step in self.steps):
            raise ValueError(f"`steps` of Compose must be augmentations, got {self.steps!r}")

    def apply(self, x: Tensor, generator: Generator) -> Tensor:
        for run in self._runs():
            if isinstance(run[0], Move):
                window = Window.of(x)
                for step in run:
                    window = step.move(window, generator)  # type: ignore[attr-defined]
                x = window.read()
            else:
                x = run[0].apply(x, generator)
        return x

    @property
    def moves_targets(self) -> bool:
        """Whether a step moves targets with inputs."""
        return any(getattr(step, "moves_targets", False) for step in self.steps)

    @property
    def departure(self) -> str:
        """What is minimised in the place of the loss of the data."""
        return next(filter(None, (getattr(step, "departure", "") for step in self.steps)), "")

    def pairs(self, x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        for run in self._runs():
            step = run[0] if len(run) == 1 else Compose(tuple(run))
            x, y = (step(x, generator), y) if len(run) > 1 else step.pairs(x, y, generator)
        return x, y

    def _runs(self) -> list[list[Augmentation]]:
        """Return the steps in runs that one reading serves: moves, among them at most one crop.

        A second crop must see what the first put outside the image.
        """
        runs: list[list[Augmentation]] = []
        for step in self.steps:
            joins = bool(runs) and isinstance(step, Move) and isinstance(runs[-1][0], Move)
            if joins and not (isinstance(step, Crop) and any(type(s) is Crop for s in runs[-1])):
                runs[-1].append(step)
            else:
                runs.append([step])
        return runs

    def __repr__(self) -> str:
        return " + ".join(repr(step) for step in self.steps)


STEPS: dict[str, type[Augmentation]] = {
    "crop": Crop,
    "flip": Flip,
    "rotate": Rotate,
    "orbit": Orbit,
    "mixup": Mixup,
}


def augmentation(spec: str | Mapping[str, Any]) -> Augmentation:
    """Return the augmentation that a string or a configuration stands for.

    A string names steps joined by "+", each with its options behind colons in the order of its
    class: "crop+flip", "crop:4:reflect+flip", "rotate:10", "orbit:C4:random". A configuration is
    what `to_config` gives.

    >>> augmentation("rotate:10").to_config()
    {'degrees': 10, 'name': 'rotate'}
    """
    if isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("name", None)
        if name == "compose":
            return Compose(tuple(augmentation(step) for step in options["steps"]))
        kind = _class(name)
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
    if not isinstance(spec, str):
        raise ValueError(f"an augmentation is a string such as 'crop+flip', got {spec!r}")
    steps = tuple(_parse(part) for part in spec.split("+"))
    return steps[0] if len(steps) == 1 else Compose(steps)


def _parse(part: str) -> Augmentation:
    name, *options = part.strip().split(":")
    kind = _class(name)
    most = len([option for option in fields(kind) if option.init])  # type: ignore[arg-type]
    if len(options) > most:
        noun = "option" if most == 1 else "options"
        raise ValueError(f"augmentation '{name}' takes {most} {noun}, got {part!r}")
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


def _grid(columns: Tensor, rows: Tensor) -> Tensor:
    """Return the places (B, H, W, 2) that are the sums of a part by column (B, W) and one by row
    (B, H), both as across + i down: one addition of complex numbers instead of four of real ones.
    """
    return torch.view_as_real(columns[:, None] + rows[:, :, None])


def _range(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, dtype=like.dtype, device=like.device)
