"""What is seen of a run while it runs: bars on a terminal, lines in a log, or nothing.

A log gets one line a finished cell, and of a long cell one line a tenth or a minute.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from polymode.core.text import plain
from polymode.runs.clock import Running, Watch
from polymode.runs.estimate import Pace, about
from polymode.runs.run_plan import Cell
from polymode.training.events import Event

SHORTEST, LONGEST = 10.0, 60.0  # seconds between two lines about one cell


class Lines(Watch):
    """Lines on stderr, for logs."""

    def say(self, text: str) -> None:
        print(plain(text), file=sys.stderr, flush=True)

    def event(self, cell: Cell, event: Event) -> None:
        super().event(cell, event)
        running, now = self.running[cell.key], time.monotonic()
        if event.kind == "resume":
            self.say(f"{cell.name}: resumed at step {event.step:,} of {event.total:,}")
        tenth = 10 * event.step // max(event.total, 1)
        silence = now - running.last_line
        if silence < SHORTEST or (tenth == running.tenth and silence < LONGEST):
            return
        running.last_line, running.tenth = now, tenth
        share = 100 * event.step // max(event.total, 1)
        if event.kind == "finish":  # after training; its passes have no loss
            self.say(f"{cell.name}: {share} % of the passes after training")
            return
        loss = "" if math.isnan(event.loss) else f", loss {event.loss:.4g}"
        self.say(f"{cell.name}: {share} % of training{loss}{self._to_go(running)}")

    def end(self, cell: Cell, text: str) -> None:
        super().end(cell, text)
        left = self.remaining() if self.queue or self.running else None
        tail = f"; about {about(left)} to go" if left is not None and left >= 1 else ""
        self.say(f"[{self.finished}/{self.count}] {text}{tail}")

    def _to_go(self, running: Running) -> str:
        cell_left, left = running.training_left(), self.remaining()
        parts = [] if cell_left is None else [f"{about(cell_left)} to go"]
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
            to_go = "" if left is None else f"  {about(left)} to go"
            note = f"{share:3d} %{loss}{to_go}"
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
        self._bars.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)

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
