r"""How long each ray is inside each pixel: exact chord lengths, all rays at once.

A ray p + t d (t real, |d| = 1) crosses the lines between columns at t = (x_i - p_x) / d_x and those
between rows at t = (y_j - p_y) / d_y. Sorted, these places cut the ray into pieces that each lie in
one pixel; the length of a piece is the difference of its two places, and its middle tells the
pixel.

Reference: R. L. Siddon, "Fast calculation of the exact radiological path for a three-dimensional CT
array", Medical Physics 12(2), 1985.

Pixels have side 1, the image is centred at the origin, x grows to the right and y upwards, and row
0 is at the top. A ray that runs exactly along a line between two pixels counts half in each.

Shapes: `R` rays, `H`, `W` height and width of the image in pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_AT_ONCE = 2**22  # places along rays that are sorted at a time
_SIDESTEP = 1e-7  # in pixels; how far a ray along an edge steps to either side
_TINY = 1e-12


def chord_matrix(points: Array, directions: Array, image_shape: tuple[int, int]) -> Any:
    """Return the lengths of rays in pixels as a sparse CSR matrix (R, H W).

    Args:
        points: (R, 2), x and y of a point of each ray.
        directions: (R, 2), not 0; their length does not matter.
        image_shape: (H, W).
    """
    from scipy import sparse

    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    ray, points, directions, weight = _beside_edges(points, directions, image_shape)
    height, width = image_shape
    step = max(1, _AT_ONCE // (height + width + 2))
    parts = [
        _pieces(points[k : k + step], directions[k : k + step], image_shape)
        for k in range(0, len(points), step)
    ]
    row = np.concatenate([part[0] + k * step for k, part in enumerate(parts)])
    pixel = np.concatenate([part[1] for part in parts])
    length = np.concatenate([part[2] for part in parts]) * weight[row]
    num_rays = int(ray[-1]) + 1 if len(ray) else 0
    matrix = sparse.coo_matrix((length, (ray[row], pixel)), shape=(num_rays, height * width))
    return matrix.tocsr()  # sums the two halves where both are in one pixel


def _pieces(
    points: Array, directions: Array, image_shape: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Return ray, pixel and length of every piece of the rays that lies in the image."""
    height, width = image_shape
    half = np.array([width / 2, height / 2])
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = (np.stack([-half, half])[:, None] - points) / directions  # (2, R, axis)
    level = np.abs(directions) < _TINY
    inside = np.abs(points) < half
    enter = np.where(level, np.where(inside, -np.inf, np.inf), ends.min(0)).max(1)
    leave = np.where(level, np.where(inside, np.inf, -np.inf), ends.max(0)).min(1)
    hit = np.flatnonzero(leave - enter > _TINY)
    points, directions, level = points[hit], directions[hit], level[hit]
    first, last = enter[hit, None], leave[hit, None]
    places = [first, last]
    for axis, count in enumerate((width, height)):
        lines = np.arange(1, count) - count / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            crossed = (lines - points[:, axis, None]) / directions[:, axis, None]
        crossed = np.where(level[:, axis, None], first, crossed)
        places.append(np.clip(crossed, first, last))
    sorted_places = np.sort(np.concatenate(places, axis=1), axis=1)
    lengths = np.diff(sorted_places, axis=1)
    row, piece = np.nonzero(lengths > _TINY)
    length = lengths[row, piece]
    middle = sorted_places[row, piece] + length / 2
    column = np.floor(points[row, 0] + middle * directions[row, 0] + width / 2).astype(np.int64)
    line = np.floor(height / 2 - points[row, 1] - middle * directions[row, 1]).astype(np.int64)
    pixel = np.clip(line, 0, height - 1) * width + np.clip(column, 0, width - 1)
    return hit[row], pixel, length


def _beside_edges(
    points: Array, directions: Array, image_shape: tuple[int, int]
) -> tuple[NDArray[np.int64], Array, Array, Array]:
    """Replace each ray along an edge of pixels by two, one on either side, of weight 1/2 each.

    Returns number of the ray, points, directions and weight, by rising number.
    """
    height, width = image_shape
    ray = np.arange(len(points))
    along = np.zeros(len(points), dtype=bool)
    for axis, count in enumerate((width, height)):
        offset = points[:, axis] + count / 2
        on_line = np.abs(offset - np.round(offset)) < _SIDESTEP / 10
        along |= (np.abs(directions[:, axis]) < _TINY) & on_line
    aside = np.stack([-directions[:, 1], directions[:, 0]], axis=1) * _SIDESTEP
    order = np.argsort(np.concatenate([ray, ray[along]]), kind="stable")
    moved = np.where(along[:, None], points + aside, points)
    both = np.concatenate([moved, points[along] - aside[along]])[order]
    weight = np.where(along, 0.5, 1.0)
    return (
        np.concatenate([ray, ray[along]])[order],
        both,
        np.concatenate([directions, directions[along]])[order],
        np.concatenate([weight, weight[along]])[order],
    )
