"""A warning names the user's line, however deep in the library it is issued."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.warn import warn

X, Y = torch.randn(16, 2, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 2


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_direct_call_names_its_own_line() -> None:
    with pytest.warns(UserWarning, match="doubtful") as caught:
        number = line() + 1
        warn("doubtful")
    assert (caught[0].filename, caught[0].lineno) == (__file__, number)


@pytest.mark.parametrize("options", [{"epochs": 0}, {"epochs": 1, "lr": 1e3}])
def test_fit_names_the_line_that_called_it(options) -> None:
    """Of a warning before training, and of one after it."""
    task = pm.Task(train=(X, Y), likelihood="categorical")
    net = lambda: nn.Linear(2, 2)  # noqa: E731
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        number = line() + 1
        pm.fit("map", net=net, task=task, batch_size=1, progress="silent", **options)
    assert caught
    assert {(w.filename, w.lineno) for w in caught} == {(__file__, number)}
