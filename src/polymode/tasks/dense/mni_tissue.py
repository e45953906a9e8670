"""`mni_tissue`: grey and white matter in slices of the MNI brain template, a real volume.

The T1 image and the maps of grey and white matter of ICBM 152 (2009a, symmetric), an average of 152
people, as the package nilearn carries them. A voxel is the tissue of the larger map where one is
above one half, and otherwise neither. Neighbouring slices are alike, so blocks of slices, with a
gap between them, are divided into training, validation and test.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from polymode.core.rng import generator
from polymode.tasks.dense.build import Maps, map_task, pasted
from polymode.tasks.files import load, require
from polymode.tasks.images.build import Names
from polymode.tasks.named import TASKS
from polymode.tasks.task import Task

FILE = "mni_tissue"
CLASS_NAMES = ("neither", "grey matter", "white matter")
BLOCK, GAP = 16, 2  # slices of a block, and of them at either end those that are left out
LEAST_BRAIN = 0.05  # share of a slice that is tissue
_TURN = ("train", "train", "test", "train", "val")  # of blocks, from the lowest up


@TASKS.register(
    "mni_tissue",
    description="axial slices of the MNI brain template with grey and white matter at each pixel",
    source="V. Fonov et al., Unbiased average age-appropriate atlases for pediatric studies,"
    " NeuroImage 54 (2011) 313-327 (ICBM 152, 2009a), by package nilearn",
    licence="MNI: free use with notice; package BSD-3-Clause",
    kind="real",
    size="63 / 12 / 24",
    data=(FILE,),
)
def mni_tissue(*, seed: int = 0, step: int = 2, shifts: Names | None = None) -> Task:
    """Return slices (1, H, W) with masks of three classes: neither, grey matter, white matter.

    Args:
        seed: of shifts that draw; the division does not depend on it.
        step: of every axis of a slice each step-th voxel is taken: 2 gives 117 x 99 pixels.
        shifts: names of shifts of the test set; None for four of them, "all", () for none.
    """
    if not isinstance(step, int) or isinstance(step, bool) or not 1 <= step <= 8:
        raise ValueError(f"`step` of mni_tissue must be an integer from 1 to 8, got {step!r}")
    require(FILE)
    volumes = load(FILE)
    sets = divided(*(volumes[name][:, ::step, ::step] for name in ("t1", "grey", "white")))
    return map_task(
        "mni_tissue",
        sets,
        "categorical",
        ood={"pasted": partial(_pasted, sets["test"])},
        shifts=shifts,
        seed=seed,
        target_size=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
        description="tissue of the MNI template, slices divided in blocks",
    )


def divided(t1: np.ndarray, grey: np.ndarray, white: np.ndarray) -> dict[str, Maps]:
    """Return the sets of slices from volumes (z, y, x) of bytes, probabilities times 255."""
    tissue = np.stack([np.full_like(grey, 127), grey, white])
    labels = torch.from_numpy(tissue.argmax(0))
    images = torch.from_numpy(np.ascontiguousarray(t1)).unsqueeze(1)
    rows: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    brain = (labels > 0).flatten(1).float().mean(1) >= LEAST_BRAIN
    first = int(brain.nonzero()[0])
    for number in range(first, len(labels)):
        block, place = divmod(number - first, BLOCK)
        if brain[number] and GAP <= place < BLOCK - GAP:
            rows[_TURN[block % len(_TURN)]].append(number)
    return {key: Maps(images[some].contiguous(), labels[some]) for key, some in rows.items()}


def _pasted(test: Maps) -> Maps:
    return pasted(test, len(CLASS_NAMES), generator(0, "mni_tissue", "pasted"))
