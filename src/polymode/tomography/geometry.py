r"""Where the rays of a scan run: parallel and fan beams around a square image.

At angle φ the rays of a parallel beam have direction (sin φ, -cos φ), and the detector lies along
(cos φ, sin φ). The source of a fan is at D (sin φ, -cos φ), and its flat detector, at distance E on
the other side, lies along (cos φ, sin φ). These are the conventions of the ASTRA toolbox, so scans
can be exchanged with it. Lengths are in pixels; the image is centred at the origin.

Shapes: `K` angles, `D` detector cells, `R` = K D rays, angle by angle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from polymode.core.checks import shown
from polymode.tomography.rays import Array


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
        whole = source_distance + detector_distance
        widest = half_diagonal / math.sqrt(source_distance**2 - half_diagonal**2) * whole
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
