"""Changes of place: rotation, translation, and the elastic transform. `n` images, `C` channels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.tasks.shifts.filters import REFERENCE_SIDE, displace, gaussian_filter
from polymode.tasks.shifts.shift import Draws, shift

DEGREES = (12.0, 24.0, 36.0, 48.0, 60.0)
SHARES = (0.05, 0.10, 0.15, 0.20, 0.25)


@shift("rotation", group="geometry", colour=DEGREES, random=False)
def rotation(images: Tensor, degrees: float, draws: Draws) -> Tensor:
    """Return the images turned counter-clockwise about their middle.

    Bilinear interpolation; what comes in from outside the image is 0.
    """
    angle = math.radians(degrees)
    cos, sin = math.cos(angle), math.sin(angle)
    # affine_grid takes each output position to the input position it is read from. The first axis
    # points right, the second down, and both sides are scaled to [-1, 1], hence their ratio.
    ratio = images.shape[-2] / images.shape[-1]
    turn = images.new_tensor([[cos, -sin * ratio, 0.0], [sin / ratio, cos, 0.0]])
    grid = F.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


@shift("translation", group="geometry", colour=SHARES)
def translation(images: Tensor, share: float, draws: Draws) -> Tensor:
    """Return the images moved by a share of the shorter side, each in a direction of its own.

    Bilinear interpolation; what comes in from outside the image is 0.
    """
    length = share * min(images.shape[-2:])
    angles = draws.uniform(0, 2 * math.pi)[:, None, None]
    return displace(images, length * angles.cos(), length * angles.sin(), outside="zeros")


@shift(
    "elastic_transform",
    group="digital",
    colour=((0.2, 2.0, 1.0), (0.35, 2.0, 1.4), (0.5, 2.0, 1.8), (0.65, 2.0, 2.2), (0.8, 2.0, 2.6)),
)
def elastic_transform(images: Tensor, sheet: tuple[float, float, float], draws: Draws) -> Tensor:
    """Return images drawn on a rubber sheet: an affine map, and waves.

    sheet = (rms of the waves, their length, reach of the affine map), in pixels of a 32x32 image;
    all go with the side. Our own constants: in the published ones the affine map, which moves
    pixels most, shrinks as severity grows.
    """
    scale = min(images.shape[-2:]) / REFERENCE_SIDE
    rms, length, reach = (number * scale for number in sheet)
    _, _, height, width = images.shape
    waves = gaussian_filter(draws.normal(2, height, width), length, periodic=True)
    # white noise under a Gaussian of length l keeps the variance 1 / (4 pi l^2)
    field = _affine_field(images, reach, draws) + waves * (rms * 2 * math.sqrt(math.pi) * length)
    return displace(images, field[:, 0], field[:, 1], outside="reflection")


def _affine_field(images: Tensor, reach: float, draws: Draws) -> Tensor:
    """Return displacements (n, 2, H, W), across and down, of a random affine map.

    It moves three points. They lie a third of the shorter side off the middle, along both axes;
    each moves by up to `reach` pixels along either axis.
    """
    _, _, height, width = images.shape
    arm = min(height, width) / 3
    rows = torch.arange(height, dtype=images.dtype, device=images.device)[:, None]
    columns = torch.arange(width, dtype=images.dtype, device=images.device)
    u, v = (columns - (width - 1) / 2) / arm, (rows - (height - 1) / 2) / arm
    # weights of the corners (1, 1), (1, -1), (-1, -1), which are 1 at their own and 0 at the others
    weights = torch.stack([(1 + v) / 2 + 0 * u, (u - v) / 2, (1 - u) / 2 + 0 * v]).flatten(1)
    moves = draws.uniform(-reach, reach, 2, 3)
    return (moves @ weights).view(-1, 2, height, width)
