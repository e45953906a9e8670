r"""Scenes of overlapping shapes with soft borders.

Shape k of a scene covers pixel p to the degree

.. math:: a_k(p) = \sigma(d_k(p) / w_k)

with the distance d from its border, positive inside, and the softness w of its kind, in pixels.
Painted in order, shape k shows at p with the share :math:`s_k = a_k \prod_{j > k} (1 - a_j)`, and
the ground with the remainder. The image is the same mixture of colours, plus noise.

`N` scenes, `K` shapes in a scene, `V` what shows: the ground, then the shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

MOST = 4  # shapes of a scene
FEWEST = 2


@dataclass(frozen=True)
class Kind:
    """A kind of shape.

    Attributes:
        name: what it is called. outline: "disc", "square", "triangle" or "star".
        colour: its mean, red, green and blue in [0, 1].
        softness: w of its border, in pixels.
    """

    name: str
    outline: str
    colour: tuple[float, float, float]
    softness: float


@dataclass(frozen=True)
class Scenes:
    """Drawn scenes.

    Attributes:
        images: (N, 3, H, W) in [0, 1].
        shares: (N, V, H, W) what share of a pixel each shape shows; they add up to 1.
        kinds: (N, V) number of the kind of each, -1 for the ground and for shapes left out.
    """

    images: Tensor
    shares: Tensor
    kinds: Tensor

    def of_kinds(self, number: int) -> Tensor:
        """Return the share of the ground and of each of so many kinds, (N, 1 + number, H, W)."""
        shape = (len(self.images), number + 1, *self.images.shape[2:])
        places = (self.kinds + 1)[:, :, None, None].expand_as(self.shares)
        return self.shares.new_zeros(shape).scatter_add_(1, places, self.shares)


GROUND = (0.35, 0.35, 0.35)
COLOUR_SPREAD = 0.06  # of the colours of shapes of a kind, and of the ground
PIXEL_NOISE = 0.03


def draw_scenes(
    kinds: tuple[Kind, ...], num: int, side: int, stream: Generator, *, always: int | None = None
) -> Scenes:
    """Return drawn scenes of two to four shapes.

    Args:
        kinds: which occur. num: N. side: of the images, in pixels.
        stream: of random numbers.
        always: number of a kind that the last, uppermost shape of every scene has; the others are
            then of the other kinds.
    """
    which = torch.randint(len(kinds) - (always is not None), (num, MOST), generator=stream)
    if always is not None:
        which = which + (which >= always)
    count = torch.randint(FEWEST, MOST + 1, (num, 1), generator=stream)
    present = torch.arange(MOST) >= MOST - count  # the last ones, so that the uppermost is there
    if always is not None:
        which[:, -1] = always
    centres = side * (0.1 + 0.8 * torch.rand(num, MOST, 2, generator=stream))
    radii = side * (0.12 + 0.16 * torch.rand(num, MOST, generator=stream))
    angles = 2 * math.pi * torch.rand(num, MOST, generator=stream)
    softness = torch.tensor([kind.softness for kind in kinds])[which]
    place = torch.arange(side) + 0.5
    down = (place - centres[..., :1])[..., :, None]
    across = (place - centres[..., 1:])[..., None, :]
    cos, sin = angles.cos()[..., None, None], angles.sin()[..., None, None]
    u, v = cos * across + sin * down, cos * down - sin * across
    distance = torch.zeros(num, MOST, side, side)
    for number, kind in enumerate(kinds):
        rows = which == number
        distance[rows] = OUTLINES[kind.outline](u[rows], v[rows], radii[rows][:, None, None])
    cover = torch.sigmoid(distance / softness[..., None, None]) * present[..., None, None]
    shares = _shown(cover)
    means = torch.tensor([GROUND, *(kind.colour for kind in kinds)])
    numbers = torch.cat([torch.full((num, 1), -1), which.masked_fill(~present, -1)], 1)
    colours = means[numbers + 1] + COLOUR_SPREAD * torch.randn(num, MOST + 1, 3, generator=stream)
    images = torch.einsum("nvhw,nvc->nchw", shares, colours)
    images = images + PIXEL_NOISE * torch.randn(images.shape, generator=stream)
    return Scenes(images.clamp(0, 1), shares, numbers)


def _shown(cover: Tensor) -> Tensor:
    """Return the shares (N, 1 + K, H, W) of the ground and of shapes that cover (N, K, H, W)."""
    clear = (1 - cover).flip(1).cumprod(1).flip(1)  # no shape from k on covers the pixel
    above = torch.cat([clear[:, 1:], torch.ones_like(clear[:, :1])], 1)
    return torch.cat([clear[:, :1], cover * above], 1)


def _disc(u: Tensor, v: Tensor, radius: Tensor) -> Tensor:
    return radius - (u.square() + v.square()).sqrt()


def _square(u: Tensor, v: Tensor, radius: Tensor) -> Tensor:
    return 0.85 * radius - torch.maximum(u.abs(), v.abs())


def _triangle(u: Tensor, v: Tensor, radius: Tensor) -> Tensor:
    turns = [2 * math.pi * number / 3 for number in range(3)]
    sides = [math.cos(turn) * u + math.sin(turn) * v for turn in turns]
    return 0.65 * radius - torch.stack(sides).amax(0)


def _star(u: Tensor, v: Tensor, radius: Tensor) -> Tensor:
    """Two bars across each other."""
    long, short = 1.1 * radius, 0.4 * radius
    return torch.maximum(
        torch.minimum(long - u.abs(), short - v.abs()),
        torch.minimum(short - u.abs(), long - v.abs()),
    )


OUTLINES = {"disc": _disc, "square": _square, "triangle": _triangle, "star": _star}
"""Distances from the border of a shape at the origin, positive inside, in pixels."""
