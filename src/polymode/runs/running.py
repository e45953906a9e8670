"""A run: the missing cells; a failing one does not stop the rest.

Events and outcomes of cells, from this process or others, arrive in `_Book`, the only writer of the
folder and of the progress display.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from polymode.distributed import ranks
from polymode.distributed.ray import Cluster
from polymode.metrics import Leaderboard, compare
from polymode.metrics.results import Results, is_headline
from polymode.runs.cell import Failed, Finished, failure, run_cell
from polymode.runs.clock import Watch
from polymode.runs.environment import environment
from polymode.runs.estimate import Pace, probe, recorded_pace
from polymode.runs.fleet import run_on_cluster
from polymode.runs.pool import run_cells
from polymode.runs.run_folder import RunFolder, WriteProblem
from polymode.runs.run_plan import Cell, Plan
from polymode.stack.execution import limit_threads
from polymode.training.events import Event, Observer

Show = Callable[[Pace, int], Watch]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a run; the message says how many cells are done."""


class Outcome(NamedTuple):
    """How a run ended: cells in all, done before, failed now."""

    cells: int
    before: int
    failed: int


class Outlook(NamedTuple):
    """What a run is about to do."""

    cells: list[Cell]
    todo: list[Cell]
    pace: Pace
    jobs: int
    threads: int

    @property
    def apart(self) -> bool:
        """Whether cells run in processes of their own: several, or with other threads than here."""
        import torch

        return self.jobs > 1 or self.threads != torch.get_num_threads()

    @property
    def seconds(self) -> float | None:
        """When the last cell would end, in seconds from now; None while that is unknown."""
        return self.pace.total(self.todo, self.jobs)

    @property
    def estimate(self) -> str:
        """The estimate for people, with what it rests on."""
        return self.pace.text(self.todo, self.jobs)

    @property
    def text(self) -> str:
        """Number of cells, done and missing, with the estimate, for people."""
        done = len(self.cells) - len(self.todo)
        count = f"{len(self.cells)} cell{'s' if len(self.cells) > 1 else ''}"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        processes = f"{self.jobs} process{'es' if self.jobs > 1 else ''}"
        several = f" in {processes} of {threads}" if self.apart else ""
        return f"{count}, {done} done already, {len(self.todo)} to run{several}: {self.estimate}"


