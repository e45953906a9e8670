"""polymode's infinite-width kernels: what a user calls, for two different sets of inputs."""

from __future__ import annotations

import torch

from polymode.equivariance.kernels import (
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    ReLU,
    Serial,
)

from ..cases import Case
from . import Job
from .imports import _fresh

STD, BIAS = 2**0.5, 0.1


def times(case: Case) -> int:
    """How often a round computes the kernels: CPU time is counted in hundredths of a second."""
    return 20 if len(case.input_shape) == 1 else 3


def kernel_of(case: Case) -> Serial:
    if len(case.input_shape) == 1:
        return Serial(*[layer for _ in range(3) for layer in (Dense(STD, BIAS), ReLU())], Dense())
    step = (Conv(3, STD, BIAS), ReLU())
    if case.option == "flatten":
        return Serial(*step, *step, *step, *step, Flatten(), Dense())
    pooled = (*step, *step, AvgPool(2), *step, AvgPool(2), *step, GlobalAvgPool(), Dense())
    return Serial(*pooled)


def inputs_of(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    shape = (2, case.num_examples, *case.input_shape)
    first, second = torch.randn(shape, generator=stream)
    return first, second


def _job(case: Case, dtype: torch.dtype) -> Job:
    kernel, (x, y) = kernel_of(case), inputs_of(case)

    def run() -> float:
        for _ in range(times(case)):
            found = kernel(x, y, dtype=dtype)
        return float(found.ntk.mean())

    return Job(run, 1, scale=1 / times(case))


def double(case: Case) -> Job:
    """float64, the default."""
    return _job(case, torch.float64)


def single(case: Case) -> Job:
    return _job(case, torch.float32)


def fresh(case: Case) -> Job:
    """A process that imports polymode and computes one kernel."""
    return _fresh(
        "import torch; torch.set_num_threads(1); from benchmarks.cases import CASES;"
        " from benchmarks.contenders.kernels import kernel_of, inputs_of;"
        f" case = CASES['{case.name}']; kernel_of(case)(*inputs_of(case))"
    )
