"""How long it will take, and what is seen meanwhile: on a terminal, in a log, or not at all."""

from __future__ import annotations

import io

import pytest

from polymode.cli import estimate, progress
from polymode.cli.estimate import Pace, about, makespan, recorded_pace
from polymode.cli.plan import Cell
from polymode.cli.progress import Lines, Watch
from polymode.core.events import Event


def cells(*setups: str) -> list[Cell]:
    return [Cell("map", {}, n, f"key{n}", setup) for n, setup in enumerate(setups)]


def event(step: int, total: int = 100, elapsed: float = 0.0, kind: str = "progress") -> Event:
    return Event(kind, "map", step, total, 0, 0.5, elapsed, float("nan"))


def test_recorded_times_go_before_probed_ones():
    lines = [{"kind": "done", "setup": "a", "seconds": s} for s in (2.0, 4.0)]
    pace = recorded_pace([*lines, {"kind": "done", "setup": "b"}, {"kind": "run", "seconds": 9}])
    pace.probed.update(a=100.0, b=7.0)
    assert (pace.of("a"), pace.of("b"), pace.of("c")) == (3.0, 7.0, None)
    assert pace.total(cells("a", "a", "b")) == 13.0
    assert pace.total(cells("a", "c")) is None


def test_the_estimate_says_what_it_rests_on():
    pace = Pace(recorded={"a": [100.0, 140.0]}, probed={"b": 60.0})
    assert pace.text([]) == "nothing to run"
    assert pace.text(cells("c")) == "no estimate before the first cell"
    assert pace.text(cells("a")) == "about 2 min (from 2 finished cells)"
    assert pace.text(cells("b", "b")) == (
        "about 2 min of training (first steps of 1 method timed; scoring comes on top)"
    )
    assert pace.text(cells("a", "b"), jobs=2) == (
        "about 2 min of training (first steps of 1 method timed; scoring comes on top;"
        " 2 finished cells)"
    )


def test_makespan_is_that_of_workers_who_take_the_next_cell():
    assert makespan([], 3) == 0
    assert makespan([5.0, 1.0, 1.0, 1.0], 2) == 5.0


def test_the_speed_is_that_after_the_first_step():
    """Which takes long: ten seconds here, and 0.1 s each for the 90 steps after it."""
    watch = estimate._Stopwatch()
    watch(event(0, kind="start"))
    watch(event(10, elapsed=10.0))
    watch(event(12, elapsed=10.2))
    assert watch.seconds is None
    with pytest.raises(estimate._Enough):
        watch(event(20, elapsed=11.0))
    assert watch.seconds == pytest.approx(10.0)
    watch = estimate._Stopwatch()
    with pytest.raises(estimate._Enough):
        watch(event(100, elapsed=0.05, kind="end"))
    assert watch.seconds == pytest.approx(0.05)


def test_what_remains_counts_cells_that_run_and_cells_to_come():
    pace = Pace(probed={"a": 10.0})
    watch = Watch(pace)
    first, second, third = cells("a", "a", "a")
    watch.open([first, second, third], done=0)
    assert watch.remaining() == 30.0
    watch.begin(first)
    assert watch.remaining() == pytest.approx(30.0, abs=1.0)
    watch.event(first, event(10, elapsed=5.0))
    watch.event(first, event(60, elapsed=6.0))  # 50 steps a second, 40 to go
    assert watch.remaining() == pytest.approx(20.8)
    watch.end(first, "")
    pace.note("a", 4.0)
    assert watch.remaining() == 8.0
    unknown = Watch(Pace())
    unknown.open([first], done=0)
    assert unknown.remaining() is None


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


def test_durations_are_as_rough_as_they_are_known():
    assert [about(s) for s in (0.0, 59.4, 59.6, 3569, 3571)] == [
        "1 s", "59 s", "1 min", "59 min", "1.0 h",
    ]  # fmt: skip
    assert about(float("nan")) == "unknown time"


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
    words = "run --task two_moons --method map --seeds 0,1 --set epochs=400 --set net.hidden=[8]"
    words += f" --set task.num_test=50 --out {tmp_path}"
    assert command(*([] if coloured else ["--no-color"]), *words.split()) == 0
    seen = terminal.getvalue()
    assert command.out.rstrip().endswith("report.html")
    assert "map, seed 1" in seen and "0 of 2" in seen and " %  loss " in seen
    assert ("\x1b[9" in seen or "\x1b[3" in seen) == coloured
    assert "[2/2] map, seed 1: " in seen
