"""Your own images as a task: a folder of PNG and JPEG files with a subfolder for each class.

Two layouts are known. With subfolders `train` and `test`, each with a subfolder for each class, the
split is yours. Otherwise the subfolders are the classes, and a stratified share is held out as the
test set, the same for every seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from polymode.core.safe_files import FileProblem
from polymode.tasks.images.build import (
    TEST_FRACTION,
    Choice,
    Names,
    Part,
    held_out,
    image_task,
    require_sets,
)
from polymode.tasks.images.named_sets import JIGSAW, ood_names
from polymode.tasks.named import TASKS
from polymode.tasks.readers import Images, read_image_folder
from polymode.tasks.splits import check_fraction, share
from polymode.tasks.task import Task

NAME, VAL_FRACTION = "image_folder", 0.1


@TASKS.register(
    NAME,
    description="your own folder of images (option path), a subfolder for each class, with or"
    " without train and test above them",
    source="yours",
    licence="yours",
    kind="real",
    size="by folder",
    data=(),
)
def image_folder(
    *,
    path: str | Path | None = None,
    seed: int = 0,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    labels: str | Path | None = None,
    on_broken: str = "error",
    test_fraction: float = TEST_FRACTION,
    num_train: int | None = None,
    num_val: int | None = None,
    num_test: int | None = None,
    ood: Names = (),
    shifts: Names | None = None,
    augment: str | None = None,
) -> Task:
    """Return the images of a folder as a task.

    Args:
        path: the folder.
        seed: draws the random shifts; the split does not depend on it.
        size: side, or (height, width), to resize to; by default all images must have one size.
        channels: 1 for grey, 3 for colour; by default what the first image has.
        labels: csv file with a line `file,class` for each image, if classes are not subfolders.
        on_broken: "error" names the first image that cannot be decoded; "skip" leaves such out.
        test_fraction: share in (0, 1) of the images that is the test set, where there are no
            subfolders `train` and `test`.
        num_train, num_val, num_test: stratified subsets of this size. Default: all, and a tenth of
            the training images for validation.
        ood: names of OOD sets ("jigsaw", or sets of the data folder); none by default.
        shifts: names of shifts; "all" for all of them, () for none.
        augment: such as "crop+flip"; none by default, as only you know what may be mirrored.
    """
    folder = _folder(path)
    chosen = ood_names(NAME, ood, ())
    require_sets(NAME, [], [key for key in chosen if key != JIGSAW])
    sides = (size, size) if isinstance(size, int) else size
    reading = partial(read_image_folder, size=sides, channels=channels, on_broken=on_broken)
    if labels is None and all((folder / half).is_dir() for half in ("train", "test")):
        parts = _own_split(folder, reading)
    else:
        parts = _one_folder(folder, partial(reading, labels=labels), test_fraction)
    if len(parts.class_names) < 2:
        raise FileProblem(
            f"{folder} has one class, '{parts.class_names[0]}'; give a subfolder for each of at"
            " least two"
        )
    return image_task(
        NAME,
        parts.train,
        parts.test,
        Choice(seed, num_train, num_val, num_test, shifts),
        class_names=parts.class_names,
        ood=chosen,
        num_val=share(VAL_FRACTION, len(parts.train.labels)),
        augment=augment,
        description=f"images of folder '{folder.name}'"
        + (f", {parts.skipped:,} broken left out" if parts.skipped else ""),
    )


class Found(NamedTuple):
    """What was read: both parts, the names of the classes, and how many images were left out."""

    train: Part
    test: Part
    class_names: tuple[str, ...]
    skipped: int


def _folder(path: str | Path | None) -> Path:
    if path is None:
        raise ValueError(
            "`path` of image_folder must name a folder with a subfolder for each class, such as"
            ' pm.task("image_folder", path="flowers")'
        )
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise FileProblem(f"`path` of image_folder names {folder}, which is not a folder")
    return folder


def _one_folder(folder: Path, reading: Callable[..., Images], test_fraction: float) -> Found:
    """Return what lies in the folder, a stratified share of it as test set."""
    if not 0 < check_fraction("test_fraction", NAME, test_fraction):
        raise ValueError("`test_fraction` of image_folder must be > 0; a tenth is 0.1")
    images = reading(folder)
    part = Part(images.x, torch.from_numpy(images.y))
    return Found(*held_out(NAME, part, test_fraction), images.class_names, len(images.skipped))


def _own_split(folder: Path, reading: Callable[..., Images]) -> Found:
    """Return what lies in the subfolders `train` and `test`."""
    further = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and entry.name not in ("train", "test") and entry.name[0] != "."
    )
    if further:
        raise FileProblem(
            f"{folder} has {', '.join(further)} besides train and test; only these two are read"
            " (for validation, images are taken from train): move the others away"
        )
    train = reading(folder / "train")
    test = reading(folder / "test", channels=3 if train.x.ndim == 4 else 1)
    if test.x.shape[1:] != train.x.shape[1:]:
        raise FileProblem(
            f"{folder}: images of train are {train.x.shape[1:]}, of test {test.x.shape[1:]}; give"
            " `size` to resize all"
        )
    unknown = sorted(set(test.class_names) - set(train.class_names))
    if unknown:
        raise FileProblem(
            f"{folder / 'test'} has classes that train does not have: {', '.join(unknown)}"
        )
    number = torch.tensor([train.class_names.index(name) for name in test.class_names])
    return Found(
        Part(train.x, torch.from_numpy(train.y)),
        Part(test.x, number[torch.from_numpy(test.y)]),
        train.class_names,
        len(train.skipped) + len(test.skipped),
    )
