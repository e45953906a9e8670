"""Steps of variational methods against a step of plain training with Adam."""

from __future__ import annotations

from typing import Any

from polymode.likelihoods.kinds import Categorical
from polymode.methods import METHODS
from polymode.methods.method import Problem
from polymode.stack.stack import Stack
from polymode.training.data import Arrays
from polymode.training.loop import Batch

from ..cases import Case, data
from . import Job


def _steps(case: Case, name: str, **options: Any) -> Job:
    x, y = data(case)
    method = METHODS.get(name).value
    config = method.config(epochs=10**6, batch_size=case.batch_size, **options)
    problem = Problem(Categorical(), len(x), case.num_classes, case.num_steps, Arrays(x, y))
    state = method.init(config, problem, Stack(case.members()))
    state.stack.train()

    def run() -> None:
        nonlocal state
        for inputs, labels in case.batches(x, y):
            state, _ = method.step(config, problem, state, Batch(inputs, labels))

    return Job(run, case.num_steps)


def plain(case: Case) -> Job:
    return _steps(case, "map")


def ivon(case: Case) -> Job:
    return _steps(case, "ivon")


def local(case: Case) -> Job:
    return _steps(case, "vi", estimator="local")


def flipout(case: Case) -> Job:
    return _steps(case, "vi", estimator="flipout")


def weights(case: Case) -> Job:
    return _steps(case, "vi", estimator="weights")
