"""PNG and JPEG files with labels: a folder for each class, or one folder and a table of labels.

Pillow decodes; only PNG and JPEG are tried, and an image is measured before its pixels are. A
broken image is named and ends the reading, unless skipping was asked for.
"""

from __future__ import annotations

import csv
import io
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polymode.core.memory import free_bytes, human
from polymode.core.safe_files import FileProblem, open_plain
from polymode.tasks.readers.archives import safe_name

SUFFIXES = {".png", ".jpg", ".jpeg"}
FORMATS = ("PNG", "JPEG")
_ALL_SUFFIXES = {
    "PNG": {".png"}, "JPEG": {".jpg", ".jpeg"}, "TIFF": {".tif", ".tiff"}, "BMP": {".bmp"},
    "GIF": {".gif"}, "WEBP": {".webp"},
}  # fmt: skip
_GREY = {"1", "L", "LA"}
_COLOUR = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}
_MOST_PIXELS = 64_000_000


class Images(NamedTuple):
    """Images that were read, with what is known of them.

    Attributes:
        x: (N, H, W) for grey images, (N, H, W, 3) for colour, uint8.
        y: (N,) int64, positions in `class_names`.
        class_names: names of the classes, sorted.
        files: the N files, relative to the folder.
        skipped: files that could not be decoded (only with `on_broken="skip"`).
    """

    x: np.ndarray
    y: np.ndarray
    class_names: tuple[str, ...]
    files: tuple[str, ...]
    skipped: tuple[str, ...]


