"""A projection and its adjoint by the ASTRA toolbox on the CPU; data stay where it wants them."""

from __future__ import annotations

import math

import numpy as np

from ..cases import Case
from . import Job


def line(case: Case) -> Job:
    """Chord lengths, as the matrix has them."""
    return _job(case, "line")


def linear(case: Case) -> Job:
    """Linear interpolation along rows or columns, after Joseph."""
    return _job(case, "linear")


def _job(case: Case, kernel: str) -> Job:
    import astra

    side, cells = case.input_shape[-1], math.ceil(case.input_shape[-1] * math.sqrt(2)) | 1
    volume = astra.create_vol_geom(side, side)
    angles = np.arange(case.num_modes) * math.pi / case.num_modes
    scan = astra.create_proj_geom("parallel", 1.0, cells, angles)
    projector = astra.create_projector(kernel, scan, volume)
    image = astra.data2d.create("-vol", volume, np.random.default_rng(0).random((side, side)))
    back, sinogram = (
        astra.data2d.create("-vol", volume),
        astra.data2d.create("-sino", scan),
    )
    forward = {**astra.astra_dict("FP"), "VolumeDataId": image, "ProjectionDataId": sinogram}
    adjoint = {**astra.astra_dict("BP"), "ReconstructionDataId": back, "ProjectionDataId": sinogram}
    runs = [
        astra.algorithm.create({**each, "ProjectorId": projector}) for each in (forward, adjoint)
    ]

    def run() -> float:
        for _ in range(case.epochs):
            for each in runs:
                astra.algorithm.run(each)
        number, values = astra.create_sino(np.ones((side, side)), projector)
        astra.data2d.delete(number)
        return float(np.linalg.norm(values))

    return Job(run, case.num_steps)
