"""A projection and its adjoint by the sparse matrix of chord lengths; and building it."""

from __future__ import annotations

import torch

from ..cases import Case
from . import Job


def polymode(case: Case) -> Job:
    """One image, float32."""
    from polymode.tomography import parallel_beam

    side = case.input_shape[-1]
    A = parallel_beam(side, case.num_modes)
    image = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(0))

    def run() -> float:
        for _ in range(case.epochs):
            A.T(A(image))
        return float(A(torch.ones_like(image)).norm())

    return Job(run, case.num_steps)


def building(case: Case) -> Job:
    """The matrix, once; scaled as if it were built anew in every step."""
    from polymode.tomography import parallel_beam

    side = case.input_shape[-1]

    def run() -> float:
        A = parallel_beam(side, case.num_modes)
        return float(A(torch.ones(1, 1, side, side)).norm())

    return Job(run, case.num_steps, scale=float(case.epochs))
