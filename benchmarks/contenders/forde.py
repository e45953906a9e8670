"""The cost of repulsion: training by `forde` against a deep ensemble of the same networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cases import Case, data
from . import Job
from .polymode_stack import pm

from polymode.core.memory import keep_freed_memory  # isort: skip
from polymode.methods.particles.lengthscales import IDENTITY, Lengthscales  # isort: skip
from polymode.methods.particles.repulsion import repulsion  # isort: skip


def _training(case: Case, method: str, **options: Any) -> Job:
    task = pm.Task(train=data(case), likelihood="categorical")

    def run() -> Callable[[Tensor], Tensor]:
        return pm.fit(
            method, net=case.make_net, task=task, num_modes=case.num_modes, epochs=case.epochs,
            batch_size=case.batch_size, lr=case.lr, prior_precision=0.0, progress="silent",
            holdout=0,
            **options,
        ).stack  # fmt: skip

    return Job(run, case.num_steps)


def deep_ensemble(case: Case) -> Job:
    """Without repulsion, on batches that members share, as with it."""
    return _training(case, "deep_ensemble", data_order="shared")


def forde(case: Case) -> Job:
    """Repulsion in every step, on the whole batch, identity lengthscales."""
    return _training(case, "forde")


def every_4(case: Case) -> Job:
    """Repulsion in every fourth step."""
    return _training(case, "forde", every=4)


def quarter(case: Case) -> Job:
    """Repulsion on a quarter of the batch."""
    return _training(case, "forde", fraction=0.25)


def every_8(case: Case) -> Job:
    """Repulsion in every eighth step."""
    return _training(case, "forde", every=8)


def eighth(case: Case) -> Job:
    """Repulsion on an eighth of the batch."""
    return _training(case, "forde", fraction=0.125)


def two_kept(case: Case) -> Job:
    """The graphs of two members at a time; the others' are made twice."""
    return _training(case, "forde", chunk_size=2)


def one_kept(case: Case) -> Job:
    """The graph of one member at a time."""
    return _training(case, "forde", chunk_size=1)


def _components(case: Case) -> dict[str, Any]:
    """64 principal components of the inputs, or all if there are fewer; found within the round."""
    return {"lengthscales": "pca", "num_components": min(64, math.prod(case.input_shape))}


def truncated_pca(case: Case) -> Job:
    """Lengthscales from 64 components."""
    return _training(case, "forde", **_components(case))


def among_components(case: Case) -> Job:
    """The same, with directions among the components."""
    return _training(case, "forde", directions="components", **_components(case))


def among_components_every_4(case: Case) -> Job:
    """The same, in every fourth step."""
    return _training(case, "forde", directions="components", every=4, **_components(case))


def kernel(case: Case) -> Job:
    """What the members do together in a step, on given input gradients: the M² part."""
    return _kernel(case, math.prod(case.input_shape), IDENTITY)


def kernel_among_components(case: Case) -> Job:
    """The same among 64 components."""
    number = min(64, math.prod(case.input_shape))
    return _kernel(case, number, Lengthscales(torch.linspace(1, 0.1, number), 1.0))


def _kernel(case: Case, size: int, lengthscales: Lengthscales) -> Job:
    shape = case.num_modes, case.batch_size, size
    gradients = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    keep_freed_memory()  # as a fit does

    def run() -> None:
        for _ in range(case.num_steps):
            repulsion(gradients, lengthscales=lengthscales)

    return Job(run, case.num_steps)
