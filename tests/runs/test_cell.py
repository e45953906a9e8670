"""What a cell keeps of its predictions."""

from __future__ import annotations

import pytest
import torch

import polymode as pm
from polymode.runs import cell


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
