r"""X-ray projection as an exact sparse operator: parallel and fan beam.

.. math:: (A x)_i = \sum_j l_{ij} x_j

l_ij is the length of ray i in pixel j. A and its transpose are kept as sparse matrices, so that the
adjoint is exact: at 128 x 128 pixels, 60 angles and 183 detector cells they have 1.3 million
lengths, 10 MB each in float32.

Rays. At angle φ the rays of a parallel beam have direction (sin φ, -cos φ), and the detector lies
along (cos φ, sin φ). The source of a fan is at D (sin φ, -cos φ), and its flat detector, at
distance E on the other side, lies along (cos φ, sin φ). These are the conventions of the ASTRA
toolbox, so scans can be exchanged with it. Lengths are in pixels of side 1; the image is centred at
the origin, x grows to the right and y upwards, and row 0 is at the top.

Lengths. A ray p + t d (t real, |d| = 1) crosses the lines between columns at t = (x_i - p_x) / d_x
and those between rows at t = (y_j - p_y) / d_y. Sorted, these places cut the ray into pieces that
each lie in one pixel; the length of a piece is the difference of its two places, and its middle
tells the pixel. A ray along a line between two pixels counts half in each.

Reference: R. L. Siddon, "Fast calculation of the exact radiological path for a three-dimensional CT
array", Medical Physics 12(2), 1985.
Limits: memory grows as angles x cells x side; a matrix-free projector pays from about 1000² pixels
on. A ray has no width unless `rays_per_detector` gives a cell several.

Shapes: `N` images at once, `H`, `W` height and width, `K` angles, `D` detector cells, `R` rays,
angle by angle, `m` = K D observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polymode.core.checks import Many, check_call, shown
from polymode.core.memory import require_free
from polymode.tomography.operator import LinearOperator

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
    all_points = np.concatenate([moved, points[along] - aside[along]])[order]
    weight = np.where(along, 0.5, 1.0)
    return (
        np.concatenate([ray, ray[along]])[order],
        all_points,
        np.concatenate([directions, directions[along]])[order],
        np.concatenate([weight, weight[along]])[order],
    )


@dataclass(frozen=True)
class Geometry:
    """A scan of square images.

    Attributes:
        side: pixels of a side of the image. angles: in radians, (K,).
        num_detectors: cells of the detector, D. spacing: from one cell to the next.
        source_distance, detector_distance: of a fan, from the centre; None for a parallel beam.
    """

    side: int
    angles: tuple[float, ...]
    num_detectors: int
    spacing: float = 1.0
    source_distance: float | None = None
    detector_distance: float = 0.0

    @property
    def num_angles(self) -> int:
        return len(self.angles)

    @property
    def sinogram_shape(self) -> tuple[int, int]:
        """(K, D)."""
        return len(self.angles), self.num_detectors

    @property
    def kind(self) -> str:
        return "parallel beam" if self.source_distance is None else "fan beam"

    def cells(self) -> Array:
        """Return the middles of the detector's cells along it, (D,)."""
        number = np.arange(self.num_detectors, dtype=np.float64)
        return (number - (self.num_detectors - 1) / 2) * self.spacing

    def rays(self, rays_per_detector: int = 1) -> tuple[Array, Array]:
        """Return points and directions of all rays, (K D rays_per_detector, 2) each.

        Several rays of a cell are spread evenly over it and stand next to each other.
        """
        within = (np.arange(rays_per_detector) + 0.5) / rays_per_detector - 0.5
        along = (self.cells()[:, None] + within * self.spacing).reshape(-1)
        angles = np.asarray(self.angles)
        to_detector = np.stack([np.sin(angles), -np.cos(angles)], axis=1)[:, None]  # (K, 1, 2)
        detector = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, None] * along[:, None]
        if self.source_distance is None:
            points, directions = detector, np.broadcast_to(to_detector, detector.shape)
        else:
            points = np.broadcast_to(to_detector * self.source_distance, detector.shape)
            directions = detector - to_detector * self.detector_distance - points
        return points.reshape(-1, 2), directions.reshape(-1, 2)

    def finer(self, times: int) -> Geometry:
        """Return the same scan of the same object in `times` as many pixels a side; lengths are
        then `times` as many of the smaller pixels."""
        return Geometry(
            self.side * times,
            self.angles,
            self.num_detectors,
            self.spacing * times,
            None if self.source_distance is None else self.source_distance * times,
            self.detector_distance * times,
        )


