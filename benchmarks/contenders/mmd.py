"""MMD² of two samples of networks under twenty kernels: ours, and the way of the paper's code.

That code (a port of MMDAgg) divides the networks at random 4,001 times, multiplies each of the
twenty kernel matrices by three sets of 4,001 sign vectors, and keeps one column. Here it does two
of the twenty, and its time is scaled; its distances and divisions are not timed, ours are.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..cases import Case
from . import Job

DIVISIONS = 4001
DONE = 2  # of twenty kernel matrices


@lru_cache(maxsize=1)
def _samples(case: Case) -> tuple[Tensor, Tensor]:
    """Weights (m, D) of two samples of networks."""
    generator = torch.Generator().manual_seed(0)
    width = case.input_shape[0]
    x = torch.randn(case.num_modes, width, generator=generator)
    return x, 0.1 + torch.randn(case.num_modes, width, generator=generator)


def polymode(case: Case) -> Job:
    """All kernels, with a null of 200 divisions."""
    from polymode.symmetry.discrepancy import mmd

    x, y = _samples(case)
    return Job(lambda: float(mmd(x, y).unbiased[0, 4]), 1)


def polymode_alone(case: Case) -> Job:
    """All kernels, without a null."""
    from polymode.symmetry.discrepancy import mmd

    x, y = _samples(case)
    return Job(lambda: float(mmd(x, y, num_permutations=0).unbiased[0, 4]), 1)


def published(case: Case) -> Job:
    """Two kernels in the way of the paper's code."""
    x, y = _samples(case)
    m, n = len(x), len(y)
    pooled = torch.cat([x, y])
    cross = torch.cdist(x[:500], y[:500], p=1.0)
    lengths = torch.logspace(*torch.log10(torch.stack([cross.min() / 2, 2 * cross.max()])), 10)

    generator = torch.Generator().manual_seed(0)
    orders = torch.rand(DIVISIONS, m + n, generator=generator).argsort(1)
    orders[-1] = torch.arange(m + n)
    signs = torch.cat([torch.ones(m), -torch.ones(n)])
    first = torch.cat([torch.ones(m), torch.zeros(n)])
    v, v1 = signs[orders].T.contiguous(), first[orders].T.contiguous()
    v2 = v1 - v
    distances = torch.cdist(pooled, pooled, p=1.0)

    def run() -> float:
        for number in (3, 4):
            kernel = torch.exp(-distances / lengths[number]).fill_diagonal_(0.0)
            both, one, two = ((part * (kernel @ part)).sum(0) for part in (v, v1, v2))
            across = (one + two - both) / 2
            values = one / (m * (m - 1)) + two / (n * (n - 1)) - 2 * across / (m * n)
        return float(values[-1])

    return Job(run, 1, scale=20 / DONE)
