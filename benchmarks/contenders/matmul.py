"""The machine's own limit: float32 1024x1024 matrix products with the threads everyone has."""

from __future__ import annotations

import torch

from ..cases import Case
from . import Job

SIZE = 1024
REPEATS = 40
FLOPS = 2.0 * SIZE**3 * REPEATS


def train(case: Case) -> Job:
    """A round is `REPEATS` products; the case does not matter."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    out = torch.empty(SIZE, SIZE)

    def run() -> None:
        for _ in range(REPEATS):
            torch.mm(a, b, out=out)

    return Job(run, REPEATS)
