"""Weather: snow, frost, fog, brightness and spatter.

Constants are those of CIFAR-10-C (Hendrycks & Dietterich 2019) unless a function says otherwise;
lengths are for 32x32 images and grow with the side (`length_scale`). `n` images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.tasks.shifts.filters import directional_filter, gaussian_filter, length_scale, luma
from polymode.tasks.shifts.shift import Draws, shift

ICE = (0.80, 0.90, 1.0)
WATER = (175 / 255, 238 / 255, 238 / 255)  # pale turquoise, published
MUD = (63 / 255, 42 / 255, 20 / 255)  # published
FERNS, STRIPS = 7, 40


@shift(
    "snow",
    group="weather",
    colour=(
        (0.5, 2.5, 2.0, 0.95), (0.5, 2.2, 2.5, 0.9), (0.7, 2.0, 3.0, 0.9),
        (0.8, 1.8, 3.5, 0.85), (0.9, 1.6, 4.0, 0.8),
    ),
)  # fmt: skip
def snow(images: Tensor, fall: tuple[float, float, float, float], draws: Draws) -> Tensor:
    """Return images whitened, with streaks of flakes in front.

    fall = (size, threshold, sigma, keep). Flakes are where smooth blobs of a size pass a threshold;
    they are smeared downwards over about `sigma`. The picture behind them is
    keep x + (1 - keep) max(x, 1.5 luma + 0.5). `keep` is published; size, threshold and sigma are
    our own: with the published ones severity 2 is harder than 3, and 5 no harder than 4.
    """
    size, threshold, sigma, keep = fall
    scale = length_scale(images)
    flakes = (2 * (blobs(images, size * scale, draws) - threshold)).clamp(0, 1)
    angles = draws.uniform(math.pi / 4, 3 * math.pi / 4)
    streaks = directional_filter(flakes, angles, sigma * scale)
    white = torch.maximum(images, 1.5 * luma(images) + 0.5)
    return keep * images + (1 - keep) * white + streaks + streaks.rot90(2, (2, 3))


@shift(
    "frost",
    group="weather",
    colour=((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.9, 0.5), (0.85, 0.6)),
)
def frost(images: Tensor, cover: tuple[float, float], draws: Draws) -> Tensor:
    """Return a x + b ice with cover = (a, b), behind ferns of ice made by formula.

    The published corruption takes photographs of frost. Severities 1 to 3 have its constants; at 4
    and 5 those, (0.85, 0.4) and (0.75, 0.45), dim the image by about what the ice adds.
    """
    keep, amount = cover
    return keep * images + amount * _tint(ferns(images, draws), ICE, images)


@shift(
    "fog",
    group="weather",
    colour=((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
)
def fog(images: Tensor, haze: tuple[float, float], draws: Draws) -> Tensor:
    """Return (x + b fog) m / (m + b), haze = (b, decay) and m the largest value of the image."""
    thickness, decay = haze
    largest = images.amax((1, 2, 3), keepdim=True)
    hazy = images + thickness * plasma(images, decay, draws)
    return hazy * (largest / (largest + thickness))


@shift("brightness", group="weather", colour=(0.05, 0.1, 0.15, 0.2, 0.3), random=False)
def brightness(images: Tensor, more: float, draws: Draws) -> Tensor:
    """Return images whose value (largest of red, green, blue) is raised by `more`, up to 1.

    Hue and saturation stay, so all channels grow by one factor; black becomes grey.
    """
    value = images.amax(1, keepdim=True)
    raised = (value + more).clamp(max=1)
    return torch.where(value > 0, images * (raised / value), raised)


@shift(
    "spatter",
    group="weather",
    colour=(
        ("water", 0.7, 2.0), ("water", 0.8, 1.8), ("water", 1.0, 1.6),
        ("mud", 0.8, 1.0), ("mud", 0.8, 0.75),
    ),
    grey=(
        ("water", 0.7, 2.0), ("water", 0.8, 1.8), ("water", 1.0, 1.6),
        ("mud", 0.8, 0.7), ("mud", 0.8, 0.5),
    ),
)  # fmt: skip
def spatter(images: Tensor, drops: tuple[str, float, float], draws: Draws) -> Tensor:
    """Return images with drops of water (severities 1 to 3) or mud (4 and 5) on the lens.

    drops = (liquid, size, threshold): they lie where smooth blobs of a size pass the threshold.
    Water adds pale light, more on the side that is turned to the light; mud covers. Colours and
    sizes are published, thresholds our own: the published mud covers less than the water. Mud on
    the dark ground of grey images hardly shows, so there is more of it.
    """
    liquid, size, threshold = drops
    scale = length_scale(images)
    field = blobs(images, size * scale, draws)
    depth = (2 * (field - threshold)).clamp(0, 1)
    if liquid == "mud":
        return images * (1 - depth) + _tint(depth, MUD, images)
    step = math.ceil(scale)
    slope = (field - field.roll((step, step), (2, 3))) / 2
    return images + _tint(depth * (0.4 + 0.6 * slope.clamp(0, 1)), WATER, images)


def _tint(layer: Tensor, colour: tuple[float, float, float], images: Tensor) -> Tensor:
    """Return the layer (n, 1, H, W) in a colour, or in its luma for grey images."""
    tint = images.new_tensor(colour).view(1, 3, 1, 1)
    return layer * (luma(tint) if images.shape[1] == 1 else tint)


def blobs(images: Tensor, size: float, draws: Draws) -> Tensor:
    """Return smooth periodic fields, of mean 0 and variance 1 in every image; `size` in pixels."""
    field = gaussian_filter(draws.normal(1, *images.shape[-2:]), size, periodic=True)
    mean, std = field.mean((2, 3), keepdim=True), field.std((2, 3), keepdim=True)
    return (field - mean) / std


def plasma(images: Tensor, decay: float, draws: Draws) -> Tensor:
    """Return fractal landscapes in [0, 1] by the diamond-square algorithm.

    From level to level the grid is halved and the random part divided by decay^2. A landscape is
    periodic, its side the next power of 2, and is cut to the image.
    """
    height, width = images.shape[-2:]
    side = 2 ** math.ceil(math.log2(max(height, width)))
    field = images.new_zeros(len(images), side, side)
    step, size = side, 1.0
    while step > 1:
        half, many = step // 2, side // step
        rough = draws.uniform(-size, size, 3, many, many)
        corners = field[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        centres = (pairs + pairs.roll(-1, 2)) / 4 + rough[:, 0]
        above = corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)
        beside = pairs + centres + centres.roll(1, 2)
        field[:, half::step, half::step] = centres
        field[:, ::step, half::step] = above / 4 + rough[:, 1]
        field[:, half::step, ::step] = beside / 4 + rough[:, 2]
        step, size = half, size / decay**2
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low))[:, None, :height, :width]


def ferns(images: Tensor, draws: Draws) -> Tensor:
    """Return ice on a window in [0, 1], of mean 0.4 or so.

    Some spots divide the picture among them by distance. From each runs a rib in a direction of its
    own, and from the rib run barbs: random strips along the lines u + |v| = const, with u along the
    rib and v across. Ferns are thick where a fractal field is high.
    """
    along, off = _ribs(images, draws)
    strips = draws.uniform(0, 1, 1, 4, STRIPS)
    # grid_sample takes the strips to lie on [-1, 1]; beyond, they repeat mirrored
    grid = torch.stack([along + off, 3 * off - 1], dim=-1)
    barbs = F.grid_sample(strips, grid, padding_mode="reflection", align_corners=False)
    rib = (1 - 30 * off[:, None]).clamp(min=0)
    haze = plasma(images, 1.6, draws)
    ice = 1.5 * torch.maximum(barbs, rib) * (0.2 + 0.8 * haze) + 0.3 * haze - 0.2
    return ice.clamp(0, 1)


def _ribs(images: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Return the places (n, H, W) along and off the nearest spot's rib, in sides of the image."""
    height, width = images.shape[-2:]
    side = min(height, width)
    rows = torch.arange(height, dtype=images.dtype, device=images.device)[:, None] / side
    columns = torch.arange(width, dtype=images.dtype, device=images.device) / side
    spots = draws.uniform(0, 1, FERNS, 3, 1, 1)
    nearest = images.new_full((), math.inf)
    along = off = images.new_zeros(())
    for y, x, turn in (spot.unbind(1) for spot in spots.unbind(1)):
        down, across = rows - y * (height / side), columns - x * (width / side)
        cos, sin = (2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()
        distance = down**2 + across**2
        closer = distance < nearest
        nearest = torch.where(closer, distance, nearest)
        along = torch.where(closer, across * cos + down * sin, along)
        off = torch.where(closer, (down * cos - across * sin).abs(), off)
    return along, off
