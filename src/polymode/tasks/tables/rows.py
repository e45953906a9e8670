"""From a table and its split to a task: standardised with the training rows, and nothing else.

Inputs come as (x - mean) / std a column; targets of a regression stay in their own units, with the
`target_scaling` that `fit` trains on and undoes. Mean and standard deviation are those of the
training rows after validation was taken off; a column that is constant there is only shifted.
`N` examples, `D` columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from polymode.likelihoods.kinds import Likelihood
from polymode.likelihoods.scaling import Scaling
from polymode.tasks.shifts import SEVERITIES, TABLE_SHIFTS, shift_table
from polymode.tasks.splits import share
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
        rest = order[~test[order]]
        num_val = share(val_fraction, len(rest))
        val, train = rest[:num_val], rest[num_val:]
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
