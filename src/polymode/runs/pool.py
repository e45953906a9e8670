"""Cells in several processes: each works on one cell at a time; only the parent writes results.

Processes are started afresh (`spawn`), so nothing of the parent's state gets into them: task and
network are built from their names. A process that dies takes its one cell with it, which counts as
failed; another process takes its place. Ctrl-C reaches only the parent, which passes it on once:
training stops at a checkpoint, as in a single process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from polymode.core.warn import warn
from polymode.runs.cell import Failed, Finished, failure, run_cell
from polymode.runs.run_plan import Cell, Recipe
from polymode.training.events import Event

PATIENCE = 20.0  # seconds that interrupted workers have to write their checkpoints

Tell = Callable[[Cell, "Event | Finished | Failed | None"], None]
"""Called with a cell and what is new of it; None when it starts."""


class _Warned(NamedTuple):
    """A warning of a worker, on its way to the parent."""

    text: str


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


def run_cells(
    recipe: Recipe,
    cells: Sequence[Cell],
    checkpoint: Callable[[str], Path],
    tell: Tell,
    *,
    jobs: int,
    threads: int,
) -> None:
    """Run the cells in `jobs` processes with `threads` torch threads each; `tell` runs here.

    Raises `KeyboardInterrupt` once the workers have stopped.
    """
    todo = list(cells)
    busy: dict[_Worker, Cell] = {}
    idle: list[_Worker] = []
    try:
        while todo or busy:
            while todo and len(busy) < jobs:
                worker = idle.pop() if idle else _start(recipe, threads)
                cell = todo.pop(0)
                busy[worker] = cell
                tell(cell, None)
                _send(worker, (cell, checkpoint(cell.key)))
            idle += _listen(busy, tell)
    except KeyboardInterrupt:
        _interrupt(busy, tell)
        raise
    finally:
        for worker in [*busy, *idle]:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()


def _listen(busy: dict[_Worker, Cell], tell: Tell, timeout: float | None = None) -> list[_Worker]:
    """Pass on what workers say, and return those that are free; the dead are taken off."""
    sources = {source: w for w in busy for source in (w.pipe, w.process.sentinel)}
    free = []
    for worker in {sources[ready] for ready in wait(list(sources), timeout)}:  # type: ignore[index]
        try:
            news = worker.pipe.recv() if worker.pipe.poll() else None
        except (EOFError, OSError):
            news = None
        if news is None:  # nothing to read, so the process has ended
            worker.process.join()
            worker.pipe.close()
            news = _death(worker.process)
        elif isinstance(news, _Warned):
            warn(news.text)
            continue
        elif not isinstance(news, Event):
            free.append(worker)
        cell = busy[worker] if isinstance(news, Event) else busy.pop(worker)
        tell(cell, news)
    return free


def _death(process: BaseProcess) -> Failed:
    code = process.exitcode or 0
    if code < 0:
        how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        how += "; a lack of memory is the usual cause" if code == -9 else ""
    else:
        how = f"ended with exit code {code}"
    return Failed(f"WorkerDied: the process {process.pid} of this cell {how}", "")


def _interrupt(busy: dict[_Worker, Cell], tell: Tell) -> None:
    """Ask the workers to stop, and take what they still finish; a second Ctrl-C ends them."""

    def hear(cell: Cell, news: Any) -> None:
        if not isinstance(news, Failed):
            tell(cell, news)

    for worker in busy:
        if worker.process.pid is not None and os.name == "posix":
            os.kill(worker.process.pid, signal.SIGINT)
        else:
            worker.process.terminate()
    until = time.monotonic() + PATIENCE
    while busy and time.monotonic() < until:
        for worker in _listen(busy, hear, until - time.monotonic()):
            worker.process.kill()
            worker.process.join()


def _send(worker: _Worker, job: Any) -> None:
    try:
        worker.pipe.send(job)
    except OSError:  # it died between two cells; listening will tell
        pass


def _start(recipe: Recipe, threads: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    pipe, worker_pipe = context.Pipe()
    process = context.Process(target=_work, args=(worker_pipe, recipe, threads), daemon=True)
    resource_tracker.ensure_running()  # its start, with the first process, would unblock interrupts
    with _environment(threads), _interrupts_blocked():
        process.start()
    worker_pipe.close()
    return _Worker(process, pipe)


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Let libraries other than torch know their share of the cores, too."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process that is born here does not see Ctrl-C before it is ready for it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, recipe: Recipe, threads: int) -> None:
    """Live as a worker: cells in, events and outcomes out, until the parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if os.name == "posix":
        os.setpgid(0, 0)  # Ctrl-C of the terminal goes only to the parent
    signal.signal(signal.SIGINT, _leave)  # outside training, where there is nothing to keep
    try:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _serve(pipe, recipe, threads)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        os._exit(130)


def _leave(number: int, frame: Any) -> None:
    """End at once: an exception may surface in the midst of an import, and print a traceback."""
    os._exit(130)


def _serve(pipe: Connection, recipe: Recipe, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    warnings.showwarning = lambda message, *where, **further: pipe.send(_Warned(str(message)))
    task = recipe.task()
    while True:
        cell, checkpoint = pipe.recv()
        try:
            outcome: Finished | Failed = run_cell(recipe, task, cell, checkpoint, pipe.send)
        except Exception as error:
            outcome = failure(error)
        pipe.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
