"""`evaluate`: one posterior on one task, each data set predicted once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from polymode.core.data import Arrays, Data
from polymode.core.registry import Entry
from polymode.metrics.results import Cost, Kept, Results, Row, finite
from polymode.metrics.score import (
    CLASSIFICATION,
    OOD_CLASSIFICATION,
    OOD_REGRESSION,
    REGRESSION,
    Score,
    entries,
)
from polymode.posterior import Posterior
from polymode.prediction import Prediction
from polymode.tasks.task import Task

BATCH = 256  # rows predicted at a time
CURVE_POINTS = 200
UNIT = "units of y"  # as metrics say it, where the task says no more


def evaluate(post: Posterior, task: Task, *, train_seconds: float | None = None) -> Results:
    """Return every metric that applies, on the test set, every shift and every OOD set.

    Scores with labels are computed on the test set, the shifts, and OOD sets of regressions that
    have targets. OOD metrics set each OOD set against the test set, OOD positive. A metric that
    needs more samples than the posterior has is None, with a note.

    Args:
        post: what `pm.fit` returned.
        task: with a test set; of the same kind and input shape as the one `post` was fitted on.
        train_seconds: wall time of the fit, if it was measured, for the cost columns.

    Returns:
        `Results`; its `kept` holds the predictions. Of regressions on one input, `kept` also has
        the training set and an even grid, "train" and "curve", which are drawn, not scored.
    """
    if task.test is None:
        raise ValueError(f"task '{task.name}' has no test data: give pm.Task(test=...)")
    if post.likelihood.classification != task.likelihood.classification:
        raise ValueError(
            f"the posterior has a {post.likelihood.name} likelihood, the task a"
            f" {task.likelihood.name} one; evaluate on a task of the same kind"
        )
    kept: dict[str, Kept] = {}
    seconds = 0.0
    for name, data in _datasets(task):  # a shift is made here, and its time does not count
        started = time.perf_counter()
        kept[name] = _predict(post, task, data)
        seconds += time.perf_counter() - started
    classes, unit = task.likelihood.classification, task.target_unit or UNIT
    rows = [
        row._replace(unit=row.unit.replace(UNIT, unit))
        for name in kept
        for row in _rows(name, kept, classes)
    ]
    cost = Cost(
        num_modes=post.num_modes,
        parameters=post.num_modes * post.stack.num_parameters,
        predict_seconds=seconds,
        predict_examples=sum(len(each.prediction) for each in kept.values()),
        train_seconds=train_seconds,
    )
    if task.input_shape == (1,) and not task.likelihood.classification:
        kept |= _line(post, task, kept)
    return Results(
        task=task.name,
        method=post.method,
        net=type(post.stack.template).__name__,
        seed=post.seed,
        config=dict(post.config),
        rows=tuple(rows),
        cost=cost,
        kept=kept,
    )


def _datasets(task: Task) -> Iterator[tuple[str, Data | Tensor]]:
    """Yield the names and data that are scored."""
    assert task.test is not None
    yield "test", task.test
    for name, levels in task.shifts.items():
        for severity, data in levels.items():
            yield f"shift:{name}:{severity}", data
    for name, source in task.ood.items():
        yield f"ood:{name}", source


def _predict(post: Posterior, task: Task, data: Data | Tensor) -> Kept:
    """Predict in one pass; a loader is passed over once, so its order may be its own."""
    line = task.input_shape == (1,)
    if isinstance(data, Tensor):
        return Kept(post.predict(data, batch_size=BATCH), None, data if line else None)
    if isinstance(data, Arrays):
        return Kept(post.predict(data, batch_size=BATCH), data.y, data.x if line else None)
    predictions: list[Prediction] = []
    pairs: list[tuple[Tensor, Tensor]] = []
    for batch in data.batches(BATCH):
        x, y = task.check_batch(*batch)
        predictions.append(post.predict(x, batch_size=BATCH))
        pairs.append((x if line else x[:0], y))
    if not pairs:
        raise ValueError("the loader is empty: 0 batches")
    inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return Kept(Prediction.cat(predictions), targets, inputs if line else None)


def _line(post: Posterior, task: Task, kept: dict[str, Kept]) -> dict[str, Kept]:
    """Return what a figure over one input needs: training set, even grid over all sets."""
    train = _predict(post, task, task.train)
    seen = torch.cat([each.inputs for each in [train, *kept.values()] if each.inputs is not None])
    grid = torch.linspace(seen.min().item(), seen.max().item(), CURVE_POINTS)[:, None]
    truth = None if task.truth is None else task.truth(grid)
    return {"train": train, "curve": Kept(post.predict(grid), truth, grid)}


def _rows(name: str, kept: dict[str, Kept], classification: bool) -> Iterator[Row]:
    """Yield the numbers of one data set."""
    prediction, targets, _ = kept[name]
    outside = name.startswith("ood:")
    if outside:
        test = kept["test"].prediction
        against = OOD_CLASSIFICATION if classification else OOD_REGRESSION
        for entry in entries(against):
            yield _row(name, entry, test, prediction, len(test) + len(prediction))
    scores = CLASSIFICATION if classification else REGRESSION
    labelled = targets is not None and not (outside and classification)  # OOD labels: other classes
    for entry in entries(scores):
        if labelled or not entry.metadata["targets"]:
            yield _row(name, entry, prediction, targets if labelled else None, len(prediction))


def _row(dataset: str, entry: Entry[Any], prediction: Prediction, other: Any, n: int) -> Row:
    facts = entry.metadata
    needed, score, note = facts["min_samples"], Score(float("nan"), n), ""
    if prediction.num_samples < needed:
        note = f"n/a (needs >= {needed} samples)"
    else:
        score = entry.value(prediction, other)
        if finite(score.value) is None:
            note = f"n/a ({'infinite' if abs(score.value) == float('inf') else 'undefined'})"
    return Row(
        dataset=dataset,
        metric=entry.name,
        value=finite(score.value),
        unit=facts["unit"],
        direction=facts["direction"],
        n=score.n,
        standard_error=finite(score.standard_error),
        note=note,
    )
