r"""X-ray projection as an exact sparse operator: parallel and fan beam.

.. math:: (A x)_i = \sum_j l_{ij} x_j

l_ij is the length of ray i in pixel j, an exact chord (`rays`). A and its transpose are kept as
sparse matrices, so that the adjoint is exact: at 128 x 128 pixels, 60 angles and 183 detector cells
they have 1.3 million lengths, 10 MB each in float32.

Limits: memory grows as angles x cells x side; a matrix-free projector pays from about 1000² pixels
on. A ray has no width unless `rays_per_detector` gives a cell several.

Shapes: `N` images at once, `K` angles, `D` detector cells, `m` = K D observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import Many, check_call
from polymode.core.memory import require_free
from polymode.tomography.geometry import Geometry, make_geometry
from polymode.tomography.operator import LinearOperator
from polymode.tomography.rays import chord_matrix

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