def read_image_folder(
    folder: Path | str,
    *,
    labels: Path | str | None = None,
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    on_broken: str = "error",
    formats: Sequence[str] = FORMATS,
) -> Images:
    """Return the images of a folder and their classes.

    Args:
        folder: holds a subfolder for each class; or, with `labels`, the images themselves.
        labels: csv file with a line `file,class` for each image, with or without a header.
        size: (height, width) to resize to; by default all images must have the first one's size.
        channels: 1 for grey, 3 for colour; by default what the first image has. Transparency is
            dropped.
        on_broken: "error" names the first image that cannot be decoded; "skip" leaves such out.
        formats: what files are, in Pillow's words: PNG and JPEG, or those of a published set.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileProblem(f"{folder} is not a folder")
    pairs = (
        _from_subfolders(folder, formats) if labels is None else _from_table(folder, Path(labels))
    )
    if not pairs:
        raise FileProblem(
            f"{folder} has no {_or(formats)} image in a subfolder; each class is a subfolder, or"
            " give `labels`, a csv file with file,class lines"
        )
    stack = ImageStack(
        len(pairs), size=size, channels=channels, on_broken=on_broken, formats=formats
    )
    for row, (file, _) in enumerate(pairs):
        if not (folder / file).exists():
            raise FileProblem(f"{labels} names {file}, which is not in {folder}")
        with open_plain(folder / file) as stream:
            content = stream.read()
        stack.put(row, str(folder / file), content)
    x, decoded = stack.done()
    names = _sorted_names({name for _, name in pairs})
    number = {name: position for position, name in enumerate(names)}
    return Images(
        x,
        np.array([number[pairs[row][1]] for row in decoded], np.int64),
        tuple(names),
        tuple(pairs[row][0] for row in decoded),
        tuple(stack.skipped),
    )


def _or(formats: Sequence[str]) -> str:
    return " or ".join(formats)


def _from_subfolders(folder: Path, formats: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    wanted = {suffix for kind in formats for suffix in _ALL_SUFFIXES[kind]}
    unwanted = {suffix for every in _ALL_SUFFIXES.values() for suffix in every} - wanted
    problem = "neither PNG nor JPEG" if tuple(formats) == FORMATS else f"not {_or(formats)}"
    for group in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        for file in sorted(group.rglob("*")):
            if file.suffix.lower() in unwanted:
                raise FileProblem(f"{file} is {problem}; convert it or move it away")
            if file.suffix.lower() in wanted and not file.name.startswith("."):
                pairs.append((file.relative_to(folder).as_posix(), group.name))
    return pairs


def _from_table(folder: Path, table: Path) -> list[tuple[str, str]]:
    try:
        with (
            open_plain(table) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as stream,
        ):
            rows = [(line, row) for line, row in enumerate(csv.reader(stream), 1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileProblem(f"{table} cannot be read as csv: {error}") from None
    pairs: list[tuple[str, str]] = []
    lines: dict[str, int] = {}
    for line, row in rows:
        if len(row) != 2:
            raise FileProblem(f"{table}, line {line}: {len(row)} columns, expected file,class")
        file, name = row[0].strip(), row[1].strip()
        if not pairs and line == rows[0][0] and Path(file).suffix.lower() not in SUFFIXES:
            continue  # a header
        if not name:
            raise FileProblem(f"{table}, line {line}: {file} has no class")
        file = safe_name(table, file)
        if file in lines:  # it could come into the training and the test set
            raise FileProblem(
                f"{table}, line {line}: {file} is listed in line {lines[file]} already; keep one"
            )
        lines[file] = line
        pairs.append((file, name))
    return pairs


def _sorted_names(names: set[str]) -> list[str]:
    """Return class names sorted, as numbers where all are: 2 before 10."""
    if all(name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


class ImageStack:
    """One array that images are put into, in any order; the first one settles size and colour."""

    def __init__(
        self,
        total: int,
        *,
        size: tuple[int, int] | None = None,
        channels: int | None = None,
        on_broken: str = "error",
        formats: Sequence[str] = FORMATS,
    ) -> None:
        if channels not in (None, 1, 3):
            raise ValueError(f"`channels` must be 1 (grey) or 3 (colour), got {channels}")
        if on_broken not in ("error", "skip"):
            raise ValueError(f"`on_broken` must be 'error' or 'skip', got '{on_broken}'")
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"`size` must be (height, width) of at least 1, got {size}")
        self.total, self.size, self.channels, self.on_broken = total, size, channels, on_broken
        self.formats = tuple(formats)
        self.skipped: list[str] = []
        self._x: np.ndarray | None = None
        self._kept = np.zeros(total, bool)
        self._first = self._cause = ""

    def put(self, row: int, name: str, content: bytes) -> None:
        """Decode `content` into row `row`; `name` is for messages."""
        try:
            pixels = _decode(content, self._mode, self.size, self.formats)
        except _Broken as error:
            if self.on_broken == "error":
                raise FileProblem(
                    f"{name} is a broken image: {error}; mend or remove it, or give"
                    " on_broken='skip' to leave such images out"
                ) from None
            self._cause = self._cause or f"{name}: {error}"
            self.skipped.append(name)
            return
        if self._x is None:
            self._x, self._first = self._empty(pixels.shape), name
        if pixels.shape != self._x.shape[1:]:
            raise FileProblem(self._misfit(name, pixels.shape, self._x.shape[1:]))
        self._x[row] = pixels
        self._kept[row] = True

    def done(self) -> tuple[np.ndarray, list[int]]:
        """Return the images that were put, and their rows."""
        rows = np.flatnonzero(self._kept)
        if self._x is None:
            raise FileProblem(
                f"none of {self.total:,} images could be read; the first: {self._cause}"
            )
        return (self._x if len(rows) == self.total else self._x[rows]), rows.tolist()

    @property
    def _mode(self) -> str | None:
        """What to convert to: "L", "RGB", or None while the first image has not settled it."""
        if self.channels is not None:
            return "L" if self.channels == 1 else "RGB"
        return "RGB" if self._x is not None and self._x.ndim == 4 else None

    def _empty(self, shape: Sequence[int]) -> np.ndarray:
        need = self.total * math.prod(shape)
        if need > 0.9 * free_bytes():
            raise FileProblem(
                f"{self.total:,} images of {' x '.join(map(str, shape))} need {human(need)},"
                f" {human(free_bytes())} is free; give a smaller `size`"
            )
        return np.empty((self.total, *shape), np.uint8)

    def _misfit(self, name: str, shape: Sequence[int], first: Sequence[int]) -> str:
        if shape[:2] != first[:2]:
            return (
                f"{name} is {shape[0]} x {shape[1]}, {self._first} is {first[0]} x {first[1]}; give"
                " size=(height, width) to resize all"
            )
        return f"{name} is in colour, {self._first} is grey; give channels=1 or channels=3"


class _Broken(Exception):
    """An image that cannot be decoded."""


def _decode(
    content: bytes, mode: str | None, size: tuple[int, int] | None, formats: tuple[str, ...]
) -> np.ndarray:
    """Return the pixels of one file: (H, W) or (H, W, 3), uint8."""
    from PIL import Image

    broken: tuple[Any, ...] = (
        OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error,
        Image.DecompressionBombError, Image.DecompressionBombWarning,
    )  # fmt: skip
    try:
        with Image.open(io.BytesIO(content), formats=formats) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise _Broken(f"{image.width:,} x {image.height:,} pixels are too many")
            if image.mode not in _GREY | _COLOUR:
                raise _Broken(f"pixels of kind {image.mode} have more than 8 bits")
            pixels: Any = image.convert(mode or ("L" if image.mode in _GREY else "RGB"))
    except broken as error:
        text = str(error).replace(repr(content), "").split("<_io")[0].strip()
        raise _Broken(text or type(error).__name__) from None
    if size is not None and (pixels.height, pixels.width) != tuple(size):
        pixels = pixels.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(pixels)
