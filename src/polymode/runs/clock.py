"""The clock of a run: what is done, what is running and how long the remaining cells take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from polymode.runs.estimate import Pace
from polymode.runs.run_plan import Cell
from polymode.training.events import Event


@dataclass
class Running:
    """A cell that runs: its setup, its first and last event of progress, and its last log line.

    Attributes:
        started, last_line: seconds of the monotonic clock.
        first: the step before it is slow and tells nothing. tenth: of the training, at that line.
    """

    setup: str
    started: float
    first: Event | None = None
    event: Event | None = None
    last_line: float = 0.0
    tenth: int = 0

    def take(self, event: Event) -> None:
        if event.kind == "finish":  # a pass of its own, after the training
            return
        self.event = event
        if event.kind == "progress" and self.first is None:
            self.first = event

    def training_left(self) -> float | None:
        """Return the seconds of training to come at the present rate; None while unknown."""
        if self.first is None or self.event is None or self.event.step == self.first.step:
            return None
        seconds = self.event.elapsed - self.first.elapsed
        steps = self.event.step - self.first.step
        return seconds / steps * (self.event.total - self.event.step)


class Watch:
    """Keeps the time of a run without showing anything; displays inherit from it."""

    def __init__(self, pace: Pace, jobs: int = 1) -> None:
        self.pace, self.jobs = pace, jobs
        self.count = self.finished = 0
        self.queue: list[Cell] = []
        self.running: dict[str, Running] = {}

    def open(self, todo: Sequence[Cell], done: int) -> None:
        """Begin, with cells to run and a number of those that are done already."""
        self.queue, self.finished, self.count = list(todo), done, done + len(todo)

    def begin(self, cell: Cell) -> None:
        self.queue = [queued for queued in self.queue if queued.key != cell.key]
        now = time.monotonic()
        self.running[cell.key] = Running(cell.setup, now, last_line=now)

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
        in_work = [self._left(cell) for cell in self.running.values()]
        left = [seconds for seconds in in_work if seconds is not None]
        if to_come is None or len(left) < len(in_work):
            return None
        return max([*left, (sum(left) / self.jobs if left else 0.0) + to_come])

    def _left(self, running: Running) -> float | None:
        left = running.training_left()
        if left is not None:
            return left
        expected = self.pace.of(running.setup)
        return None if expected is None else max(0.0, expected + running.started - time.monotonic())
