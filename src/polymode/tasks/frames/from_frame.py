"""A task from one table: its columns encoded, its rows divided, its target found by name.

The split is random but fixed, stratified for classes; number `split` draws another one. Encodings
are learned on the rows of training that remain after validation. Targets stay in their own units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.options import option
from polymode.core.warn import warn
from polymode.likelihoods.kinds import Gaussian, Likelihood, as_likelihood
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.frames.columns import Column, columns_named, read_columns
from polymode.tasks.frames.encoder import Encoding, TableEncoder
from polymode.tasks.frames.sets import labels_of, refuse_missing
from polymode.tasks.named import TASKS
from polymode.tasks.readers.mixed_tables import read_mixed_table
from polymode.tasks.splits import share, shuffled_order, stratified_order
from polymode.tasks.task import Task

NAME = "frame"
_FEW_CLASSES = 2


@dataclass(frozen=True, kw_only=True)
class FrameOptions(Encoding):
    """How a table becomes a task."""

    test_fraction: float = option(0.1, ge=0, lt=1, doc="share of the rows to test on")
    val_fraction: float = option(0.1, ge=0, lt=1, doc="share of the other rows to validate on")
    split: int = option(0, ge=0, doc="number of the random split")


def task_from_frame(
    frame: Any,
    target: str | int | Sequence[str],
    *,
    likelihood: Likelihood | str = "auto",
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    options: FrameOptions | None = None,
    **facts: Any,
) -> Task:
    """Return the task of a table; see `Task.from_frame`."""
    chosen = options or FrameOptions()
    every = read_columns(frame)
    targets = [str(target)] if isinstance(target, str | int) else list(map(str, target))
    if not len(next(iter(every.values()))):
        raise ValueError("the table has columns, but no rows")
    columns_named(every, [*targets, *(columns or ()), *drop], "the table")
    inputs = _inputs(every, targets, columns, drop)
    law, y, classes = _targets([every[name] for name in targets], likelihood)
    parts = _parts(y, classes is not None, chosen)
    encoder = TableEncoder.fit(
        {name: column.take(parts["train"].numpy()) for name, column in inputs.items()},
        chosen,
        target=", ".join(targets),
        classes=classes,
    )
    x = {
        part: encoder.encode({n: c.take(rows.numpy()) for n, c in inputs.items()}, part)
        for part, rows in parts.items()
    }
    scales = classes is None and law.scales_targets
    scaling = Scaling.of(y[parts["train"]]) if scales else None
    sets: dict[str, Any] = {part: (x[part], y[rows]) for part, rows in parts.items()}
    facts.setdefault("name", NAME)
    task = Task(
        **sets,
        likelihood=law,
        target_size=len(classes) if classes else y.shape[1],
        target_scaling=scaling,
        class_names=classes,
        input_scaling=None,
        **facts,
    )
    task.encoder, task.row_numbers = encoder, parts
    return task


@TASKS.register(
    NAME,
    description="your own table with columns of any kind (options path and target): numbers,"
    " categories, dates, missing values; csv, or Parquet with pyarrow",
    source="yours",
    licence="yours",
    kind="real",
    size="by file",
    data=(),
)
def frame(
    *,
    path: str | Path | None = None,
    target: str | None = None,
    seed: int = 0,
    likelihood: str = "auto",
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    numeric: str = Encoding.numeric,
    num_bins: int = Encoding.num_bins,
    most_categories: int = Encoding.most_categories,
    large_categories: str = Encoding.large_categories,
    test_fraction: float = FrameOptions.test_fraction,
    val_fraction: float = FrameOptions.val_fraction,
    split: int = FrameOptions.split,
) -> Task:
    """Return the rows of a csv or Parquet file as a task.

    Args:
        path: the file. target: name of the column to predict.
        seed: not used; the split is that of `split`.
        likelihood, columns, drop: see `Task.from_frame`.
        numeric, num_bins, most_categories, large_categories: how columns are encoded.
        test_fraction, val_fraction, split: which rows are held out.
    """
    if path is None or target is None:
        raise ValueError(
            "`path` and `target` of frame must name a file and its column to predict, such as"
            ' pm.task("frame", path="houses.csv", target="price")'
        )
    file = Path(path).expanduser()
    options = FrameOptions(
        numeric=numeric,
        num_bins=num_bins,
        most_categories=most_categories,
        large_categories=large_categories,
        test_fraction=test_fraction,
        val_fraction=val_fraction,
        split=split,
    )
    return task_from_frame(
        read_mixed_table(file),
        target,
        likelihood=likelihood,
        columns=columns,
        drop=drop,
        options=options,
        description=f"column '{target}' of '{file.name}', split {split}",
    )


def _inputs(
    every: Mapping[str, Column],
    targets: Sequence[str],
    columns: Sequence[str] | None,
    drop: Sequence[str],
) -> dict[str, Column]:
    """Return the input columns, none of which may be or repeat a target."""
    if both := [name for name in targets if name in (columns or ())]:
        raise ValueError(f"`columns` are the inputs, but the target '{both[0]}' is among them")
    names = columns if columns is not None else [n for n in every if n not in targets]
    inputs = {name: every[name] for name in names if name not in drop}
    if not inputs:
        raise ValueError("no input column is left beside the target")
    for name, column in inputs.items():
        for target in targets:
            if _repeats(column, every[target]):
                raise ValueError(
                    f"column '{name}' repeats the target '{target}' in every row; drop it"
                    f" (drop=['{name}'])"
                )
    return inputs


def _repeats(column: Column, target: Column) -> bool:
    """Whether a column has the target's value in every row, up to a constant factor and shift."""
    if column.kind == "category" or target.kind == "category":
        pairs = {*zip(map(str, column.values), map(str, target.values), strict=True)}
        values = {value for value, _ in pairs}
        return column.kind == target.kind and len(pairs) == len(values) == len(
            {name for _, name in pairs}
        )
    if len(column) < 3 or not np.isfinite(column.values).all():
        return False
    a, b = column.values - column.values.mean(), target.values - target.values.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return size > 0 and bool(abs(a @ b) > (1 - 1e-12) * size)


