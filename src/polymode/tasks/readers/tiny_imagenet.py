"""Tiny-ImageNet in its own layout (http://cs231n.stanford.edu/tiny-imagenet-200.zip).

`wnids.txt` lists the classes, `train/<wnid>/images/<wnid>_<k>.JPEG` are the training images and
`val/images` with `val/val_annotations.txt` the validation images; the test images have no labels,
so the validation images are what methods are tested on. Class k is line k of `wnids.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers.archives import members
from polymode.tasks.readers.image_files import ImageStack

_TRAIN = re.compile(r"(?:.*/)?train/(n\d+)/images/\1_(\d+)\.JPEG")
_VAL = re.compile(r"(?:.*/)?val/images/([^/]+\.JPEG)")
_LISTS = re.compile(r"(?:.*/)?(wnids\.txt|val/val_annotations\.txt)")


def read_tiny_imagenet(path: Path | str) -> dict[str, np.ndarray]:
    """Return x_train, y_train, x_test, y_test (the validation images) and `wnids`.

    Args:
        path: the zip file, or the folder that it unpacks to.

    Returns:
        Images (N, H, W, 3) uint8, labels (N,) int64; training images by class and number,
        validation images in the order of their list; `wnids` the class identifiers, texts.
    """
    path = Path(path)
    wnids, listed = _lists(path)
    number = {wnid: label for label, wnid in enumerate(wnids)}
    names = _train_names(path, number)
    train = {name: row for row, name in enumerate(names)}
    val = {name: row for row, (name, _) in enumerate(listed)}
    stacks = ImageStack(len(train), channels=3), ImageStack(len(val), channels=3)
    for name, content in _files(path, lambda name: name in train or _val_name(name) in val):
        stack = stacks[0] if name in train else stacks[1]
        row = train[name] if name in train else val[_val_name(name)]
        stack.put(row, f"{path}: {name}", content)
    (x_train, _), (x_test, decoded) = (stack.done() for stack in stacks)
    if len(decoded) < len(val):
        lost = sorted(set(range(len(val))) - set(decoded))[0]
        raise FileProblem(f"{path} lacks {listed[lost][0]}, which val_annotations.txt names")
    labels = [number[match[1]] for name in names if (match := _TRAIN.fullmatch(name))]
    return {
        "x_train": x_train,
        "y_train": np.array(labels, np.int64),
        "x_test": x_test,
        "y_test": np.array([number[wnid] for _, wnid in listed], np.int64),
        "wnids": np.array(wnids),
    }


def _val_name(name: str) -> str:
    match = _VAL.fullmatch(name)
    return match[1] if match else ""


def _lists(path: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the classes, and (file, class) of each validation image."""
    lists = {
        name.rpartition("/")[2]: content.decode("utf-8", "replace").splitlines()
        for name, content in _files(path, lambda name: bool(_LISTS.fullmatch(name)))
    }
    for name in ("wnids.txt", "val_annotations.txt"):
        if name not in lists:
            raise FileProblem(f"{path} lacks {name} of Tiny-ImageNet")
    wnids = [line.strip() for line in lists["wnids.txt"] if line.strip()]
    listed = []
    for row, line in enumerate(lists["val_annotations.txt"], 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in wnids:
            raise FileProblem(
                f"{path}: line {row} of val_annotations.txt names no class of wnids.txt: {line!r}"
            )
        listed.append((fields[0], fields[1]))
    return wnids, listed


def _train_names(path: Path, number: dict[str, int]) -> list[str]:
    """Return the names of the training images, by class and number."""
    images: list[tuple[int, int, str]] = []

    def note(name: str) -> bool:
        match = _TRAIN.fullmatch(name)
        if match and match[1] in number:
            images.append((number[match[1]], int(match[2]), name))
        return False

    for _ in _files(path, note):
        pass
    empty = set(number.values()) - {label for label, _, _ in images}
    if empty:
        wnid = next(wnid for wnid, label in number.items() if label in empty)
        raise FileProblem(f"{path} has no training image of class {wnid}")
    return [name for _, _, name in sorted(images)]


def _files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted files of an archive or a folder."""
    if not path.is_dir():
        yield from members(path, wanted)
        return
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and wanted(name):
            yield name, file.read_bytes()