def look_ahead(
    plan: Plan, folder: RunFolder, *, jobs: int = 1, fresh: bool = False, timed: bool = True
) -> Outlook:
    """Return which cells are missing and how long they may take; writes nothing.

    Sums are rounded by the number of threads that share them, so a cell has as many as the folder's
    cells had before, whatever is left to do; else its share of the cores among `jobs` processes,
    however few cells there are: more of them may be asked for later.
    """
    import torch

    cells = plan.cells()
    done = set() if fresh else folder.done()
    todo = [cell for cell in cells if cell.key not in done]
    threads = max(1, torch.get_num_threads() // jobs)
    if not fresh:
        threads = folder.config().get("threads", threads)
    jobs = max(1, min(jobs, len(todo)))
    pace = recorded_pace(folder.events())
    if timed and plan.task is not None:
        with limit_threads(threads):
            probe(pace, plan.recipe, plan.task, todo)
    return Outlook(cells, todo, pace, jobs, threads)


def run_plan(
    plan: Plan,
    folder: RunFolder,
    show: Show,
    *,
    jobs: int = 1,
    fresh: bool = False,
    quiet: bool = False,
    cluster: Cluster | None = None,
) -> Outcome:
    """Run what is missing and write the folder; nobody else may write it meanwhile.

    Of several ranks (`distributed/ranks.py`) all train and score, and the first one does the rest.
    Raises `Interrupted` on Ctrl-C, when all that is done is written.
    """
    if not ranks.is_first():
        return _follow(plan, folder)
    with ranks.in_step(), folder.writing(plan.data):
        watch = show(Pace(), jobs)
        watch.say(plan.text())
        timed = not quiet and ranks.place()[1] == 1
        ahead = look_ahead(plan, folder, jobs=jobs, fresh=fresh, timed=timed)
        watch.pace, watch.jobs = ahead.pace, ahead.jobs
        _prepare(plan, folder, ahead, fresh, in_jobs(jobs, cluster))
        cells, todo = ahead.cells, ahead.todo
        watch.say(ahead.text)
        book = _Book(plan, folder, watch, ahead)
        try:
            watch.open(todo, len(cells) - len(todo))
            _run(plan, folder, book, ahead, cluster)
        except KeyboardInterrupt:
            book.stopped()
            done = len(cells) - len(todo) + book.done
            raise Interrupted(f"{done} of {len(cells)} cells") from None
        finally:
            watch.close()
        folder.log("finished", done=book.done, failed=book.failed)
        return Outcome(len(cells), len(cells) - len(todo), book.failed)


def in_jobs(jobs: int, cluster: Cluster | None = None) -> list[str]:
    """Return the words of the command line for so many processes, or for a cluster."""
    words = [] if jobs == 1 else ["--jobs", str(jobs)]
    if cluster is not None:
        words += ["--backend", "ray"]
        words += ["--address", cluster.address] if cluster.address else []
    return words


def _prepare(plan: Plan, folder: RunFolder, ahead: Outlook, fresh: bool, again: list[str]) -> None:
    """Write down what the run is, and what it runs on."""
    command, keys = plan.command(str(folder.path), *again), [cell.key for cell in ahead.cells]
    shared = {"net": plan.recipe.net_label}
    folder.configure(
        {**plan.to_dict(str(folder.path), *again), "threads": ahead.threads},
        [{**shared, **_names(cell), "options": cell.options} for cell in ahead.cells],
        redo=keys if fresh else (),
    )
    for key in keys if fresh else ():
        folder.forget(key)
    means = {"device": plan.recipe.device, "jobs": ahead.jobs, "threads": ahead.threads}
    folder.write("environment.json", {**environment(), **means})
    counts = {"cells": len(ahead.cells), "todo": len(ahead.todo)}
    folder.log("run", pid=os.getpid(), host=platform.node(), command=command, **means, **counts)


def _run(
    plan: Plan, folder: RunFolder, book: _Book, ahead: Outlook, cluster: Cluster | None
) -> None:
    if cluster is not None and ahead.todo:
        sized = cluster._replace(workers=ahead.jobs, threads=ahead.threads)
        run_on_cluster(sized, plan.recipe, ahead.todo, folder.checkpoint, book.tell)
        return
    ranks.firsts(lambda: [cell.key for cell in ahead.todo])
    if ahead.apart and ranks.place()[1] == 1:
        run_cells(
            plan.recipe,
            ahead.todo,
            folder.checkpoint,
            book.tell,
            jobs=ahead.jobs,
            threads=ahead.threads,
        )
        return
    for cell in ahead.todo:
        book.tell(cell, None)

        def tell(event: Event, cell: Cell = cell) -> None:
            book.tell(cell, event)

        book.tell(cell, _outcome(plan, folder, cell, tell))


def _outcome(plan: Plan, folder: RunFolder, cell: Cell, tell: Observer) -> Finished | Failed:
    """Run a cell, on all ranks; it fails if it does on any."""
    try:
        with ranks.in_step():
            outcome: Finished | Failed = run_cell(
                plan.recipe, plan.task, cell, folder.checkpoint(cell.key), tell
            )
    except (WriteProblem, ranks.RankProblem):
        raise
    except Exception as error:
        outcome = failure(error)
    failed = outcome if isinstance(outcome, Failed) else None
    return next((f for f in ranks.everyones(failed) if f is not None), outcome)


def _follow(plan: Plan, folder: RunFolder) -> Outcome:
    """Take part in the cells that the first rank names."""
    keys, failed = ranks.firsts(list[str]), 0
    cells = {cell.key: cell for cell in plan.cells()}
    try:
        for key in keys:
            failed += isinstance(_outcome(plan, folder, cells[key], lambda event: None), Failed)
    except KeyboardInterrupt:
        raise Interrupted("another rank tells how far") from None
    return Outcome(len(cells), len(cells) - len(keys), failed)


class _Book:
    """Writes down what cells tell."""

    def __init__(self, plan: Plan, folder: RunFolder, watch: Watch, ahead: Outlook) -> None:
        self.plan, self.folder, self.watch, self.ahead = plan, folder, watch, ahead
        self.done = self.failed = 0
        self._earlier: dict[str, float] = {}  # seconds of training before this process
        self._last: dict[str, tuple[Event, float]] = {}  # last event, and when it was written
        self._known = [
            event for event in folder.events() if {"key", "step", "seconds"} <= set(event)
        ]

    def tell(self, cell: Cell, news: Event | Finished | Failed | None) -> None:
        """Take one piece of news; None is the start of a cell."""
        if news is None:
            self.watch.begin(cell)
            self.folder.log("begin", **_names(cell))
        elif isinstance(news, Event):
            self._event(cell, news)
        elif isinstance(news, Finished):
            self._finished(cell, news)
        else:
            self._failed(cell, news)

    def _event(self, cell: Cell, event: Event) -> None:
        self.watch.event(cell, event)
        if event.kind == "resume":
            self._earlier[cell.key] = self._seconds_at(cell.key, event.step)
        _, written = self._last.get(cell.key, (event, time.monotonic()))
        now = time.monotonic()
        if event.kind not in ("progress", "finish") or now - written > 60:
            self._log_event(cell.key, event, event.kind)
            written = now
        self._last[cell.key] = event, written

    def _log_event(self, key: str, event: Event, kind: str) -> None:
        seconds = self._earlier.get(key, 0.0) + event.elapsed
        facts = {"key": key, "step": event.step, "total": event.total, "seconds": round(seconds, 3)}
        if event.loss == event.loss:
            facts["loss"] = event.loss
        self.folder.log(kind, **facts)

    def _seconds_at(self, key: str, step: int) -> float:
        """Return the training time that earlier processes spent to reach a step."""
        seconds = [e["seconds"] for e in self._known if e["key"] == key and e["step"] <= step]
        return float(seconds[-1]) if seconds else 0.0

    def _finished(self, cell: Cell, news: Finished) -> None:
        cost = news.results.cost
        trained = (cost.train_seconds or 0.0) + self._earlier.get(cell.key, 0.0)
        results = news.results.replace(cost=cost._replace(train_seconds=trained))
        self.folder.add(cell.key, results, news.predictions)
        seconds = self.watch.elapsed(cell) + self._earlier.get(cell.key, 0.0)
        self.folder.log("done", **_names(cell), setup=cell.setup, seconds=round(seconds, 3))
        self.done += 1
        self.ahead.pace.note(cell.setup, seconds)
        self._last.pop(cell.key, None)
        self.folder.forget(cell.key)
        self.watch.end(cell, f"{cell.name}: {_summary(results)}")

    def _failed(self, cell: Cell, news: Failed) -> None:
        if news.disk is not None:
            number, file = news.disk
            problem = OSError(number or 0, os.strerror(number or 0), file)
            if self.folder.is_full(problem):
                raise self.folder.problem(problem)
        self.failed += 1
        self._last.pop(cell.key, None)
        more = {"error": news.error, "traceback": news.trace}
        self.folder.append("failures.jsonl", {**self.plan.describe(cell), **more})
        self.folder.log("failed", **_names(cell), error=news.error)
        self.watch.end(cell, f"{cell.name}: FAILED, {news.error}")

    def stopped(self) -> None:
        """Note how far the cells got that Ctrl-C ended."""
        for key, (event, _) in self._last.items():
            self._log_event(key, event, "stopped")


def _names(cell: Cell) -> dict[str, Any]:
    names = {"key": cell.key, "method": cell.method, "seed": cell.seed}
    return {**names, "label": cell.label} if cell.label else names


def _summary(results: Results) -> str:
    scores = [r for r in results.rows if r.dataset == "test" and r.direction]
    numbers = ", ".join(
        f"{row.metric} {row.value:.4g}"
        for row in scores
        if row.value is not None and is_headline(row.metric)
    )
    summary = f"test {numbers}" if numbers else f"{len(results.rows)} numbers"
    return f"{results.cost.train_seconds:.1f} s, {summary}"


def leaderboard(folder: RunFolder, *, predictions: bool = False) -> Leaderboard | None:
    """Return the leaderboard of what is in the folder; None if there are no results."""
    results = folder.results(predictions=predictions)
    return compare(results) if results else None
