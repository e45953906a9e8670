"""Published sets with a target at each pixel, read from their folders: CamVid, Cityscapes, NYUv2.

Nothing is downloaded: licences ask for an agreement, so a path is given. `N` images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.core.safe_files import FileProblem
from polymode.likelihoods.kinds import HeteroscedasticGaussian
from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.tasks.dense.build import Maps, map_task, pasted
from polymode.tasks.dense.read_maps import Pair, pairs_of, read_pairs, some_of
from polymode.tasks.images.build import Names
from polymode.tasks.named import TASKS
from polymode.tasks.task import Task

Size = tuple[int, int]
VAL_SHARE = 0.1
CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
          "pedestrian", "bicyclist")  # fmt: skip
CITYSCAPES = {
    "road": 7, "sidewalk": 8, "building": 11, "wall": 12, "fence": 13, "pole": 17,
    "traffic light": 19, "traffic sign": 20, "vegetation": 21, "terrain": 22, "sky": 23,
    "person": 24, "rider": 25, "car": 26, "truck": 27, "bus": 28, "train": 31, "motorcycle": 32,
    "bicycle": 33,
}  # fmt: skip
"""Classes that are evaluated, with their numbers in files `_labelIds.png`."""
NYU_13 = ("bed", "books", "ceiling", "chair", "floor", "furniture", "objects", "picture", "sofa",
          "table", "tv", "wall", "window")  # fmt: skip
_OPEN = {"kind": "real", "size": "by folder", "data": ()}


@TASKS.register(
    "camvid",
    description="frames of drives with 11 classes at each pixel (option path), in the layout of"
    " the SegNet tutorial",
    source="G. J. Brostow, J. Fauqueur, R. Cipolla, Semantic object classes in video: a"
    " high-definition ground truth database, Pattern Recognition Letters 30 (2009) 88-97",
    licence="research",
    **_OPEN,
)
def camvid(
    *,
    path: str | Path | None = None,
    seed: int = 0,
    size: Size | None = None,
    num_train: int | None = None,
    num_val: int | None = None,
    num_test: int | None = None,
    shifts: Names | None = (),
) -> Task:
    """Return CamVid with 11 classes, from `train`, `trainannot`, `val`, `valannot`, `test`,
    `testannot`; number 11 in a map is void.

    Args:
        path: the folder. seed: of shifts that draw.
        size: (height, width) to resize to; None for that of the files, 360 x 480.
        num_train, num_val, num_test: so many images, evenly spaced; None for all.
        shifts: names of shifts of the test set; None for four of them, "all", () for none.
    """
    folder = _folder("camvid", path)
    parts = {key: pairs_of(folder / key, folder / f"{key}annot") for key in _SETS}
    chosen = _some(parts, num_train, num_val, num_test)
    convert = partial(_classes, {number: number for number in range(len(CAMVID))})
    return _segmentation("camvid", chosen, size, convert, CAMVID, shifts, seed)


@TASKS.register(
    "cityscapes",
    description="streets of 50 cities with 19 classes at each pixel (option path); its validation"
    " images are the test set",
    source="M. Cordts et al., The Cityscapes dataset for semantic urban scene understanding,"
    " CVPR 2016",
    licence="non-commercial; registration at cityscapes-dataset.com",
    **_OPEN,
)
def cityscapes(
    *,
    path: str | Path | None = None,
    seed: int = 0,
    size: Size | None = (256, 512),
    num_train: int | None = None,
    num_val: int | None = None,
    num_test: int | None = None,
    shifts: Names | None = (),
) -> Task:
    """Return Cityscapes from `leftImg8bit` and `gtFine`, files `_labelIds.png`.

    The labels of its test images are not published: its validation images are the test set here.
    The last cities of its training set, a tenth of the images or more, are the validation set.

    Args:
        path: the folder. seed: of shifts that draw.
        size: (height, width) to resize to; None for that of the files, 1024 x 2048.
        num_train, num_val, num_test: so many images, evenly spaced; None for all.
        shifts: names of shifts of the test set; None for four of them, "all", () for none.
    """
    folder = _folder("cityscapes", path)

    def pairs(half: str) -> list[Pair]:
        return pairs_of(folder / "leftImg8bit" / half, folder / "gtFine" / half, _city_map)

    train, val = _last_folders(pairs("train"))
    chosen = _some({"train": train, "val": val, "test": pairs("val")}, num_train, num_val, num_test)
    convert = partial(_classes, {number: k for k, number in enumerate(CITYSCAPES.values())})
    return _segmentation("cityscapes", chosen, size, convert, tuple(CITYSCAPES), shifts, seed)


@TASKS.register(
    "nyuv2",
    description="rooms with depth in metres or 13 classes at each pixel (options path, target)",
    source="N. Silberman, D. Hoiem, P. Kohli, R. Fergus, Indoor segmentation and support inference"
    " from RGBD images, ECCV 2012; 13 classes after C. Couprie et al., ICLR 2013",
    licence="research",
    **_OPEN,
)
def nyuv2(
    *,
    path: str | Path | None = None,
    target: str = "depth",
    seed: int = 0,
    size: Size | None = (240, 320),
    num_train: int | None = None,
    num_val: int | None = None,
    num_test: int | None = None,
    shifts: Names | None = (),
) -> Task:
    """Return the 1,449 labelled images of NYUv2 from `image`, and `depth` or `seg13`, each with
    `train` and `test`.

    Depths are PNG files of 16 bits in millimetres, 0 where there is none; classes are 1 to 13 and 0
    for void. The last tenth of the training images, which are in the order of scenes, is the
    validation set.

    Args:
        path: the folder. target: "depth" or "classes". seed: of shifts that draw.
        size: (height, width) to resize to; None for that of the files, 480 x 640.
        num_train, num_val, num_test: so many images, evenly spaced; None for all.
        shifts: names of shifts of the test set; None for four of them, "all", () for none.
    """
    if target not in ("depth", "classes"):
        raise ValueError(f"`target` of nyuv2 must be 'depth' or 'classes', got {target!r}")
    folder = _folder("nyuv2", path)
    maps = folder / ("depth" if target == "depth" else "seg13")
    train, test = (
        pairs_of(folder / "image" / half, maps / half, _as_png) for half in ("train", "test")
    )
    held_out = max(1, round(VAL_SHARE * len(train)))
    parts = {"train": train[:-held_out], "val": train[-held_out:], "test": test}
    chosen = _some(parts, num_train, num_val, num_test)
    if target == "classes":
        convert = partial(_classes, {number + 1: number for number in range(len(NYU_13))})
        return _segmentation("nyuv2", chosen, size, convert, NYU_13, shifts, seed)
    sets = {key: read_pairs(pairs, size, _metres) for key, pairs in chosen.items()}
    return map_task(
        "nyuv2",
        sets,
        HeteroscedasticGaussian(),
        ood={"pasted": partial(_pasted, "nyuv2", sets["test"], float("nan"))},
        shifts=shifts,
        seed=seed,
        ignore_index=float("nan"),
        target_unit="m",
        description=f"depth of rooms, folder '{folder.name}'",
    )


_SETS = ("train", "val", "test")


def _folder(task: str, path: str | Path | None) -> Path:
    if path is None:
        raise ValueError(
            f"`path` of {task} must name its folder, such as pm.task('{task}', path='{task}/')"
        )
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise FileProblem(f"`path` of {task} names {folder}, which is not a folder")
    return folder


def _city_map(image: str) -> str:
    return image.replace("_leftImg8bit", "_gtFine_labelIds")


def _as_png(image: str) -> str:
    return f"{image.rsplit('.', 1)[0]}.png"


def _last_folders(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs without the last folders, and those, a tenth of all or more."""
    folders = sorted({image.parent for image, _ in pairs})
    if len(folders) < 2:
        raise FileProblem(f"{folders[0].parent} must hold at least two cities, one to validate on")
    held_out: set[Path] = set()
    for folder in reversed(folders[1:]):
        if sum(image.parent in held_out for image, _ in pairs) >= VAL_SHARE * len(pairs):
            break
        held_out.add(folder)
    inside = [pair for pair in pairs if pair[0].parent not in held_out]
    return inside, [pair for pair in pairs if pair[0].parent in held_out]


