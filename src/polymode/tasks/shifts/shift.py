"""The shifts of images by name: what one is, what it draws, and `corrupt`, which applies one.

Images are (N, C, H, W) with C = 1 (grey) or 3 (colour: red, green, blue) and values in [0, 1],
before normalisation; a shift keeps shape, type and range. Each of the five severities has its
constants, one table for colour and one for grey.

A set is processed in blocks whose size depends only on the shape of one image. Block k draws from
the stream (seed, kind, severity, k), always for a whole block, and keeps as many rows as it has
images. Therefore image i gets the same numbers in a set of 1,000 and of 10,000. `N` images, `n`
images of one block, `C` channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymode.core.registry import Registry
from polymode.core.rng import generator
from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.tasks.task import check_finite

MOVING = ("rotation", "translation", "elastic_transform")  # after these, pixels are elsewhere
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST_SIDE = 8
BLOCK_VALUES, BLOCK_IMAGES = 2**20, 512


def block_size(values: int) -> int:
    """Return the images per block, a power of 2 up to 512, for images of so many values each.

    >>> block_size(1 * 8 * 8), block_size(3 * 32 * 32), block_size(3 * 224 * 224)
    (512, 256, 4)
    """
    fitting = max(BLOCK_VALUES // values, 1)
    return min(2 ** (fitting.bit_length() - 1), BLOCK_IMAGES)


@dataclass(frozen=True)
class Draws:
    """The stream of one block; draws come in the type and on the device of the images `like`."""

    stream: torch.Generator
    size: int
    like: Tensor

    @classmethod
    def of(
        cls, images: Tensor, size: int, seed: int, kind: str, severity: int, block: int
    ) -> Draws:
        """Return the stream of block number `block`; the first has the plain address."""
        path = (kind, severity, block) if block else (kind, severity)
        return cls(generator(seed, *path), size, images)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers (n, *shape)."""
        return self._keep(torch.randn(self.size, *shape, generator=self.stream))

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers (n, *shape) uniform on [low, high)."""
        return self._keep(torch.rand(self.size, *shape, generator=self.stream)) * (high - low) + low

    def poisson(self, rates: Tensor) -> Tensor:
        """Return Poisson numbers of the given rates (n, ...)."""
        return self._keep(torch.poisson(rates.to("cpu", torch.float32), generator=self.stream))

    def _keep(self, numbers: Tensor) -> Tensor:
        return numbers[: len(self.like)].to(self.like)


Kernel = Callable[[Tensor, Any, Draws], Tensor]


@dataclass(frozen=True)
class Shift:
    """A shift of images: call it with images, a severity and a seed.

    Args:
        name: what it is called.
        group: "noise", "blur", "weather", "digital" (the 19 corruptions) or "geometry".
        colour, grey: the constants of severities 1 to 5 for 3 channels and for 1 channel.
        random: whether the result depends on the seed.
        kernel: function (images (n, C, H, W), constants, draws) -> images (n, C, H, W).
    """

    name: str
    group: str
    colour: tuple[Any, ...]
    grey: tuple[Any, ...]
    random: bool
    kernel: Kernel

    def __call__(self, images: Tensor, severity: int, *, seed: int = 0) -> Tensor:
        """Return shifted images (N, C, H, W); see `corrupt`."""
        _check(images, severity)
        constants = (self.grey if images.shape[1] == 1 else self.colour)[severity - 1]
        size = block_size(images[0].nelement())
        out = torch.empty_like(images)
        # half precision is for storage; transforms and filters are computed in float32
        work = torch.promote_types(images.dtype, torch.float32)
        for block, rows in enumerate(images.detach().split(size)):
            rows = rows.to(work).contiguous()
            draws = Draws.of(rows, size, seed, self.name, severity, block)
            shifted = self.kernel(rows, constants, draws).clamp_(0, 1)
            out[block * size : block * size + len(rows)] = shifted
        return out


SHIFTS: Registry[Shift] = Registry("shift")


def shift(
    name: str,
    *,
    group: str,
    colour: tuple[Any, ...],
    grey: tuple[Any, ...] = (),
    random: bool = True,
) -> Callable[[Kernel], Shift]:
    """Return a decorator that makes a kernel the registered shift `name`.

    Without `grey` the constants of `colour` hold for grey images too.
    """
    grey = grey or colour
    assert len(colour) == len(grey) == len(SEVERITIES)

    def enter(kernel: Kernel) -> Shift:
        return SHIFTS.register(name)(Shift(name, group, colour, grey, random, kernel))

    return enter


def corrupt(images: Tensor, kind: str, severity: int, *, seed: int = 0) -> Tensor:
    """Return the images under the shift `kind`, as a new tensor.

    The set is processed in blocks of bounded memory. Image i of the result depends on image i, on
    its place i, and on kind, severity and seed; not on how many images come after it.

    Args:
        images: (N, C, H, W), C = 1 or 3, sides of at least 8, floating-point in [0, 1].
        kind: a name of `SHIFTS`: one of the 19 `CORRUPTIONS`, "rotation" or "translation".
        severity: 1 (mild) to 5.
        seed: of the random kinds; the others ignore it.

    Returns:
        images (N, C, H, W) of the same type, device and range.

    >>> photographs = torch.full((2, 3, 32, 32), 0.5)
    >>> corrupt(photographs, "gaussian_noise", 5).std().item()
    0.09...
    """
    return SHIFTS.get(kind).value(images, severity, seed=seed)


def corrupt_pair(
    images: Tensor, targets: Tensor, kind: str, severity: int, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return images as of `corrupt` with their targets at each pixel, which move as pixels do.

    Shifts that leave pixels in their places leave targets alone. Others interpolate: a label
    becomes the one with the largest share, a value the mean of those observed. What comes in from
    outside the image, or was not observed by half, is not observed.

    Args:
        images, kind, severity, seed: as of `corrupt`.
        targets: labels (N, H, W), integers with -100 where there is none; or values (N, H, W) or
            (N, H, W, D) with NaN where there is none.
    """
    shift, shifted = SHIFTS.get(kind).value, corrupt(images, kind, severity, seed=seed)
    if targets.shape[:3] != (len(images), *images.shape[2:]):
        need, got = (len(images), *images.shape[2:]), tuple(targets.shape)
        raise ValueError(f"targets of images {tuple(images.shape)} must begin with {need}, {got=}")
    if kind not in MOVING:
        return shifted, targets
    constants = (shift.grey if images.shape[1] == 1 else shift.colour)[severity - 1]
    size = block_size(images[0].nelement())
    moved = []
    for block, rows in enumerate(targets.split(size)):
        layers = _layers(rows, int(targets.max()))
        draws = Draws.of(layers, size, seed, kind, severity, block)
        moved.append(_of_layers(shift.kernel(layers, constants, draws), rows))
    return shifted, torch.cat(moved)