def make_geometry(
    side: int,
    angles: int | Sequence[float] | Tensor,
    num_detectors: int | None,
    spacing: float | None,
    source_distance: float | None = None,
    detector_distance: float = 0.0,
) -> Geometry:
    """Return the geometry; refuses what cannot be one."""
    fan = source_distance is not None
    what = "fan_beam" if fan else "parallel_beam"
    if isinstance(side, bool) or not isinstance(side, int) or side < 2:
        raise ValueError(
            f"`side` of {what} must be an integer of at least 2, got {shown(side)}; images must be"
            " square: pad the shorter side with zeros"
        )
    half_diagonal, magnified = side / math.sqrt(2), 1.0
    if source_distance is not None:
        if not (math.isfinite(source_distance) and source_distance > half_diagonal):
            raise ValueError(
                f"`source_distance` of fan_beam must be > {half_diagonal:.1f} pixels, half the"
                f" image's diagonal, so that the source is outside, got {source_distance}"
            )
        if not (math.isfinite(detector_distance) and detector_distance >= 0):
            raise ValueError(
                f"`detector_distance` of fan_beam must be >= 0 pixels, got {detector_distance}"
            )
        distance = source_distance + detector_distance
        widest = half_diagonal / math.sqrt(source_distance**2 - half_diagonal**2) * distance
        magnified = widest / half_diagonal
    if spacing is None:
        spacing = magnified
    elif not (math.isfinite(spacing) and spacing > 0):
        raise ValueError(f"`spacing` of {what} must be > 0 pixels, got {spacing}")
    if num_detectors is None:
        num_detectors = math.ceil(2 * half_diagonal * magnified / spacing - 1e-9) | 1
    elif isinstance(num_detectors, bool) or not isinstance(num_detectors, int) or num_detectors < 1:
        raise ValueError(
            f"`num_detectors` of {what} must be an integer of at least 1, got {num_detectors!r}"
        )
    return Geometry(
        side, _angles(angles, what, 2 * math.pi if fan else math.pi), num_detectors,
        float(spacing), source_distance, float(detector_distance),
    )  # fmt: skip


def _angles(angles: int | Sequence[float] | Tensor, what: str, turn: float) -> tuple[float, ...]:
    if isinstance(angles, int) and not isinstance(angles, bool):
        if angles < 1:
            raise ValueError(
                f"`angles` of {what} must be at least 1, got {angles}: no ray, no data"
            )
        return tuple(turn * k / angles for k in range(angles))
    values = np.asarray(angles, dtype=np.float64).reshape(-1)
    if len(values) == 0:
        raise ValueError(
            f"`angles` of {what} must have at least 1 angle, got 0; give a number of angles, e.g."
            " angles=30, or the angles themselves in radians"
        )
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise ValueError(f"`angles` of {what} must be finite, got {bad} that are not")
    if np.abs(values).max() > 4 * math.pi:
        raise ValueError(
            f"`angles` of {what} must be in radians, got {np.abs(values).max():g}, more than two"
            " turns; degrees become radians by numpy.deg2rad"
        )
    return tuple(float(value) for value in values)


_BYTES = 2 * (8 + 4) + 2 * (4 + 4)  # of a length: A and its transpose in float64 and in float32


@dataclass(frozen=True, eq=False, repr=False)
class Projector(LinearOperator):
    """The operator of a scan; `geometry` says where its rays run."""

    geometry: Geometry = field(kw_only=True)

    def sinogram(self, observations: Tensor) -> Tensor:
        """Return observations (..., m) by angle and detector cell, (..., K, D)."""
        self.check_observations(observations)
        return observations.unflatten(-1, self.geometry.sinogram_shape)

    def observations(self, sinogram: Any) -> Tensor:
        """Return a sinogram (..., K, D), numpy or torch, as observations (..., m); checks it."""
        sinogram = torch.as_tensor(sinogram)
        if not sinogram.is_floating_point():
            sinogram = sinogram.to(torch.get_default_dtype())
        K, D = self.geometry.sinogram_shape
        if sinogram.dim() < 2 or tuple(sinogram.shape[-2:]) != (K, D):
            raise ValueError(
                f"a sinogram of this {self.name} must have shape (..., {K} angles, {D} detector"
                f" cells), got {tuple(sinogram.shape)}; make the projector with the `angles` and"
                " `num_detectors` of the scan, or transpose the sinogram"
            )
        check_finite(sinogram)
        return sinogram.flatten(-2)