def _some(
    parts: Mapping[str, list[Pair]], train: int | None, val: int | None, test: int | None
) -> dict[str, list[Pair]]:
    return {
        key: some_of(parts[key], number)
        for key, number in zip(_SETS, (train, val, test), strict=True)
    }


def _classes(classes: Mapping[int, int], numbers: Tensor) -> Tensor:
    """Return labels of the numbers of a map, -100 for all that are no class."""
    table = torch.full((max(int(numbers.max()), *classes) + 1,), NOT_OBSERVED)
    table[list(classes)] = torch.tensor(list(classes.values()))
    return table[numbers]


def _metres(numbers: Tensor) -> Tensor:
    """Return millimetres as metres, NaN where there is no depth."""
    return (numbers.float() / 1000).masked_fill(numbers == 0, float("nan"))


def _pasted(name: str, test: Maps, label: int | float) -> Maps:
    return pasted(test, label, generator(0, name, "pasted"))


def _segmentation(
    name: str,
    pairs: Mapping[str, list[Pair]],
    size: Size | None,
    convert: Callable[[Tensor], Tensor],
    *facts: Any,
) -> Task:
    class_names, shifts, seed = facts
    sets = {key: read_pairs(part, size, convert) for key, part in pairs.items()}
    number = len(class_names)
    return map_task(
        name,
        sets,
        "categorical",
        ood={"pasted": partial(_pasted, name, sets["test"], number)},
        shifts=shifts,
        seed=seed,
        target_size=number,
        class_names=class_names,
        description=f"{number} classes at each pixel",
    )
