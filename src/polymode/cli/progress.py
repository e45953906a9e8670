"""What is seen of a run while it runs: bars on a terminal, lines in a log, or nothing.

A log gets one line a finished cell, and of a long cell one line a tenth or a minute.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from polymode.cli.estimate import Pace, about
from polymode.cli.plan import Cell
from polymode.core.events import Event

SHORTEST, LONGEST = 10.0, 60.0  # seconds between two lines about one cell


@dataclass
class _Running:
    """A cell that runs: its setup and last event, and when a line was told of it."""

    setup: str
    started: float
    first: Event | None = None  # of progress; the step before it is slow and tells nothing
    event: Event | None = None
    told: float = 0.0
    tenth: int = 0

    def take(self, event: Event) -> None:
        self.event = event
        if event.kind == "progress" and self.first is None:
            self.first = event

    def training_left(self) -> float | None:
        """Return the seconds of training to come at the present rate; None while unknown."""
        if self.first is None or self.event is None or self.event.step == self.first.step:
            return None
        taken = self.event.elapsed - self.first.elapsed
        steps = self.event.step - self.first.step
        return taken / steps * (self.event.total - self.event.step)


class Watch:
    """Shows nothing, and keeps the time: cells in work, cells to come, what remains."""

    def __init__(self, pace: Pace, jobs: int = 1) -> None:
        self.pace, self.jobs = pace, jobs
        self.count = self.finished = 0
        self.queue: list[Cell] = []
        self.running: dict[str, _Running] = {}

    def open(self, todo: Sequence[Cell], done: int) -> None:
        """Begin, with cells to run and a number of those that are done already."""
        self.queue, self.finished, self.count = list(todo), done, done + len(todo)

    def begin(self, cell: Cell) -> None:
        self.queue = [each for each in self.queue if each.key != cell.key]
        now = time.monotonic()
        self.running[cell.key] = _Running(cell.setup, now, told=now)

    def event(self, cell: Cell, event: Event) -> None:
        self.running[cell.key].take(event)

    def end(self, cell: Cell, text: str) -> None:
        """A cell has ended, well or not; `text` says how."""
        self.finished += 1
        del self.running[cell.key]

    def say(self, text: str) -> None:
        """Show a line to the user."""

    def close(self) -> None:
        """Leave the terminal as it was."""

    def elapsed(self, cell: Cell) -> float:
        """Return the seconds since the cell began, in this run."""
        return time.monotonic() - self.running[cell.key].started

    def remaining(self) -> float | None:
        """Return the seconds to the end of all cells; None while they cannot be told."""
        to_come = self.pace.total(self.queue, self.jobs)
        here = [self._rest(cell) for cell in self.running.values()]
        if to_come is None or any(rest is None for rest in here):
            return None
        known = [rest for rest in here if rest is not None]
        return max([*known, (sum(known) / self.jobs if known else 0.0) + to_come])

    def _rest(self, running: _Running) -> float | None:
        left = running.training_left()
        if left is not None:
            return left
        expected = self.pace.of(running.setup)
        return None if expected is None else max(0.0, expected + running.started - time.monotonic())


class Lines(Watch):
    """Lines on stderr, for logs."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def event(self, cell: Cell, event: Event) -> None:
        super().event(cell, event)
        running, now = self.running[cell.key], time.monotonic()
        if event.kind == "resume":
            self.say(f"{cell.name}: resumed at step {event.step:,} of {event.total:,}")
        tenth = 10 * event.step // max(event.total, 1)
        silence = now - running.told
        if silence < SHORTEST or (tenth == running.tenth and silence < LONGEST):
            return
        running.told, running.tenth = now, tenth
        share = 100 * event.step // max(event.total, 1)
        self.say(f"{cell.name}: {share} % of training, loss {event.loss:.4g}{self._to_go(running)}")

    def end(self, cell: Cell, text: str) -> None:
        super().end(cell, text)
        left = self.remaining() if self.queue or self.running else None
        tail = f"; about {about(left)} to go" if left is not None and left >= 1 else ""
        self.say(f"[{self.finished}/{self.count}] {text}{tail}")

    def _to_go(self, running: _Running) -> str:
        here, left = running.training_left(), self.remaining()
        parts = [] if here is None else [f"{about(here)} to go"]
        if left is not None and self.queue:
            parts.append(f"all cells {about(left)}")
        return f"; {', '.join(parts)}" if parts else ""


class Bars(Watch):
    """Live bars on a terminal: one for all cells, one for each that runs."""

    def __init__(self, pace: Pace, jobs: int = 1) -> None:
        super().__init__(pace, jobs)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bars: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=5,
        )
        self._ids: dict[str, Any] = {}
        self._all: Any = None

    def open(self, todo: Sequence[Cell], done: int) -> None:
        super().open(todo, done)
        self._all = self._bars.add_task("cells", total=self.count, completed=done, note="")
        self._refresh()
        if todo:
            self._bars.start()

    def begin(self, cell: Cell) -> None:
        super().begin(cell)
        self._ids[cell.key] = self._bars.add_task(cell.name, total=None, note="starting")

    def event(self, cell: Cell, event: Event) -> None:
        super().event(cell, event)
        note = "scoring"
        if event.kind != "end":
            share = 100 * event.step // max(event.total, 1)
            loss = "" if math.isnan(event.loss) else f"  loss {event.loss:.4g}"
            left = self.running[cell.key].training_left()
            rest = "" if left is None else f"  {about(left)} to go"
            note = f"{share:3d} %{loss}{rest}"
        self._bars.update(
            self._ids[cell.key], completed=event.step, total=max(event.total, 1), note=note
        )
        self._refresh()

    def end(self, cell: Cell, text: str) -> None:
        super().end(cell, text)
        self._bars.remove_task(self._ids.pop(cell.key))
        self._refresh()
        self.say(f"[{self.finished}/{self.count}] {text}")

    def say(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._bars.stop()

    def _refresh(self) -> None:
        left = self.remaining()
        note = f"{self.finished} of {self.count}"
        note += f"  about {about(left)} to go" if left is not None and left >= 1 else ""
        self._bars.update(self._all, completed=self.finished, note=note)


def watcher(quiet: bool) -> Callable[[Pace, int], Watch]:
    """Return what shows progress here."""
    if quiet:
        return Watch
    return Bars if sys.stderr.isatty() else Lines
