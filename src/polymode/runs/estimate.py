"""How long a run will take: from cells that are finished, else from the first steps of a fit.

An estimate says what it rests on. Recorded times are of whole cells; those of first steps
cover only training, since scoring cannot be timed without a posterior.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from polymode.methods import fit
from polymode.runs.run_plan import Cell, Recipe
from polymode.tasks import Task
from polymode.training.events import Event

PROBE = 0.4  # seconds of training, after the first step that is told


class _Enough(Exception):
    """Raised by the observer of a probe to end the fit."""


@dataclass
class Pace:
    """Seconds that a cell takes, by setup: recorded ones of whole cells, and probed ones."""

    recorded: dict[str, list[float]] = field(default_factory=dict)
    probed: dict[str, float] = field(default_factory=dict)

    def note(self, setup: str, seconds: float) -> None:
        """Add a finished cell."""
        self.recorded.setdefault(setup, []).append(seconds)

    def of(self, setup: str) -> float | None:
        """Return the mean over finished cells, else what the probe found, else None."""
        times = self.recorded.get(setup)
        return sum(times) / len(times) if times else self.probed.get(setup)

    def total(self, cells: Iterable[Cell], jobs: int = 1) -> float | None:
        """Return when the last of `jobs` workers would end; None while a setup is unknown."""
        times = [self.of(cell.setup) for cell in cells]
        finite = [seconds for seconds in times if seconds is not None]
        return makespan(finite, jobs) if len(finite) == len(times) else None

    def text(self, cells: Sequence[Cell], jobs: int = 1) -> str:
        """Return the estimate for people, with what it rests on."""
        seconds = self.total(cells, jobs)
        if not cells:
            return "nothing to run"
        if seconds is None:
            return "no estimate before the first cell"
        setups = {cell.setup for cell in cells}
        finished = sum(len(self.recorded.get(setup, ())) for setup in setups)
        probed = [setup for setup in setups if setup not in self.recorded]
        if not probed:
            return f"about {about(seconds)} (from {finished} finished cell{_s(finished)})"
        basis = f"first steps of {len(probed)} method{_s(len(probed))} timed; scoring comes on top"
        basis += f"; {finished} finished cell{_s(finished)}" if finished else ""
        return f"about {about(seconds)} of training ({basis})"


def recorded_pace(events: Iterable[dict[str, object]]) -> Pace:
    """Return the times of finished cells that a folder's events hold."""
    pace = Pace()
    for event in events:
        setup, seconds = event.get("setup"), event.get("seconds")
        if event.get("kind") == "done" and isinstance(seconds, (int, float)):
            pace.note(str(setup), float(seconds))
    return pace


def probe(pace: Pace, recipe: Recipe, task: Task, cells: Iterable[Cell]) -> None:
    """Time the first steps of each setup that has no time yet; nothing is kept of the fits."""
    for cell in {c.setup: c for c in cells if pace.of(c.setup) is None}.values():
        watch = _Stopwatch()
        try:
            fit(
                cell.method,
                net=recipe.of(cell).net,
                task=task,
                seed=cell.seed,
                device=recipe.device,
                progress="silent",
                on_event=watch,
                **cell.options,
            )
        except _Enough:
            pass
        except Exception:  # the cell itself will tell
            continue
        if watch.seconds is not None:
            pace.probed[cell.setup] = watch.seconds


class _Stopwatch:
    """Watches a fit until its speed is known: what the whole of it would take, in `seconds`.

    The clock starts at the first event, since the first step chooses how to run and is slow.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._first: Event | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "progress" and self._first is None:
            self._first = event
        elif event.kind in ("progress", "end"):
            before = self._first
            if before is not None and before.step == event.step:  # the first was the last
                before = None
            steps = event.step - (before.step if before else 0)
            seconds = event.elapsed - (before.elapsed if before else 0.0)
            if steps > 0 and (seconds > PROBE or event.kind == "end"):
                self.seconds = seconds / steps * event.total
                raise _Enough


def makespan(times: Sequence[float], jobs: int) -> float:
    """Return when the last worker ends if each takes the next cell as soon as it is free.

    >>> makespan([3.0, 2.0, 2.0], 1), makespan([3.0, 2.0, 2.0], 2)
    (7.0, 4.0)
    """
    ends = [0.0] * max(jobs, 1)
    for seconds in times:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def about(seconds: float) -> str:
    """Return a duration as an estimate deserves it.

    >>> about(0.3), about(42.3), about(200), about(9000), about(400_000)
    ('1 s', '42 s', '3 min', '2.5 h', '4.6 days')
    """
    if not math.isfinite(seconds):
        return "unknown time"
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 59.5 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
