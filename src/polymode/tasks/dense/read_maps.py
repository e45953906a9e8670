"""Pairs of files, an image and a map of labels or depths: PNG files of 8 or 16 bits for maps."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polymode.core.safe_files import FileProblem, open_plain
from polymode.tasks.dense.build import Maps
from polymode.tasks.images.pixels import channels_first
from polymode.tasks.readers.image_files import ImageStack

Pair = tuple[Path, Path]
_WHOLE = ("1", "L", "P", "I", "I;16", "I;16B")  # modes of pixels that are one whole number


def pairs_of(images: Path, maps: Path, renamed: Callable[[str], str] = str) -> list[Pair]:
    """Return the images of a folder with their maps, in order; folders below are searched, too.

    Args:
        renamed: from the path of an image in its folder to that of its map.
    """
    if not images.is_dir():
        raise FileProblem(f"{images} is not a folder")
    pairs = []
    for image in sorted(images.rglob("*")):
        if image.suffix.lower() not in (".png", ".jpg", ".jpeg") or image.name.startswith("."):
            continue
        target = maps / renamed(image.relative_to(images).as_posix())
        if not target.is_file():
            raise FileProblem(f"{image} has no map {target}")
        pairs.append((image, target))
    if not pairs:
        raise FileProblem(f"{images} has no PNG or JPEG image")
    return pairs


def some_of(pairs: Sequence[Pair], number: int | None) -> list[Pair]:
    """Return so many pairs, evenly spaced; all for None, or where there are fewer."""
    if number is None or number >= len(pairs):
        return list(pairs)
    places = np.linspace(0, len(pairs) - 1, number).round().astype(int)
    return [pairs[place] for place in places]


def read_pairs(
    pairs: Sequence[Pair],
    size: tuple[int, int] | None,
    convert: Callable[[Tensor], Tensor],
) -> Maps:
    """Return images in colour and their maps.

    Args:
        size: (height, width) to resize to, images bilinear and maps to the nearest pixel.
        convert: from whole numbers (H, W) of a map to labels or values.
    """
    stack = ImageStack(len(pairs), size=size, channels=3)
    targets = []
    for row, (image, target) in enumerate(pairs):
        with open_plain(image) as stream:
            stack.put(row, str(image), stream.read())
        targets.append(convert(_whole_numbers(target, size)))
    pixels = channels_first(stack.done()[0])
    for (image, target), part in zip(pairs, targets, strict=True):
        if part.shape != pixels.shape[2:]:
            raise FileProblem(
                f"{target} is {tuple(part.shape)} pixels, {image} is {tuple(pixels.shape[2:])}"
            )
    return Maps(pixels, torch.stack(targets))


def _whole_numbers(path: Path, size: tuple[int, int] | None) -> Tensor:
    """Return the numbers of a PNG file as int64 (H, W); palettes are not looked up."""
    from PIL import Image

    with open_plain(path) as stream:
        content = stream.read()
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            mode = image.mode
            if size is not None:
                image = image.resize((size[1], size[0]), Image.Resampling.NEAREST)
            values = np.array(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise FileProblem(f"{path} is a broken map: {error}") from None
    if mode not in _WHOLE:
        raise FileProblem(f"{path} has pixels of kind {mode}; a map has one number per pixel")
    return torch.from_numpy(values.astype(np.int64))
