"""Groups of the plane on images and square lattices: turns, mirror images, translations.

Quarter turns and mirror images move whole pixels (rot90, flip) and are exact. Other turns are
interpolated: `Turns` with k elements is Ck only up to the error of interpolation, which is large
for noise and small for smooth images; its multiples of 90 degrees are exact all the same. What
turns in from outside the image is 0, the mean of normalised pixels.

Images are (..., H, W). With `lattice`, inputs may also be flat, (..., H W).
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.core.rng import generator
from polymode.equivariance.groups import Group, number_of, register

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


class Planar(Group):
    """What groups of the plane share: images, or lattices that come as flat vectors."""

    square = True  # whether turns exchange the sides

    def __init__(self, lattice: tuple[int, ...] | None = None) -> None:
        self.lattice = lattice
        if lattice is not None and self.square and (len(lattice) != 2 or len(set(lattice)) > 1):
            raise ValueError(f"quarter turns need a square lattice, got {lattice}")

    def _is_flat(self, x: Tensor) -> bool:
        sides = self.lattice
        return sides is not None and tuple(x.shape[-len(sides) :]) != sides

    def check(self, x: Tensor) -> None:
        if self._is_flat(x):
            assert self.lattice is not None
            if x.shape[-1] != math.prod(self.lattice):
                raise ValueError(
                    f"{self.name} acts on lattices of {math.prod(self.lattice)} sites, got inputs"
                    f" of shape {tuple(x.shape)}"
                )
            return
        if x.ndim < 3 and self.lattice is None:
            raise ValueError(
                f"{self.name} acts on images (B, C, H, W), got shape {tuple(x.shape)}; for a"
                f" lattice given as a vector say its sides, e.g. '{self.name}@5x5'"
            )
        height, width = (x.shape[-2], x.shape[-1]) if x.ndim > 1 else (1, x.shape[-1])
        if self.square and height != width:
            raise ValueError(
                f"{self.name} turns images by 90 degrees, which needs square ones, got"
                f" {height}x{width}; pad or crop them, or take C2"
            )

    def _act(self, x: Tensor, index: int) -> Tensor:
        if not self._is_flat(x):
            return self._move(x, index)
        assert self.lattice is not None
        moved = self._move(x.unflatten(-1, self.lattice), index)
        return moved.flatten(-len(self.lattice))

    def _move(self, x: Tensor, index: int) -> Tensor:
        """Return the image (..., H, W) moved."""
        raise NotImplementedError


class QuarterTurns(Planar):
    """C1, C2, C4 and, with `mirror`, D1, D2, D4: element a is a turns by 360/k degrees, element
    k + a the mirror image turned so."""

    def __init__(
        self, order: int, mirror: bool = False, lattice: tuple[int, ...] | None = None
    ) -> None:
        self.order, self.mirror = order, mirror
        self.square = order == 4
        self.name = f"{'D' if mirror else 'C'}{order}"
        super().__init__(lattice)

    def __len__(self) -> int:
        return self.order * (1 + self.mirror)

    def _move(self, x: Tensor, index: int) -> Tensor:
        flipped, turns = divmod(index, self.order)
        if flipped:
            x = x.flip(-1)
        return x.rot90(turns * (4 // self.order), (-2, -1))

    def _table(self) -> Tensor:
        index = torch.arange(len(self))
        flips, turns = index // self.order, index % self.order
        # r^a s^p r^b s^q = r^(a ± b) s^(p + q), minus where p is 1.
        sign = 1 - 2 * flips[:, None]
        turned = (turns[:, None] + sign * turns) % self.order
        return (flips[:, None] ^ flips) * self.order + turned


class Turns(Planar):
    """Turns of images by the given angles, the first of them 0, with interpolation.

    Args:
        angles: in radians, counter-clockwise as rot90 turns.
        closed: whether they are the multiples of 360/k degrees.
        interpolation: "bilinear", "bicubic" or "nearest".
    """

    exact = False

    def __init__(
        self,
        angles: Tensor,
        *,
        closed: bool = True,
        interpolation: str = "bilinear",
        lattice: tuple[int, ...] | None = None,
        name: str = "turns",
    ) -> None:
        if interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"`interpolation` must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}"
            )
        self.angles, self.closed, self.name = angles.double(), closed, name
        self.interpolation = interpolation
        super().__init__(lattice)

    def __len__(self) -> int:
        return len(self.angles)

    def _move(self, x: Tensor, index: int) -> Tensor:
        quarters, angle = self._split(index)
        if angle:
            images = x.reshape(-1, *x.shape[-3:]) if x.ndim > 3 else x.reshape(1, -1, *x.shape[-2:])
            angles = torch.full((len(images),), angle)
            x = turn(images, angles, self.interpolation).reshape(x.shape)
        return x.rot90(quarters, (-2, -1))

    def _split(self, index: int) -> tuple[int, float]:
        """Return quarter turns, which are exact, and the remaining angle, 0 if there is none."""
        angle = float(self.angles[index])
        quarters = math.floor(angle / (math.pi / 2) + 1e-12)
        left = angle - quarters * math.pi / 2
        return quarters % 4, left if abs(left) > 1e-12 else 0.0

    def orbit(self, x: Tensor) -> Tensor:
        if self._is_flat(x):
            return super().orbit(x)
        turned: dict[float, Tensor] = {}  # C16: three interpolations
        images = []
        for index in range(len(self)):
            quarters, angle = self._split(index)
            key = round(angle, 12)
            if key not in turned:
                turned[key] = self.act(x, index).rot90(-quarters, (-2, -1))
            images.append(turned[key].rot90(quarters, (-2, -1)))
        return torch.stack(images)

    def act_each(self, x: Tensor, indices: Tensor) -> Tensor:
        if x.ndim != 4 or self._is_flat(x):
            return super().act_each(x, indices)
        self.check(x)
        splits = [self._split(index) for index in indices.tolist()]
        quarters = torch.tensor([split[0] for split in splits])
        angles = torch.tensor([split[1] for split in splits])
        moved, between = x.clone(), angles != 0
        if between.any():
            moved[between] = turn(x[between], angles[between], self.interpolation)
        for number in quarters.unique().tolist():
            rows = quarters == number
            moved[rows] = moved[rows].rot90(number, (-2, -1))
        return moved

    def _table(self) -> Tensor:
        index = torch.arange(len(self))
        return (index[:, None] + index) % len(self)


def turn(x: Tensor, angles: Tensor, interpolation: str = "bilinear") -> Tensor:
    """Return images (B, C, H, W) turned counter-clockwise about their middles by `angles` (B,)."""
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    zero = torch.zeros_like(cos)
    # Rows of an image run downwards: place (column, row) is read where the turn took it from.
    rows = [torch.stack([cos, -sin, zero], -1), torch.stack([sin, cos, zero], -1)]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, interpolation, "zeros", align_corners=False)


class Translations(Planar):
    """All translations of a periodic lattice; element number of the shift, last axis fastest."""

    square = False

    def __init__(self, lattice: tuple[int, ...]) -> None:
        self.name = "T"
        super().__init__(lattice)
        self.sides = lattice

    def __len__(self) -> int:
        return math.prod(self.sides)

    def check(self, x: Tensor) -> None:
        if tuple(x.shape[-len(self.sides) :]) != self.sides:
            super().check(x)

    def shift(self, index: int) -> tuple[int, ...]:
        """Return the steps along each axis of element `index`."""
        return tuple(int(step) for step in torch.unravel_index(torch.tensor(index), self.sides))

    def _move(self, x: Tensor, index: int) -> Tensor:
        return x.roll(self.shift(index), tuple(range(-len(self.sides), 0)))

    def _table(self) -> Tensor:
        steps = torch.stack(torch.unravel_index(torch.arange(len(self)), self.sides), -1)
        sides = torch.tensor(self.sides)
        sums = (steps[:, None] + steps) % sides
        strides = torch.tensor([math.prod(self.sides[axis + 1 :]) for axis in range(len(sides))])
        return (sums * strides).sum(-1)


@register("C4", r"C([1-9]\d*)", "turns by 360/k degrees; C1, C2, C4 exact, others interpolated")
def _cyclic(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    order = number_of(match)
    if order in (1, 2, 4):
        return QuarterTurns(order, lattice=lattice)
    angles = torch.arange(order, dtype=torch.float64) * (2 * math.pi / order)
    return Turns(angles, lattice=lattice)


@register("D4", r"D([124])", "turns by 360/k degrees and mirror images")
def _dihedral(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    return QuarterTurns(int(match[1]), mirror=True, lattice=lattice)


@register("T@5x5", r"T", "translations of a periodic lattice with the given sides")
def _translations(match: re.Match[str], lattice: tuple[int, ...] | None) -> Group:
    if lattice is None:
        raise ValueError("translations need the sides of the periodic lattice, e.g. 'T@5x5'")
    return Translations(lattice)


@register("turns-haar-16-0", r"turns-haar-(\d+)(?:-(\d+))?", "random turns of images, number, seed")
def _random_turns(match: re.Match[str], lattice: tuple[int, ...] | None) -> Any:
    angles = uniform_angles(number_of(match), int(match[2] or 0))
    return Turns(angles, closed=len(angles) == 1, lattice=lattice)


def uniform_angles(number: int, seed: int) -> Tensor:
    """Return the angle 0 and number − 1 uniform ones, in radians."""
    if number < 1:
        raise ValueError("a set of draws has at least the identity, got 0 elements")
    drawn = torch.rand(number, generator=generator(seed, "turns"), dtype=torch.float64)
    drawn[0] = 0.0
    return drawn * (2 * math.pi)
