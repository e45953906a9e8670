"""How long it will take: from finished cells, from first steps, and of those that run."""

from __future__ import annotations

import pytest

from polymode.runs import estimate
from polymode.runs.clock import Watch
from polymode.runs.estimate import Pace, about, makespan, recorded_pace
from polymode.runs.run_plan import Cell
from polymode.training.events import Event


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
    watch = estimate._Stopwatch()
    watch(event(100, elapsed=0.2))  # told for the first time at the last step
    with pytest.raises(estimate._Enough):
        watch(event(100, elapsed=0.2, kind="end"))
    assert watch.seconds == pytest.approx(0.2)


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


def test_durations_are_as_rough_as_they_are_known():
    assert [about(s) for s in (0.0, 59.4, 59.6, 3569, 3571)] == [
        "1 s", "59 s", "1 min", "59 min", "1.0 h",
    ]  # fmt: skip
    assert about(float("nan")) == "unknown time"