def parallel_beam(
    side: int,
    angles: Many | Sequence[float] | Tensor,
    *,
    num_detectors: int | None = None,
    spacing: float | None = None,
    rays_per_detector: int = 1,
) -> Projector:
    """Return the projector of a parallel beam onto a flat detector.

    Args:
        side: pixels of a side of the image, which must be square.
        angles: how many, spread evenly over half a turn; or the angles in radians.
        num_detectors: cells of the detector; by default an odd number that sees the whole image.
        spacing: from one cell to the next, in pixels; by default 1.
        rays_per_detector: rays whose mean is what a cell measures.

    >>> parallel_beam(28, angles=20).shape
    (820, 784)
    """
    check_call(parallel_beam, locals(), but=("side",))
    return projector_of(make_geometry(side, angles, num_detectors, spacing), rays_per_detector)


def fan_beam(
    side: int,
    angles: Many | Sequence[float] | Tensor,
    *,
    source_distance: float,
    detector_distance: float = 0.0,
    num_detectors: int | None = None,
    spacing: float | None = None,
    rays_per_detector: int = 1,
) -> Projector:
    """Return the projector of a fan from a point onto a flat detector.

    Args:
        side: pixels of a side of the image, which must be square.
        angles: how many, spread evenly over a whole turn; or the angles in radians.
        source_distance: from the source to the centre of the image, in pixels.
        detector_distance: from the centre to the detector; 0 is a detector through the centre.
        num_detectors: cells of the detector; by default an odd number that sees the whole image.
        spacing: from one cell to the next, in pixels; by default as much as one pixel is magnified.
        rays_per_detector: rays whose mean is what a cell measures.
    """
    check_call(fan_beam, locals(), but=("side",))
    geometry = make_geometry(
        side, angles, num_detectors, spacing, source_distance, detector_distance
    )
    return projector_of(geometry, rays_per_detector)


def projector_of(geometry: Geometry, rays_per_detector: int = 1) -> Projector:
    """Return the projector of a geometry."""
    if isinstance(rays_per_detector, bool) or not isinstance(rays_per_detector, int):
        raise ValueError(f"`rays_per_detector` must be an integer, got {rays_per_detector!r}")
    if rays_per_detector < 1:
        raise ValueError(f"`rays_per_detector` must be at least 1, got {rays_per_detector}")
    side, (K, D) = geometry.side, geometry.sinogram_shape
    require_free(
        2 * side * K * D * rays_per_detector * _BYTES,
        f"the lengths of {K * D * rays_per_detector:,} rays in {side} × {side} pixels",
        "Take fewer angles or detector cells, or a smaller image",
    )
    points, directions = geometry.rays(rays_per_detector)
    matrix = chord_matrix(points, directions, (side, side))
    if rays_per_detector > 1:
        matrix = _mean_of_rays(K * D, rays_per_detector) @ matrix
    plain = LinearOperator.from_matrix(matrix, (side, side))
    return Projector(
        plain.image_shape, plain.num_observations, plain.apply_rows, plain.adjoint_rows,
        f"{geometry.kind} projector", geometry=geometry,
    )  # fmt: skip


def _mean_of_rays(num_cells: int, rays: int) -> Any:
    from scipy import sparse

    return sparse.kron(sparse.eye(num_cells), np.full((1, rays), 1 / rays)).tocsr()


def check_finite(observations: Tensor) -> None:
    """Refuse observations that are not finite."""
    bad = int((~torch.isfinite(observations)).sum())
    if bad:
        raise ValueError(
            f"observations must be finite, got {bad} of {observations.numel()} values that are"
            " not; a dead detector cell can be left out by an operator that does not see it"
            " (LinearOperator.from_matrix with its row removed)"
        )
