"""Small results with kept predictions, for figures."""

from __future__ import annotations

import pytest

import polymode as pm
from polymode.metrics import compare, evaluate


@pytest.fixture(scope="session")
def digits_results():
    task = pm.task("digits")
    options = {"epochs": 2, "progress": "silent", "net": pm.nets.mlp, "task": task}
    return [
        evaluate(pm.fit(name, seed=seed, **options, **more), task)
        for seed in (0, 1)
        for name, more in (("map", {}), ("deep_ensemble", {"num_modes": 2}))
    ]


@pytest.fixture(scope="session")
def digits_board(digits_results):
    return compare(digits_results)


@pytest.fixture(scope="session")
def gap_results():
    task = pm.task("gap_regression")
    options = {"epochs": 5, "progress": "silent", "net": pm.nets.mlp, "task": task}
    return evaluate(pm.fit("deep_ensemble", num_modes=3, **options), task)
