r"""`shapes`: segmentation whose class distribution is known at every pixel.

A pixel of a scene (`scenes`) shows class c with the share :math:`s_c`. Its label is drawn, by
itself, from

.. math:: \pi_y(p) = \sum_c s_c(p)\, T_{cy}

with the table T of label noise: labels of the ground and of discs are nearly clean, a fifth of the
squares' is wrong, and three tenths of the triangles' say square. So labels are ambiguous for two
known reasons, borders and classes, and :math:`\pi` and its entropy are known: `task.exact`.

They are those given the scene. An image shows it up to noise of its pixels and bytes, so a network
can come close to them, and not quite reach them. `N` images, `C` classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from polymode.core.checks import Count, Range
from polymode.core.rng import generator
from polymode.tasks.dense.build import Maps, map_task, pasted
from polymode.tasks.dense.scenes import Kind, Scenes, draw_scenes
from polymode.tasks.images.build import Names
from polymode.tasks.images.pixels import to_bytes
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task

Side = Annotated[int, Range("from 8 to 1,024", lambda number: 8 <= number <= 1024)]
KINDS = (
    Kind("disc", "disc", (0.85, 0.25, 0.25), 0.4),
    Kind("square", "square", (0.25, 0.75, 0.30), 1.0),
    Kind("triangle", "triangle", (0.25, 0.35, 0.90), 2.0),
)
STAR = Kind("star", "star", (0.90, 0.85, 0.20), 0.4)  # in no training image
CLASS_NAMES = ("ground", *(kind.name for kind in KINDS))
UNSEEN = len(CLASS_NAMES)  # label of pixels that show no class of the task
LABEL_NOISE = (
    (0.97, 0.01, 0.01, 0.01),
    (0.01, 0.97, 0.01, 0.01),
    (0.02, 0.02, 0.80, 0.16),
    (0.02, 0.02, 0.30, 0.66),
)


@dataclass(frozen=True)
class KnownLabels:
    """What labels are drawn from.

    Attributes:
        probs: (N, H, W, C) by the name of a set, "train", "val" or "test".
    """

    probs: Mapping[str, Tensor]

    def entropy(self, name: str = "test") -> Tensor:
        """Return the entropy of each pixel's label in nats, (N, H, W)."""
        return torch.special.entr(self.probs[name]).sum(-1)


@toy_task(
    "shapes",
    description="overlapping discs, squares and triangles to segment, with soft borders and label"
    " noise whose distribution is known at each pixel; OOD: stars, pasted patches, noise",
    size="200 / 50 / 100",
)
def shapes(
    *,
    seed: int = 0,
    num_train: Count = 200,
    num_val: Count = 50,
    num_test: Count = 100,
    side: Side = 32,
    shifts: Names | None = None,
) -> Task:
    """Return images (3, side, side) with masks of four classes: ground, disc, square, triangle.

    `task.exact` is a `KnownLabels`: the distribution that each label was drawn from, and its
    entropy. OOD sets have 100 images: `stars`, scenes with a star on top (near); `pasted`, test
    images with a patch of noise in them; `noise`, nothing else. Label 4 marks what is unseen.

    Args:
        side: of the images, in pixels.
        shifts: names of shifts of the test set; None for four of them, "all", () for none.
    """
    sizes = {"train": num_train, "val": num_val, "test": num_test}
    scenes = {
        key: draw_scenes(KINDS, number, side, generator(seed, "shapes", key))
        for key, number in sizes.items()
    }
    probs = {key: _probs(some) for key, some in scenes.items()}
    sets = {
        key: Maps(to_bytes(some.images), _drawn(probs[key], seed, key))
        for key, some in scenes.items()
    }
    return map_task(
        "shapes",
        sets,
        "categorical",
        ood={
            "stars": partial(_stars, seed, side),
            "pasted": partial(_pasted, seed, sets["test"]),
            "noise": partial(_noise, seed, side),
        },
        near_ood=("stars",),
        shifts=shifts,
        seed=seed,
        target_size=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
        exact=KnownLabels(probs),
        description="overlapping shapes with soft borders and known label noise",
    )


def _probs(scenes: Scenes) -> Tensor:
    """Return what labels are drawn from, (N, H, W, C)."""
    return torch.einsum(
        "nchw,cy->nhwy", scenes.of_kinds(len(KINDS)), torch.tensor(LABEL_NOISE)
    ).clamp(0, 1)


def _drawn(probs: Tensor, seed: int, key: str) -> Tensor:
    """Return labels (N, H, W)."""
    draws = torch.rand(probs.shape[:-1], generator=generator(seed, "shapes", "labels", key))
    return (draws.unsqueeze(-1) >= probs.cumsum(-1)[..., :-1]).sum(-1)


def _pasted(seed: int, test: Maps) -> Maps:
    images = Maps(*(part[:100] for part in test))
    return pasted(images, UNSEEN, generator(seed, "shapes", "pasted"))


def _stars(seed: int, side: int) -> Maps:
    stream = generator(seed, "shapes", "stars")
    scenes = draw_scenes((*KINDS, STAR), 100, side, stream, always=len(KINDS))
    shares = scenes.of_kinds(len(KINDS) + 1)
    star = shares[:, -1] > 0.5
    clean = shares[:, :-1].argmax(1)
    return Maps(to_bytes(scenes.images), clean.masked_fill(star, UNSEEN))


def _noise(seed: int, side: int) -> Maps:
    stream = generator(seed, "shapes", "noise")
    pixels = torch.randint(256, (100, 3, side, side), generator=stream, dtype=torch.uint8)
    return Maps(pixels, torch.full((100, side, side), UNSEEN))