def _layers(targets: Tensor, largest: int) -> Tensor:
    """Return targets as images (n, K, H, W): shares of classes, or values and where they are."""
    if not targets.is_floating_point():
        classes = torch.arange(largest + 1)[:, None, None]
        return (targets[:, None] == classes).float()
    values = targets if targets.dim() == 4 else targets.unsqueeze(-1)
    observed = ~values.isnan().all(-1, keepdim=True)
    layers = torch.cat([values.where(observed, 0.0), observed.to(values)], -1)
    return layers.movedim(-1, 1).contiguous()


def _of_layers(layers: Tensor, targets: Tensor) -> Tensor:
    """Return targets in the form of those given."""
    if not targets.is_floating_point():
        nowhere = 1 - layers.sum(1, keepdim=True)
        labels = torch.cat([layers, nowhere], 1).argmax(1)
        return labels.masked_fill(labels == layers.shape[1], NOT_OBSERVED).to(targets.dtype)
    *values, observed = layers.unbind(1)
    every = torch.stack(values, -1) / observed.clamp(min=0.5).unsqueeze(-1)
    every = every.masked_fill((observed < 0.5).unsqueeze(-1), float("nan"))
    return every.view(targets.shape)


def check_severity(severity: int) -> None:
    """Refuse a severity other than 1, 2, 3, 4 or 5."""
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise ValueError(f"`severity` must be 1, 2, 3, 4 or 5, got {severity!r}")


def _check(images: Tensor, severity: int) -> None:
    check_severity(severity)
    if not isinstance(images, Tensor):
        raise ValueError(
            f"images must be a tensor, got {type(images).__name__}; torch.as_tensor(images) is one"
        )
    shape = tuple(images.shape)
    if images.ndim != 4 or shape[1] not in (1, 3):
        remedy = ""
        if images.ndim == 4 and shape[3] in (1, 3):
            remedy = "; images.permute(0, 3, 1, 2) puts the channels first"
        elif images.ndim == 3:
            remedy = "; images[:, None] are grey images, image[None] is one image"
        raise ValueError(f"images must be (N, 1 or 3, H, W), got shape {shape}{remedy}")
    if len(images) == 0 or min(shape[2:]) < SMALLEST_SIDE:
        raise ValueError(
            f"images must be at least one, with sides of at least {SMALLEST_SIDE} pixels, got"
            f" shape {shape}"
        )
    if not images.is_floating_point():
        raise ValueError(f"images must be floating-point in [0, 1], got {images.dtype}; try / 255")
    low, high = (float(bound) for bound in torch.aminmax(images.detach()))
    check_finite(images.detach(), "images")
    if low < 0 or high > 1:
        raise ValueError(
            f"images must lie in [0, 1], got values from {low:.4g} to {high:.4g}: shift before"
            " normalising, and divide bytes by 255"
        )
