"""What a cell keeps of its predictions."""

from __future__ import annotations

import pytest
import torch

import polymode as pm
from polymode.cli.arguments import parse_settings
from polymode.runs import cell
from polymode.runs.part import Request
from polymode.runs.run_plan import make_plan


@pytest.fixture
def fitted():
    x, y = torch.randn(30, 2), torch.arange(30) % 2
    task = pm.Task(
        train=(x, y), test=(x, y), likelihood="categorical", shifts={"s": {1: (x, y), 2: (x, y)}}
    )
    return pm.fit("map", net=pm.nets.mlp, task=task, epochs=0, progress="silent"), task


def test_predictions_under_shifts_are_kept_up_to_a_size(fitted, monkeypatch):
    post, task = fitted
    size = 2 * 30 * 1 * 2 * 4  # sets × inputs × networks × classes × bytes
    monkeypatch.setattr(cell, "SHIFT_BYTES", size)
    assert cell._kept(post, task) is True
    monkeypatch.setattr(cell, "SHIFT_BYTES", size - 1)
    results = pm.evaluate(post, task, keep=cell._kept(post, task))
    assert sorted(results.kept) == ["examples", "plane", "test", "train"]
    assert {row.dataset for row in results.rows} == {"test", "shift:s:1", "shift:s:2"}


def test_a_cell_is_fitted_with_the_options_of_fit(tmp_path):
    settings = tuple(parse_settings(["fit.trainable=head", "epochs=1"]))
    plan = make_plan(Request("two_moons", ("map",), (0,), settings))
    (first,) = plan.cells()
    results = cell._results(plan.recipe, plan.task, first, tmp_path, lambda event: None)
    assert results.cost.parameters == 2 * (64 + 1)  # of the last layer of an mlp
