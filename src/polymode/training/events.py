"""What a long run tells: events to observers. Algorithms know nothing of bars and logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from polymode.core.checks import Range
from polymode.core.text import plain
from polymode.training.data import Data, Pair


@dataclass(frozen=True)
class Event:
    """The state of a run at one moment.

    Attributes:
        kind: "start", "progress", "checkpoint", "resume" or "end" of training; "finish" for a pass
            over the data after it, or for many of them (`Work`).
        what: what is running, for people ("deep_ensemble, 10 modes").
        step: optimisation steps done, batches of a pass or passes; `total` of how many.
        epoch: passes over the data done.
        loss: mean over the members of the last training loss, nats per example; nan before the
            first step.
        elapsed: seconds since this run started (a resumed run starts anew).
        eta: seconds to go at the present rate; nan while unknown.
    """

    kind: str
    what: str
    step: int
    total: int
    epoch: int
    loss: float
    elapsed: float
    eta: float


Observer = Annotated[
    Callable[[Event], Any], Range("of an Event", lambda call: not isinstance(call, nn.Module))
]

_PATIENCE = 2.0  # seconds for which a bar shows nothing: most fits of a first look end before
_QUIET = 10.0  # seconds between two lines about what comes after training


def progress_observer(progress: str) -> Observer | None:
    """Return what shows progress: "auto", "bar", "lines" or "silent"."""
    choices = ("auto", "bar", "lines", "silent")
    if progress not in choices:
        raise ValueError(f"`progress` must be one of {', '.join(choices)}, got '{progress}'")
    if progress == "auto":
        progress = "bar" if sys.stderr.isatty() or _in_notebook() else "lines"
    if progress == "silent":
        return None
    return Bar() if progress == "bar" else Lines()


class Lines:
    """One line at every tenth of the run, on stderr: for logs. Of what comes after training, one
    line at most every ten seconds."""

    def __init__(self) -> None:
        self._tenth = 0
        self._told = 0.0  # when the last line about the present pass was written

    def __call__(self, event: Event) -> None:
        tenth = 10 * event.step // max(event.total, 1)
        if event.kind == "resume":
            self._tenth = tenth
            _say(f"{event.what}: resumed at step {event.step:,} of {event.total:,}")
        elif event.kind in ("progress", "end") and tenth > self._tenth:
            self._tenth = tenth
            _say(
                f"{event.what}: {100 * event.step // max(event.total, 1)} % (step {event.step:,} of"
                f" {event.total:,}), loss {event.loss:.4g}, {_clock(event.elapsed)} so far,"
                f" {_clock(event.eta)} to go"
            )
        elif event.kind == "finish":
            self._finish(event)

    def _finish(self, event: Event) -> None:
        if event.elapsed < self._told:  # another pass
            self._told = 0.0
        if event.elapsed - self._told < _QUIET:
            return
        self._told = event.elapsed
        _say(
            f"{event.what}: {event.step:,} of {event.total:,}, {_clock(event.elapsed)} so far,"
            f" {_clock(event.eta)} to go"
        )


class Bar:
    """A live bar on a terminal or in a notebook, of what takes longer than two seconds."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, event: Event) -> None:
        loss = "" if event.loss != event.loss else f"  loss {event.loss:.4g}"
        if self._bar is None and event.elapsed < _PATIENCE:
            return
        ended = event.kind == "end" or event.kind == "finish" and event.step == event.total
        if self._bar is None and ended:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %{task.fields[loss]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(event.what, total=event.total, loss=loss)
            self._bar.start()
        done = {"completed": event.step, "total": event.total, "description": event.what}
        self._bar.update(self._task, loss=loss, **done)
        if ended:
            self._bar.stop()
            self._bar = None


class Reporter:
    """Hands events of one run to its observers, at most ten a second besides the important ones."""

    def __init__(self, what: str, total: int, observers: tuple[Observer, ...]) -> None:
        self.what, self.total, self.observers = what, total, observers
        self.started = self._last = time.perf_counter()
        self.first_step = 0

    def due(self) -> bool:
        """Whether enough time has passed to tell of progress again."""
        return bool(self.observers) and time.perf_counter() - self._last > 0.1

    def tell(self, kind: str, step: int, epoch: int, loss: float) -> None:
        self._last = time.perf_counter()
        elapsed = self._last - self.started
        done = step - self.first_step
        eta = elapsed / done * (self.total - step) if done else float("nan")
        event = Event(kind, self.what, step, self.total, epoch, loss, elapsed, eta)
        for observer in self.observers:
            observer(event)


class Told:
    """Data whose passes in order are told to observers; for what comes after training."""

    def __init__(self, data: Data, what: str, observers: tuple[Observer, ...]) -> None:
        self._data, self._what, self._observers = data, what, observers

    def work(self, what: str, about: int) -> Work:
        """Return what tells of about so many steps with these data; see `work_on`."""
        return Work(f"{self._what}: {what}", about, self._observers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def __len__(self) -> int:
        return len(self._data)

    @property
    def untold(self) -> Data:
        """The data alone."""
        return self._data

    def batches(self, batch_size: int) -> Iterator[Pair]:
        """Yield (x, y) in order."""
        total = self._data.num_batches(batch_size)
        what = f"{self._what}: passes over the data"
        reporter = Reporter(what, total, self._observers)
        for number, pair in enumerate(self._data.batches(batch_size), 1):
            yield pair
            if reporter.due() or number == total:
                reporter.tell("finish", number, 0, float("nan"))


class Work:
    """Steps of which only a rough number is known, told as they are done.

    The total is that number, and a fifth more than the steps done once they come near it; at the
    end it is the number of steps there were.
    """

    def __init__(self, what: str, about: int, observers: tuple[Observer, ...] = ()) -> None:
        self._reporter = Reporter(what, about, observers)
        self._done = 0

    def step(self) -> None:
        """One more step is done."""
        self._done += 1
        self._reporter.total = max(self._reporter.total, -(-6 * self._done // 5))
        if self._reporter.due():
            self._reporter.tell("finish", self._done, 0, float("nan"))

    def end(self) -> None:
        """No more steps will come."""
        self._reporter.total = self._done
        self._reporter.tell("finish", self._done, 0, float("nan"))


def work_on(data: Any, what: str, about: int) -> Work:
    """Return what tells of about so many steps with data; to nobody unless these are `Told`."""
    return data.work(what, about) if isinstance(data, Told) else Work(what, about)


def _in_notebook() -> bool:
    """Whether cells of a notebook run here, whose output shows a bar and is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _say(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    """Return a duration for people.

    >>> _clock(75), _clock(0.31)
    ('1:15 min', '0.3 s')
    """
    if seconds != seconds:
        return "unknown time"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
