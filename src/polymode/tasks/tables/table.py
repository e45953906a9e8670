"""From a table and its split to a task: your own file (`table`), and what all tables share.

`table` reads columns of numbers, csv or text: one column is the target, the others are inputs. The
split is random but fixed, stratified for classes; number `split` draws another one. A missing value
or a text is refused with row and column.

Inputs are standardised per column, (x - mean) / std; targets of a regression stay in their own
units, with the `target_scaling` that `fit` trains on and undoes. Mean and standard deviation are
those of the training rows left after validation; a column constant there is only shifted.
`N` examples, `D` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polymode.core.registry import suggest
from polymode.core.safe_files import FileProblem
from polymode.likelihoods.kinds import Gaussian, Likelihood, as_likelihood
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.named import TASKS
from polymode.tasks.readers import read_table
from polymode.tasks.shifts import SEVERITIES, TABLE_SHIFTS, shift_table
from polymode.tasks.splits import check_fraction, share, shuffled_order, stratified_order
from polymode.tasks.task import Task


@dataclass(frozen=True, eq=False)
class Rows:
    """Row numbers of each part, disjoint, in the order of the table; `val` may be empty."""

    train: Tensor
    val: Tensor
    test: Tensor

    @classmethod
    def of(cls, order: Tensor, test: Tensor, val_fraction: float) -> Rows:
        """Return the split whose test rows are given.

        Args:
            order: the N row numbers in the order in which they are held out for validation.
            test: (N,) bool, True for test rows.
            val_fraction: in [0, 1), of the rows that are not test.
        """
        remaining = order[~test[order]]
        num_val = share(val_fraction, len(remaining))
        val, train = remaining[:num_val], remaining[num_val:]
        return cls(*(part.sort().values for part in (train, val, test.nonzero().flatten())))


def standardised(
    name: str,
    x: Tensor,
    y: Tensor,
    rows: Rows,
    *,
    likelihood: Likelihood,
    description: str,
    seed: int | None,
    target_unit: str = "",
    class_names: Sequence[str] | None = None,
) -> Task:
    """Return the task of a table with features x (N, D) and targets or labels y (N,).

    Both are given in the units of the table, float64 (labels int64); the task has them in torch's
    default type. With a `seed`, which draws columns and noise, the test set is there under every
    shift of tables as well.
    """
    scaling = Scaling.of(x[rows.train])
    inputs = scaling(x).to(torch.get_default_dtype())
    targets, target_scaling = y, None
    if not likelihood.classification:
        targets = y[:, None].to(torch.get_default_dtype())
        if likelihood.scales_targets:
            target_scaling = Scaling.of(y[rows.train][:, None])

    def pairs(part: Tensor) -> Any:
        return (inputs[part], targets[part]) if len(part) else None

    def shifted(kind: str, severity: int) -> Any:
        assert seed is not None
        return shift_table(inputs[rows.test], kind, severity, seed=seed), targets[rows.test]

    kinds = [] if seed is None else TABLE_SHIFTS.names()
    return Task(
        name=name,
        train=pairs(rows.train),
        val=pairs(rows.val),
        test=pairs(rows.test),
        likelihood=likelihood,
        target_size=len(class_names) if class_names else 1,
        shifts={
            kind: {severity: partial(shifted, kind, severity) for severity in SEVERITIES}
            for kind in kinds
        },
        input_scaling=scaling,
        target_scaling=target_scaling,
        target_unit=target_unit,
        class_names=class_names,
        description=description,
    )


NAME = "table"
Column = str | int


@TASKS.register(
    NAME,
    description="your own table of numbers (options path and target): regression, or classification"
    " with likelihood='categorical'",
    source="yours",
    licence="yours",
    kind="real",
    size="by file",
    data=(),
)
def table(
    *,
    path: str | Path | None = None,
    target: Column | None = None,
    seed: int = 0,
    likelihood: str | Likelihood = "gaussian",
    noise: str | float = "learned",
    columns: Sequence[Column] | None = None,
    split: int = 0,
    test_fraction: float = 0.1,
    val_fraction: float = 0.1,
    target_unit: str = "",
) -> Task:
    """Return the rows of a text file as a task, inputs standardised, targets in their own units.

    Args:
        path: the file; commas, semicolons, tabs or white space between numbers, with or without a
            header.
        target: name of the column to predict, or its position from 0.
        seed: draws the shifts of the test set; the split does not depend on it.
        likelihood: "gaussian" or another for regressions; "categorical" or "bernoulli" where the
            target is a class, given as integers of any values.
        noise: of "gaussian": "learned", or the known standard deviation in units of the
            standardised target.
        columns: names or positions of the input columns; by default all but the target.
        split: number of the random split, from 0.
        test_fraction: share in (0, 1) of the rows. val_fraction: share in [0, 1) of the others.
        target_unit: for tables and figures.
    """
    file, x, y = _read(path, target, columns)
    law = Gaussian(noise=noise) if likelihood == "gaussian" else as_likelihood(likelihood)
    if not 0 < check_fraction("test_fraction", NAME, test_fraction):
        raise ValueError("`test_fraction` of table must be > 0; a tenth is 0.1")
    check_fraction("val_fraction", NAME, val_fraction)
    if isinstance(split, bool) or not isinstance(split, int) or split < 0:
        raise ValueError(f"`split` of table must be an integer >= 0, got {split!r}")
    class_names = None
    if law.classification:
        y, class_names = _classes(file, target, y)
    order, again = (
        stratified_order(y, NAME, f"{part}/{split}")
        if law.classification
        else shuffled_order(len(y), NAME, f"{part}/{split}")
        for part in ("test", "val")
    )
    test = torch.zeros(len(y), dtype=torch.bool)
    test[order[: share(test_fraction, len(y))]] = True
    rows = Rows.of(again, test, val_fraction)
    if not len(rows.train):
        raise FileProblem(f"{file} has {len(y)} row(s), too few for a training and a test set")
    return standardised(
        NAME,
        x,
        y,
        rows,
        likelihood=law,
        seed=seed,
        target_unit=target_unit,
        class_names=class_names,
        description=f"column {target!r} of '{file.name}', split {split}",
    )


def _read(
    path: str | Path | None, target: Column | None, columns: Sequence[Column] | None
) -> tuple[Path, Tensor, Tensor]:
    """Return the file, the inputs (N, D) and the target column (N,), float64."""
    if path is None or target is None:
        raise ValueError(
            "`path` and `target` of table must name a file and its column to predict, such as"
            ' pm.task("table", path="houses.csv", target="price")'
        )
    file = Path(path).expanduser()
    if columns is not None:
        if target in columns:
            raise ValueError(f"`columns` of table are the inputs; the target {target!r} is in them")
        values = torch.from_numpy(read_table(file, columns=[*columns, target]).values)
        return file, values[:, :-1], values[:, -1]
    table = read_table(file)
    place = _position(file, target, table.names)
    values = torch.from_numpy(table.values)
    if values.shape[1] < 2:
        raise FileProblem(f"{file} has one column; it needs inputs besides the target")
    return file, torch.cat([values[:, :place], values[:, place + 1 :]], dim=1), values[:, place]


def _position(file: Path, target: Column, names: tuple[str, ...]) -> int:
    if isinstance(target, str) and target in names:
        return names.index(target)
    if isinstance(target, int) and 0 <= target < len(names):
        return target
    near = suggest(str(target), names)
    raise ValueError(f"{file} has no column {target!r}.{near} It has: {', '.join(names)}")


def _classes(file: Path, target: Column | None, y: Tensor) -> tuple[Tensor, list[str]]:
    """Return labels 0 to C - 1 for the values of the target column in rising order, and these."""
    odd = (y != y.round()).nonzero().flatten()
    if len(odd):
        raise FileProblem(
            f"{file}: column {target!r} has {len(odd):,} of {len(y):,} values that are not"
            f" integers, the first {y[odd[0]].item():g}; classes are integers. For regression give"
            " likelihood='gaussian'"
        )
    values, labels = y.unique(return_inverse=True)
    if len(values) < 2:
        raise FileProblem(f"{file}: column {target!r} has one class only, {int(values[0])}")
    return labels, [str(int(value)) for value in values]
