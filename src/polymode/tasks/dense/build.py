"""From images as bytes with a target at each pixel to a task, one way for all such tasks.

Mean and standard deviation per channel come from the training images alone. Shifts and OOD sets are
made when they are looked at, before normalisation, and rounded to bytes; shifts that move pixels
move targets, too. `N` images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.likelihoods.kinds import Likelihood
from polymode.tasks.images.build import Names, as_names, shift_names
from polymode.tasks.images.pixels import channel_scaling, to_bytes, to_unit
from polymode.tasks.shifts import SEVERITIES, corrupt_pair
from polymode.tasks.task import Task
from polymode.training.data import Pixels

DEFAULT_SHIFTS = ("gaussian_noise", "gaussian_blur", "contrast", "rotation")


class Maps(NamedTuple):
    """Images (N, C, H, W) uint8 with masks (N, H, W) of labels or maps (N, H, W) of values."""

    pixels: Tensor
    targets: Tensor


def map_task(
    name: str,
    sets: Mapping[str, Maps],
    likelihood: Likelihood | str,
    *,
    ood: Mapping[str, Callable[[], Maps]],
    near_ood: Sequence[str] = (),
    shifts: Names | None,
    seed: int,
    **options: Any,
) -> Task:
    """Return the task of images and maps.

    Args:
        sets: "train", "test" and, where there is one, "val".
        ood: functions that make OOD sets; labels above those of the task mark unseen things.
        shifts: names of shifts of the test set; None for four of them, "all", () for none.
        seed: of shifts that draw.
        **options: of `Task`.
    """
    scaling = channel_scaling(sets["train"].pixels)
    kinds = shift_names(name, as_names(shifts, DEFAULT_SHIFTS))

    def scaled(maps: Maps) -> Pixels:
        return Pixels(maps.pixels, maps.targets, scaling)

    def shifted(kind: str, severity: int) -> Pixels:
        return scaled(shifted_maps(sets["test"], kind, severity, seed))

    val = scaled(sets["val"]) if "val" in sets else None
    return Task(
        name=name,
        likelihood=likelihood,
        train=scaled(sets["train"]),
        val=val,
        test=scaled(sets["test"]),
        ood={key: partial(_made, make, scaled) for key, make in ood.items()},
        near_ood=near_ood,
        shifts={
            kind: {level: partial(shifted, kind, level) for level in SEVERITIES} for kind in kinds
        },
        input_scaling=scaling,
        **options,
    )


def shifted_maps(maps: Maps, kind: str, severity: int, seed: int) -> Maps:
    """Return images under a shift, with their targets."""
    images, targets = corrupt_pair(to_unit(maps.pixels), maps.targets, kind, severity, seed=seed)
    return Maps(to_bytes(images), targets)


def _made(make: Callable[[], Maps], scaled: Callable[[Maps], Pixels]) -> Pixels:
    return scaled(make())


def pasted(maps: Maps, label: int | float, stream: torch.Generator) -> Maps:
    """Return images with a patch of noise pasted in, whose pixels have the label.

    Each patch is a square at a place of its own, of a quarter to a half of the shorter side.
    """
    pixels, targets = maps.pixels.clone(), maps.targets.clone()
    height, width = pixels.shape[2:]
    for image, target in zip(pixels, targets, strict=True):
        share, top, left = torch.rand(3, generator=stream).tolist()
        side = max(1, round(min(height, width) * (0.25 + 0.25 * share)))
        rows = slice(start := int(top * (height - side + 1)), start + side)
        columns = slice(start := int(left * (width - side + 1)), start + side)
        shape = (len(image), side, side)
        noise = torch.randint(256, shape, generator=stream, dtype=torch.uint8)
        image[:, rows, columns] = noise
        target[rows, columns] = label
    return Maps(pixels, targets)
