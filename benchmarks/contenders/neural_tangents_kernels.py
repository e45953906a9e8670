"""neural-tangents 0.6.5 on jax 0.5.3: the same kernels in float32, its default, on one core."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before jax counts cores
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax  # noqa: E402
import neural_tangents  # noqa: E402, F401
import torch  # noqa: E402
from neural_tangents import stax  # noqa: E402

from ..cases import Case  # noqa: E402
from . import Job  # noqa: E402
from .imports import _fresh  # noqa: E402

STD, BIAS = 2**0.5, 0.1


def _kernel(case: Case) -> Callable[..., Any]:
    last = stax.Dense(1, W_std=1.0, b_std=None)
    if len(case.input_shape) == 1:
        layers = [f for _ in range(3) for f in (stax.Dense(1, W_std=STD, b_std=BIAS), stax.Relu())]
        found = stax.serial(*layers, last)[2]
    else:
        conv = (stax.Conv(1, (3, 3), padding="SAME", W_std=STD, b_std=BIAS), stax.Relu())
        pool = stax.AvgPool((2, 2), (2, 2))
        ends = (stax.Flatten(),) if case.option == "flatten" else (stax.GlobalAvgPool(),)
        between = () if case.option == "flatten" else (pool,)
        found = stax.serial(*conv, *conv, *between, *conv, *between, *conv, *ends, last)[2]
    return jax.jit(found, static_argnames="get")


def _inputs(case: Case) -> list[Any]:
    stream = torch.Generator().manual_seed(0)
    both = torch.randn((2, case.num_examples, *case.input_shape), generator=stream)
    both = both.movedim(2, -1) if len(case.input_shape) == 3 else both
    return [jax.numpy.asarray(each.numpy()) for each in both]


def _value(found: Any) -> float:
    return float(found.ntk.block_until_ready().mean())


def warm(case: Case) -> Job:
    """Compiled before the first round."""
    kernel, (x, y) = _kernel(case), _inputs(case)
    return _repeated(case, lambda: _value(kernel(x, y, ("nngp", "ntk"))))


def _repeated(case: Case, call: Callable[[], float]) -> Job:
    """Compile, then as many calls in a round as polymode has."""
    call()
    number = 20 if len(case.input_shape) == 1 else 3
    return Job(lambda: [call() for _ in range(number)][0], 1, scale=1 / number)


def warm_double(case: Case) -> Job:
    """The same in float64."""
    jax.config.update("jax_enable_x64", True)
    kernel, (x, y) = _kernel(case), [each.astype("float64") for each in _inputs(case)]
    return _repeated(case, lambda: _value(kernel(x, y, ("nngp", "ntk"))))


def cold(case: Case) -> Job:
    """The first call of a process, compilation included; imports are not."""
    x, y = _inputs(case)

    def run() -> float:
        jax.clear_caches()
        return _value(_kernel(case)(x, y, ("nngp", "ntk")))

    return Job(run, 1)


_ALONE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import jax
import numpy as np
from neural_tangents import stax
hidden = [f for _ in range(3) for f in (stax.Dense(1, W_std=2**0.5, b_std=0.1), stax.Relu())]
kernel = jax.jit(stax.serial(*hidden, stax.Dense(1))[2], static_argnames="get")
x, y = np.random.default_rng(0).normal(size=(2, 1000, 784)).astype("float32")
kernel(x, y, ("nngp", "ntk")).ntk.block_until_ready()
"""


def fresh(case: Case) -> Job:
    """A process that imports neural-tangents, not torch, and computes one kernel."""
    return _fresh(_ALONE)
