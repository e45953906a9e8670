"""Image sets from the data folder: what must be there, what is read of it, and whether it is sound.

`N` images, `C` channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.files import FileProblem
from polymode.tasks.files import DATASETS, MissingData, find, load, require
from polymode.tasks.splits import first, share, stratified_order

TEST_FRACTION = 0.2  # of sets without a training half


class Part(NamedTuple):
    """Images (N, H, W) or (N, H, W, 3) uint8 and their labels (N,) int64."""

    images: np.ndarray
    labels: Tensor


def require_sets(task: str, own: Sequence[str], ood: Sequence[str]) -> None:
    """Raise `MissingData` with one command for all missing files, and the way without OOD sets."""
    try:
        require(*own, *ood)
    except MissingData as missing:
        if not ood:
            raise
        raise MissingData(
            f"{missing}. Of these, task '{task}' itself needs {', '.join(own)};"
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
        found = (3 if part.images.ndim == 4 else 1, *part.images.shape[1:3])
        if found != shape:
            raise FileProblem(f"{find(name)} has images {found}, {name} has {shape}")
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
