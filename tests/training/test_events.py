"""What is told of work after training: how much is done, to a log and to a terminal."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from polymode.training import events
from polymode.training.data import as_data
from polymode.training.events import (
    Bar,
    Event,
    Lines,
    Reporter,
    Told,
    Work,
    progress_observer,
    work_on,
)


def test_work_of_unknown_length_is_never_done_before_its_end(monkeypatch) -> None:
    monkeypatch.setattr(Reporter, "due", lambda self: True)
    told: list[Event] = []
    work = Work("search", 5, (told.append,))
    for _ in range(12):
        work.step()
        assert told[-1].step < told[-1].total
    work.end()
    assert [e.total for e in told[:4]] == [5, 5, 5, 5]
    assert (told[-1].kind, told[-1].step, told[-1].total, told[-1].eta) == ("finish", 12, 12, 0.0)


def test_only_told_data_tell(monkeypatch) -> None:
    monkeypatch.setattr(Reporter, "due", lambda self: True)
    data, told = as_data((torch.zeros(6, 1), torch.zeros(6, 1))), []
    work_on(data, "search", 5).step()
    wrapped = Told(data, "laplace", (told.append,))
    work_on(wrapped, "search", 5).step()
    assert len(list(wrapped.batches(2))) == 3
    assert [e.what for e in told] == ["laplace: search"] + 3 * ["laplace: passes over the data"]


def test_a_log_has_a_line_of_long_work_after_training(monkeypatch, capsys) -> None:
    """At most one in ten seconds, none of short passes, and none about a loss."""
    now = 0.0
    monkeypatch.setattr(events.time, "perf_counter", lambda: now)
    observers = (Lines(),)
    for seconds in (4.0, 40.0):
        work = Work("search", 10, observers)
        for _ in range(8):
            now += seconds / 8
            work.step()
        work.end()
    assert capsys.readouterr().err.splitlines() == [
        "search: 2 of 10, 10.0 s so far, 40.0 s to go",
        "search: 4 of 10, 20.0 s so far, 30.0 s to go",
        "search: 6 of 10, 30.0 s so far, 20.0 s to go",
        "search: 8 of 10, 40.0 s so far, 10.0 s to go",
    ]


@pytest.mark.parametrize("loss", [0.25, float("nan")])
def test_a_bar_has_a_loss_where_there_is_one(loss, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the captured stream for a terminal
    bar = progress_observer("bar")
    assert bar is not None
    bar(Event("progress", "search", 3, 4, 0, loss, 3.0, 1.0))
    bar(Event("finish", "search", 4, 4, 0, loss, 4.0, 0.0))
    shown = capsys.readouterr().err
    assert ("loss 0.25" in shown) == (loss == loss)
    assert "nan" not in shown


@pytest.mark.parametrize(("elapsed", "quiet"), [(1.9, True), (2.1, False)])
def test_a_bar_is_quiet_under_two_seconds(elapsed, quiet, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    bar = progress_observer("bar")
    assert bar is not None
    for kind, step, seconds in (("start", 0, 0.0), ("progress", 3, elapsed), ("end", 4, elapsed)):
        bar(Event(kind, "search", step, 4, 0, 0.25, seconds, 0.0))
    assert (capsys.readouterr().err == "") == quiet


def test_notebooks_have_a_bar_though_they_are_no_terminal(monkeypatch) -> None:
    def shell(**attributes: object) -> types.SimpleNamespace:
        inside = types.SimpleNamespace(**attributes)
        return types.SimpleNamespace(get_ipython=lambda: inside)

    assert isinstance(progress_observer("auto"), Lines)
    monkeypatch.setitem(sys.modules, "IPython", shell())
    assert isinstance(progress_observer("auto"), Lines)  # IPython in a pipe
    monkeypatch.setitem(sys.modules, "IPython", shell(kernel=object()))
    assert isinstance(progress_observer("auto"), Bar)
