r"""`shapes_depth`: depth of scenes, with noise of a known size at every pixel.

Shape k of a scene (`scenes`) is at the distance :math:`z_k`, nearer if it was painted later, and
the ground at :math:`z_0`; fog makes what is far away paler. A pixel that shows v with the share
:math:`s_v` has the mean depth and the target

.. math:: m = \sum_v s_v z_v, \qquad y \sim N(m, (0.012\, m^2 + 0.5\, e)^2),\quad
          e = 1 - \max_v s_v,

so that the noise grows with the square of the distance, as that of stereo cameras does, and at soft
borders. Mean
and noise are known at each pixel: `task.exact`. The depth can be seen only through the fog.

`N` images, `V` what shows: the ground, then the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from polymode.core.checks import Count
from polymode.core.rng import generator
from polymode.likelihoods.kinds import HeteroscedasticGaussian
from polymode.tasks.dense.build import Maps, map_task, pasted
from polymode.tasks.dense.scenes import Kind, Scenes, draw_scenes
from polymode.tasks.dense.shapes import KINDS, STAR, Side
from polymode.tasks.images.build import Names
from polymode.tasks.images.pixels import to_bytes
from polymode.tasks.named import toy_task
from polymode.tasks.task import Task

FAR, NEAR = 10.0, 2.0  # metres
FOG = 0.2  # per metre
_NOISE_OF_DEPTH, _NOISE_OF_BORDER = 0.012, 0.5


@dataclass(frozen=True)
class KnownDepths:
    """What targets are drawn from.

    Attributes:
        mean, noise: (N, H, W, 1) in metres by the name of a set, "train", "val" or "test": mean and
            standard deviation of the normal distribution of each target.
    """

    mean: Mapping[str, Tensor]
    noise: Mapping[str, Tensor]


@toy_task(
    "shapes_depth",
    description="depth of overlapping discs, squares and triangles in fog, with noise of a known"
    " size at each pixel; OOD: stars, pasted patches, noise",
    size="200 / 50 / 100",
)
def shapes_depth(
    *,
    seed: int = 0,
    num_train: Count = 200,
    num_val: Count = 50,
    num_test: Count = 100,
    side: Side = 32,
    shifts: Names | None = None,
) -> Task:
    """Return images (3, side, side) with maps of depth in metres, 2 to 10.

    The likelihood is heteroscedastic: a network gives two maps, mean and raw scale. `task.exact` is
    a `KnownDepths`. OOD sets are those of `shapes`, without depths.

    Args:
        side: of the images, in pixels.
        shifts: names of shifts of the test set; None for four of them, "all", () for none.
    """
    sizes = {"train": num_train, "val": num_val, "test": num_test}
    mean, noise, sets = {}, {}, {}
    for key, number in sizes.items():
        stream = generator(seed, "shapes_depth", key)
        scenes = draw_scenes(KINDS, number, side, stream)
        images, mean[key], noise[key] = _in_fog(scenes, stream)
        draws = torch.randn(mean[key].shape, generator=stream)
        sets[key] = Maps(to_bytes(images), (mean[key] + noise[key] * draws).squeeze(-1))
    return map_task(
        "shapes_depth",
        sets,
        HeteroscedasticGaussian(),
        ood={
            "stars": partial(_stars, seed, side),
            "pasted": partial(_pasted, seed, sets["test"]),
            "noise": partial(_noise, seed, side),
        },
        near_ood=("stars",),
        shifts=shifts,
        seed=seed,
        target_unit="m",
        ignore_index=float("nan"),
        exact=KnownDepths(mean, noise),
        description="depth of overlapping shapes in fog, noise of a known size",
    )


def _in_fog(scenes: Scenes, stream: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return images (N, 3, H, W) in fog, mean depths and their noise (N, H, W, 1)."""
    number, layers = scenes.kinds.shape
    steps = torch.rand(number, layers, generator=stream) + 0.1
    distance = FAR - (FAR - NEAR) * steps.cumsum(1) / (1.1 * layers)
    mean = torch.einsum("nvhw,nv->nhw", scenes.shares, distance).unsqueeze(-1)
    edge = 1 - scenes.shares.amax(1).unsqueeze(-1)
    clear = torch.exp(-FOG * mean).movedim(-1, 1)
    images = scenes.images * clear + 0.9 * (1 - clear)
    return images, mean, _NOISE_OF_DEPTH * mean.square() + _NOISE_OF_BORDER * edge


def _pasted(seed: int, test: Maps) -> Maps:
    images = Maps(*(part[:100] for part in test))
    return pasted(images, float("nan"), generator(seed, "shapes_depth", "pasted"))


def _stars(seed: int, side: int) -> Maps:
    stream = generator(seed, "shapes_depth", "stars")
    kinds: tuple[Kind, ...] = (*KINDS, STAR)
    images, mean, _ = _in_fog(draw_scenes(kinds, 100, side, stream, always=len(KINDS)), stream)
    return Maps(to_bytes(images), mean.squeeze(-1))


def _noise(seed: int, side: int) -> Maps:
    stream = generator(seed, "shapes_depth", "noise")
    pixels = torch.randint(256, (100, 3, side, side), generator=stream, dtype=torch.uint8)
    return Maps(pixels, torch.full((100, side, side), float("nan")))
