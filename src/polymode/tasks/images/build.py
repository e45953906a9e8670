"""From images as bytes to a task, one way for all image tasks.

1. Training and test images are read and checked; sets without a test half are split here.
2. Validation rows are taken off the training set, stratified, the same for every seed.
3. Mean and standard deviation per channel come only from the training rows that are left; every
   set is normalised with them when its batches are made, and stays bytes until then.
4. Shifts and OOD sets are made when they are looked at, in pixel space before normalisation, and
   rounded to bytes, as images on disk are.

`N` images, `C` channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.registry import suggest
from polymode.core.safe_files import FileProblem
from polymode.likelihoods.kinds import Categorical
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.augment import augmentation
from polymode.tasks.files import DATASETS, MissingData, find, load, require
from polymode.tasks.images.pixels import (
    channel_scaling,
    channels_first,
    fitted,
    jigsaw,
    to_bytes,
    to_unit,
)
from polymode.tasks.shifts import SEVERITIES, SHIFTS, corrupt
from polymode.tasks.splits import first, share, stratified_order
from polymode.tasks.task import Task
from polymode.training.data import Pixels

TEST_FRACTION = 0.2  # of sets without a training half


class Part(NamedTuple):
    """Images (N, H, W) or (N, H, W, 3) uint8 and their labels (N,) int64."""

    images: np.ndarray
    labels: Tensor


def require_sets(task: str, needed: Sequence[str], ood: Sequence[str]) -> None:
    """Raise `MissingData` with one command for all missing files, and the way without OOD sets."""
    try:
        require(*needed, *ood)
    except MissingData as missing:
        if not ood:
            raise
        raise MissingData(
            f"{missing}. Of these, task '{task}' itself needs {', '.join(needed)};"
            f" {', '.join(ood)} only for OOD sets: ood=() does without them"
        ) from None


def read_parts(
    name: str, shape: tuple[int, int, int], class_names: Sequence[str]
) -> tuple[Part, Part, Sequence[str]]:
    """Return the training and test images of a set, and the names of its classes.

    Without `class_names` the file has them, as identifiers (`wnids`). A set that is published
    without a training half is split here, a fifth for the test.
    """
    arrays = load(name, tuple(DATASETS.get(name).value.arrays))
    class_names = class_names or arrays["wnids"].tolist()
    test = _part(name, arrays, "test", len(class_names))
    if "x_train" in arrays:
        train = _part(name, arrays, "train", len(class_names))
    else:
        train, test = held_out(name, test, TEST_FRACTION)
    for part in (train, test):
        image_shape = (3 if part.images.ndim == 4 else 1, *part.images.shape[1:3])
        if image_shape != shape:
            raise FileProblem(f"{find(name)} has images {image_shape}, {name} has {shape}")
    return train, test, class_names


def held_out(name: str, part: Part, fraction: float) -> tuple[Part, Part]:
    """Return the images without a stratified test set of this share, and the test set."""
    num_test = share(fraction, len(part.labels))
    if len(part.labels) - num_test < 1:
        raise FileProblem(f"{len(part.labels)} image(s) are too few for a training and a test set")
    order = stratified_order(part.labels, name, "held out")
    test, train = first(order, num_test), first(order[num_test:], len(order))
    return (
        Part(part.images[train.numpy()], part.labels[train]),
        Part(part.images[test.numpy()], part.labels[test]),
    )


def ood_part(name: str) -> Part:
    """Return the test images of a set, without reading its training images."""
    return _part(name, load(name, ("x_test", "y_test")), "test", None)


def _part(name: str, arrays: dict[str, np.ndarray], half: str, num_classes: int | None) -> Part:
    labels = torch.from_numpy(arrays[f"y_{half}"])
    if num_classes is not None:
        check_labels(f"{find(name)}: y_{half}", labels, num_classes)
    return Part(arrays[f"x_{half}"], labels)


def check_labels(what: str, labels: Tensor, num_classes: int) -> None:
    """Refuse labels that are not classes, with their number and the first row."""
    wrong = ((labels < 0) | (labels >= num_classes)).nonzero().flatten()
    if len(wrong):
        row = int(wrong[0])
        raise FileProblem(
            f"{what} has {len(wrong):,} of {len(labels):,} labels outside 0 to {num_classes - 1},"
            f" the first {int(labels[row])} in row {row}"
        )


DEFAULT_SHIFTS = ("gaussian_noise", "defocus_blur", "fog", "pixelate", "rotation")  # one per group
JIGSAW = "jigsaw"

Names = str | Sequence[str]


@dataclass(frozen=True)
class Choice:
    """What the user may choose of every image task; None is the task's own default.

    Attributes:
        seed: draws the random shifts; splits and OOD sets do not depend on it.
        num_train, num_val, num_test: stratified subsets of this size; `num_test` also bounds each
            OOD set.
        shifts: names; "all" for all there are, () for none.
    """

    seed: int
    num_train: int | None
    num_val: int | None
    num_test: int | None
    shifts: Names | None


class Rows(NamedTuple):
    """Row numbers of each part, in the order of the file; train and val are disjoint."""

    train: Tensor
    val: Tensor
    test: Tensor


def image_task(
    name: str,
    train: Part,
    test: Part,
    choice: Choice,
    *,
    class_names: Sequence[str],
    ood: Sequence[str],
    near: Sequence[str] = (),
    num_val: int,
    augment: str | None,
    description: str,
) -> Task:
    """Return the task of a training and a test set.

    Args:
        name: of the task; also that of its random streams.
        train, test: images and labels as they were read.
        choice: the user's options.
        class_names: C names; their number is the number of classes, whichever are present.
        ood: OOD sets by name, already checked. near: those of any name that are near.
        num_val: images for validation where the user says nothing, at most a fifth of `train`.
        augment: the usual augmentation, as `augmentation` takes it, or None.
        description: of the data; how they are normalised is added.
    """
    rows = split(name, train.labels, test.labels, choice, num_val)
    pixels = channels_first(train.images, rows.train)
    scaling = channel_scaling(pixels)
    tested = Pixels(channels_first(test.images, rows.test), test.labels[rows.test], scaling)
    val = None
    if len(rows.val):
        val = Pixels(channels_first(train.images, rows.val), train.labels[rows.val], scaling)
    sets = {key: partial(_ood_set, name, key, tested, choice.num_test) for key in ood}
    kinds = shift_names(name, choice.shifts)
    return Task(
        name=name,
        train=Pixels(pixels, train.labels[rows.train], scaling),
        val=val,
        test=tested,
        likelihood=Categorical(),
        target_size=len(class_names),
        class_names=class_names,
        ood=sets,
        near_ood=[key for key in ood if key == JIGSAW or key in near],
        shifts={
            kind: {
                level: partial(_shifted, tested, kind, level, choice.seed) for level in SEVERITIES
            }
            for kind in kinds
        },
        input_scaling=scaling,
        augment=None if augment is None else augmentation(augment),
        description=f"{description}; {_normalisation(scaling)}",
    )


def split(name: str, labels: Tensor, test: Tensor, choice: Choice, num_val: int) -> Rows:
    """Return the rows of each part; all subsets are stratified, and small ones lie in large ones.

    The validation rows do not depend on `num_train`, nor the training rows on the test set.
    """
    usual = min(num_val, len(labels) // 5)
    num_held_out = _size(name, "num_val", choice.num_val, usual, low=0, high=len(labels) - 1)
    left = len(labels) - num_held_out
    num_train = _size(name, "num_train", choice.num_train, left, low=1, high=left)
    num_test = _size(name, "num_test", choice.num_test, len(test), low=1, high=len(test))
    order = stratified_order(labels, name)
    return Rows(
        first(order[num_held_out:], num_train),
        first(order, num_held_out),
        first(stratified_order(test, name, "test"), num_test),
    )


def _size(name: str, option: str, value: int | None, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(
            f"`{option}` of {name} must be an integer from {low} to {high:,}, got {value!r}"
        )
    return value


def shift_names(name: str, chosen: Names | None) -> list[str]:
    """Return the shifts that were chosen, each once; an unknown one is refused here, not later."""
    names = as_names(chosen, DEFAULT_SHIFTS)
    if names == ["all"]:
        return SHIFTS.names()
    for kind in names:
        if kind not in SHIFTS.names():
            raise ValueError(
                f"`shifts` of {name} names '{kind}', which is not a shift."
                f"{suggest(kind, SHIFTS.names())} Known: {', '.join(SHIFTS.names())}, or 'all'."
            )
    return names


def as_names(chosen: Names | None, default: Sequence[str]) -> list[str]:
    """Return a list of names from one name, several, or None for the default; each once."""
    if chosen is None:
        return list(default)
    return [chosen] if isinstance(chosen, str) else list(dict.fromkeys(chosen))


def _shifted(test: Pixels, kind: str, severity: int, seed: int) -> Pixels:
    images = corrupt(to_unit(test.pixels), kind, severity, seed=seed)
    return Pixels(to_bytes(images), test.y, test.scaling)


def _ood_set(name: str, key: str, test: Pixels, most: int | None) -> Pixels:
    """Return an OOD set in the task's shape and normalisation, at most `most` images of it."""
    if key == JIGSAW:
        return Pixels(jigsaw(test.pixels, name), test.y, test.scaling)
    part = ood_part(key)
    rows = first(stratified_order(part.labels, key, "test"), most or len(part.labels))
    pixels = fitted(channels_first(part.images, rows), tuple(test.pixels.shape[1:]))
    return Pixels(pixels, part.labels[rows], test.scaling)


def _normalisation(scaling: Scaling) -> str:
    mean, std = (
        ", ".join(f"{value:.4f}" for value in part.flatten().tolist())
        for part in (scaling.shift, scaling.scale)
    )
    return f"inputs are (pixel - mean) / std, pixels in [0, 1], mean {mean}, std {std}"