def _targets(
    columns: Sequence[Column], likelihood: Likelihood | str
) -> tuple[Likelihood, Tensor, tuple[str, ...] | None]:
    """Return the likelihood, values (N, D) or labels (N,), and names of the classes."""
    for column in columns:
        refuse_missing(column)
    named = [column for column in columns if column.kind in ("category", "boolean")]
    if likelihood == "auto":
        likelihood = "categorical" if named else "heteroscedastic_gaussian"
    law = Gaussian(noise="learned") if likelihood == "gaussian" else as_likelihood(likelihood)
    if not law.classification:
        if named:
            raise ValueError(
                f"target '{named[0].name}' holds {named[0].kind} values; {law.name} needs numbers."
                " For classes give likelihood='categorical'"
            )
        values = np.stack([column.values for column in columns], 1)
        constant = [c.name for c in columns if c.values.max() == c.values.min()]
        if constant:
            raise ValueError(f"target '{constant[0]}' has one value in all rows; nothing to learn")
        return law, torch.as_tensor(values, dtype=torch.get_default_dtype()), None
    if len(columns) > 1:
        raise ValueError(f"classes need one target, got {[c.name for c in columns]}")
    names = _class_texts(columns[0])
    classes = tuple(sorted({*names}))
    if columns[0].kind == "number":
        classes = tuple(sorted({*names}, key=float))
    if len(classes) < _FEW_CLASSES:
        raise ValueError(f"target '{columns[0].name}' has one class in all rows, '{classes[0]}'")
    counts = Counter(names)
    if single := [name for name in classes if counts[name] == 1]:
        warn(
            f"{len(single)} class(es) of '{columns[0].name}' have one row (first: '{single[0]}'),"
            " which is in only one of training, validation and test"
        )
    return law, labels_of(names, classes, "the table"), classes


def _class_texts(column: Column) -> list[str]:
    if column.kind == "number":
        odd = column.values != np.round(column.values)
        if odd.any():
            raise ValueError(
                f"target '{column.name}' has {int(odd.sum()):,} of {len(column):,} values that are"
                f" not integers, the first {column.values[odd][0]:g}; classes are integers or names"
            )
        return [str(int(value)) for value in column.values]
    if column.kind == "boolean":
        return [str(bool(value)) for value in column.values]
    return [str(value) for value in column.values]


def _parts(y: Tensor, classes: bool, options: FrameOptions) -> dict[str, Tensor]:
    """Return the rows of train, val and test; parts without rows are left out."""
    num = len(y)
    order, again = (
        stratified_order(y, NAME, f"{part}/{options.split}")
        if classes
        else shuffled_order(num, NAME, f"{part}/{options.split}")
        for part in ("test", "val")
    )
    test = torch.zeros(num, dtype=torch.bool)
    test[order[: share(options.test_fraction, num)]] = True
    remaining = again[~test[again]]
    num_val = share(options.val_fraction, len(remaining))
    parts = {"train": remaining[num_val:], "val": remaining[:num_val], "test": test.nonzero()[:, 0]}
    if len(parts["train"]) < 2:
        raise ValueError(f"the table has {num} row(s), too few for a training and a test set")
    return {name: rows.sort().values for name, rows in parts.items() if len(rows)}
