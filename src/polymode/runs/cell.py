"""One cell, in any process: fit, evaluate, examine, pack; events are reported meanwhile."""

from __future__ import annotations

import contextlib
import importlib
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from polymode.core.safe_files import json_safe
from polymode.core.warn import warn
from polymode.examinations import NotApplicable, examine, read_asked
from polymode.methods import fit
from polymode.metrics import evaluate
from polymode.metrics.results import Cost, Results
from polymode.posterior import Posterior
from polymode.runs.archive import pack
from polymode.runs.run_plan import EVERY_CELL, Cell, Recipe
from polymode.tasks import Task
from polymode.training.events import Observer

SHIFT_BYTES = 2**28  # of predictions under shifts that one cell keeps
ALWAYS = ("test", "ood:*", "train", "curve", "plane", "examples")


class Finished(NamedTuple):
    """What a cell gave: results without arrays, and these as the bytes of an `.npz` file."""

    results: Results
    predictions: bytes


class Failed(NamedTuple):
    """Why a cell gave nothing; `disk` is (number, file) of an error of the operating system."""

    error: str
    trace: str
    disk: tuple[int | None, str] | None = None


def run_cell(
    recipe: Recipe, task: Task | None, cell: Cell, checkpoint: Path, tell: Observer
) -> Finished:
    """Fit, evaluate and examine one cell; its training resumes where an interrupt left it.

    A cell of an experiment calls its function, and nothing else.
    """
    if task is None:
        return _finished(_experiment(recipe, cell))
    return _finished(_results(recipe, task, cell, checkpoint, tell))


def _results(recipe: Recipe, task: Task, cell: Cell, checkpoint: Path, tell: Observer) -> Results:
    with contextlib.suppress(ImportError):  # torch does so at the first step; takes a second
        importlib.import_module("torch._dynamo")
    started = time.perf_counter()
    post = fit(
        cell.method,
        net=recipe.of(cell).net,
        task=task,
        seed=cell.seed,
        device=recipe.device,
        progress="silent",
        on_event=tell,
        checkpoint=checkpoint,
        **cell.options,
    )
    seconds = time.perf_counter() - started
    results = evaluate(
        post,
        task,
        train_seconds=seconds,
        keep=_kept(post, task),
        validation=recipe.validation,
    )
    results = results.replace(net=recipe.of(cell).net_label, label=cell.label)
    curves = [EVERY_CELL] if post.history.train_steps else []
    for text in dict.fromkeys([*recipe.examine, *curves]):
        name, options = read_asked(text)
        try:
            results = examine(post, task, name, **options).beside(results)
        except NotApplicable as error:
            warn(
                f"{cell.label or cell.method} is not examined by '{name}': {error}",
            )
    return results


def _finished(results: Results) -> Finished:
    predictions = pack(results.kept, results.arrays)
    return Finished(results.replace(kept={}, arrays={}), predictions)


def _experiment(recipe: Recipe, cell: Cell) -> Results:
    """Return what the function found, as results that have no scores and no networks."""
    assert recipe.function is not None
    started = time.perf_counter()
    findings = recipe.function(cell.seed, **cell.options).signed(cell.method)
    cost = Cost(0, 0, 0, 0.0, 0, time.perf_counter() - started)
    config = json_safe(cell.options)
    none = Results(cell.method, cell.method, "", cell.seed, config, (), cost, label=cell.label)
    return findings.beside(none)


def _kept(post: Posterior, task: Task) -> bool | tuple[str, ...]:
    """Return which predictions are kept: all, or, where those of shifts would be huge, the rest."""
    sets = sum(len(levels) for levels in task.shifts.values())
    numbers = sets * len(task.test or ()) * post.num_samples * post.target_size
    return numbers * post.weights.like.dtype.itemsize <= SHIFT_BYTES or ALWAYS


def failure(error: Exception) -> Failed:
    """Return an error as it is sent to another process and written down."""
    text = "".join(traceback.format_exception(error))
    disk = (error.errno, str(error.filename or "")) if isinstance(error, OSError) else None
    return Failed(f"{type(error).__name__}: {error}", text, disk)
