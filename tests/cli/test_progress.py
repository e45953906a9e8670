"""What is seen of a run meanwhile: on a terminal, in a log, or not at all."""

from __future__ import annotations

import io

import pytest

from polymode.cli import progress
from polymode.cli.progress import Lines
from polymode.runs.estimate import Pace
from polymode.runs.run_plan import Cell
from polymode.training.events import Event


def cells(*setups: str) -> list[Cell]:
    return [Cell("map", {}, n, f"key{n}", setup) for n, setup in enumerate(setups)]


def event(step: int, total: int = 100, elapsed: float = 0.0, kind: str = "progress") -> Event:
    return Event(kind, "map", step, total, 0, 0.5, elapsed, float("nan"))


def test_a_log_gets_a_line_a_tenth_or_a_minute_and_none_of_a_short_cell(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines = Lines(Pace())
    (cell,) = cells("a")
    lines.open([cell], done=0)
    lines.begin(cell)
    for step in range(100):  # a short cell: nine seconds
        now = 0.09 * step
        lines.event(cell, event(step, elapsed=now))
    assert capsys.readouterr().err == ""
    told = []
    for step in range(1000):  # 1000 s: a tenth takes longer than a minute
        now = 9.0 + step
        lines.event(cell, event(step, 1000, elapsed=now))
        told += [now] if capsys.readouterr().err else []
    gaps = [b - a for a, b in zip(told, told[1:], strict=False)]
    assert max(gaps) <= 61 and min(gaps) >= 10
    assert 16 <= len(told) <= 26
    lines.event(cell, event(500, 1000, elapsed=500.0, kind="resume"))
    assert "resumed at step 500 of 1,000" in capsys.readouterr().err
    lines.end(cell, "map, seed 0: fine")
    assert capsys.readouterr().err == "[1/1] map, seed 0: fine\n"


def test_a_log_has_no_loss_where_there_is_none(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines = Lines(Pace())
    (cell,) = cells("a")
    lines.open([cell], done=0)
    lines.begin(cell)
    for number, kind in enumerate(("start", "finish", "progress"), 1):
        now = 100.0 * number
        known = 0.5 if kind == "progress" else float("nan")
        lines.event(cell, Event(kind, "map", 20 * number, 100, 0, known, now, float("nan")))
    assert capsys.readouterr().err.splitlines() == [
        "map, seed 0: 20 % of training",
        "map, seed 0: 40 % of the passes after training",
        "map, seed 0: 60 % of training, loss 0.5",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize("coloured", [True, False])
@pytest.mark.cpu_seconds(6)
def test_a_terminal_gets_bars_for_all_cells_and_for_the_one_that_runs(
    tmp_path, monkeypatch, command, coloured
):
    """In colour, unless --no-color (or NO_COLOR, which it sets) says otherwise."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "")  # the value before, also of what --no-color sets
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    words = "run --task two_moons --method map --seeds 0,1 --set epochs=2000 --set net.hidden=[8]"
    words += f" --set task.num_test=50 --out {tmp_path}"
    assert command(*([] if coloured else ["--no-color"]), *words.split()) == 0
    seen = terminal.getvalue()
    assert command.out.rstrip().endswith("report.html")
    assert "map, seed 1" in seen and "0 of 2" in seen and " %  loss " in seen
    assert ("\x1b[9" in seen or "\x1b[3" in seen) == coloured
    assert "[2/2] map, seed 1: " in seen
