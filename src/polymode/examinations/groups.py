r"""Is the posterior as good for every group of a table's rows as it is overall?

Groups are the values of a category or a truth value, of the test set: of one column, or of each
that there is. For each group the mean NLL, and the share of rows that are covered by intervals of
90 %, or of classes the accuracy. "Worst" are the highest NLL and the lowest share among groups with
at least `least` rows.

Traps: the worst of many groups is worse than average by chance alone; the expected number of groups
outside two standard errors is one in twenty. Coverage of intervals that are not calibrated within
groups is not promised: `pm.conformal.by_group` promises it. `G` groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polymode.core.options import Config, option
from polymode.core.registry import suggest
from polymode.examinations.examination import EXAMINATIONS
from polymode.examinations.findings import Findings, NotApplicable, measure
from polymode.metrics.results import Row
from polymode.posterior import Posterior
from polymode.prediction import CategoricalPrediction, Prediction
from polymode.tasks import Task
from polymode.training.data import Arrays

LEVEL = 0.9


@dataclass(frozen=True, kw_only=True)
class Groups(Config):
    """Options of the examination."""

    called = "groups"
    column: str | None = option(
        None, doc="whose values are the groups", none="takes each category and truth value"
    )
    least: int = option(10, ge=1, doc="test rows of a group, at least")


@EXAMINATIONS.register(
    "groups",
    summary="NLL and coverage or accuracy within groups of a table's rows, and the worst of them",
    measures={
        "num_groups": "groups with enough test rows",
        "worst_nll": "highest mean NLL of a group",
        "nll_gap": "highest minus lowest mean NLL of a group",
        "worst_coverage": "lowest share of a group's rows in their 90 % intervals",
        "worst_accuracy": "lowest share of a group's rows that are classified rightly",
    },
    options=Groups,
)
def groups(post: Posterior, task: Task, options: Groups) -> Findings:
    """Return the worst group, and arrays (4,) of each: n, NLL, its standard error, and the share.

    An array is named "COLUMN = VALUE".
    """
    if task.encoder is None or not isinstance(task.test, Arrays):
        raise NotApplicable("groups are of the rows of a table: pm.Task.from_frame with a test set")
    x, y = task.test.x, task.test.y
    prediction = post.predict(x)
    nll = -prediction.log_prob(y).double()
    hits = _hits(prediction, y).double()
    share = "accuracy" if isinstance(prediction, CategoricalPrediction) else "coverage"
    arrays: dict[str, np.ndarray] = {}
    for name, rows in _members(task, x, options.column).items():
        if (n := int(rows.sum())) >= options.least:
            error = float(nll[rows].std()) / n**0.5 if n > 1 else np.nan
            arrays[name] = np.array([n, float(nll[rows].mean()), error, float(hits[rows].mean())])
    if not arrays:
        raise NotApplicable(f"no group has {options.least} test rows; take a smaller `least`")
    return Findings(_rows(arrays, share), arrays)


def _rows(arrays: dict[str, np.ndarray], share: str) -> tuple[Row, ...]:
    """Return the numbers of the worst groups."""
    n, nll, error, _ = max(arrays.values(), key=lambda numbers: numbers[1])
    size, _, _, value = min(arrays.values(), key=lambda numbers: numbers[3])
    spread = (value * (1 - value) / size) ** 0.5
    gap = nll - min(values[1] for values in arrays.values())
    return (
        measure("num_groups", len(arrays), n=len(arrays)),
        measure("worst_nll", nll, unit="nats", n=int(n), standard_error=error, direction="down"),
        measure("nll_gap", gap, unit="nats", n=len(arrays), direction="down"),
        measure(f"worst_{share}", value, n=int(size), standard_error=spread, direction="up"),
    )


def _hits(prediction: Prediction, y: Tensor) -> Tensor:
    """Return which rows are right, or inside all their intervals, (N,)."""
    if isinstance(prediction, CategoricalPrediction):
        return prediction.mean.argmax(-1) == y
    low, high = prediction.interval(LEVEL)
    return ((low <= y) & (y <= high)).all(-1)


def _members(task: Task, x: Tensor, column: str | None) -> dict[str, Tensor]:
    """Return the rows of each group as truth values (N,), by "COLUMN = VALUE"."""
    encoder = task.encoder
    assert encoder is not None
    facts, values = encoder.column_facts, encoder.decode(x)
    able = [name for name, kind, _ in facts if kind in ("category", "boolean")]
    if column is not None and column not in able:
        raise ValueError(
            f"`column` of groups must be a category or truth value, got '{column}'."
            f"{suggest(column, able)} There are: {', '.join(able) or 'none'}"
        )
    if not able:
        raise NotApplicable("the table has no category and no truth value, so it has no groups")
    members = {}
    for place, (name, kind, labels) in enumerate(facts):
        if name not in able or column not in (None, name):
            continue
        for value in values[:, place].unique().tolist():
            if value == value:
                text = labels[int(value)] if kind == "category" else str(bool(value))
                members[f"{name} = {text}"] = values[:, place] == value
        if (missing := torch.isnan(values[:, place])).any():
            members[f"{name} = missing"] = missing
    return members
