"""Shifts of tables: columns scaled, missing or noisy, in five severities, and the gap split.

Tables are (N, D), standardised with the training data's mean and standard deviation, so that 0 is a
column's mean and 1 its spread. `N` examples, `D` columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polymode.core.registry import Registry
from polymode.core.rng import generator
from polymode.tasks.shifts.shift import check_severity
from polymode.tasks.task import check_finite

FACTORS = (1.25, 1.5, 2.0, 3.0, 5.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
STDS = (0.1, 0.2, 0.4, 0.7, 1.0)

TABLE_SHIFTS: Registry[Callable[[Tensor, int, int], Tensor]] = Registry("shift of tables")
"""Functions (table (N, D), severity, seed) -> table (N, D)."""


def shift_table(table: Tensor, kind: str, severity: int, *, seed: int = 0) -> Tensor:
    """Return the table under a shift, as a new tensor.

    Args:
        table: (N, D), floating-point, finite, standardised.
        kind: "column_scaling", "missing_columns" or "column_noise".
        severity: 1 (mild) to 5.
        seed: draws columns or noise. The columns are the same for all severities, or more of them.

    >>> shift_table(torch.ones(1, 4), "missing_columns", 5)
    tensor([[1., 0., 0., 1.]])
    """
    apply = TABLE_SHIFTS.get(kind).value
    check_severity(severity)
    _check(table)
    return apply(table, severity, seed)


@TABLE_SHIFTS.register("column_scaling")
def column_scaling(table: Tensor, severity: int, seed: int) -> Tensor:
    """Return half of the columns times 1.25, 1.5, 2, 3, 5: a unit or a gain has changed."""
    columns = _order(table, "column_scaling", seed)[: math.ceil(table.shape[1] / 2)]
    factors = torch.ones(table.shape[1], dtype=table.dtype)
    factors[columns] = FACTORS[severity - 1]
    return table * factors.to(table.device)


@TABLE_SHIFTS.register("missing_columns")
def missing_columns(table: Tensor, severity: int, seed: int) -> Tensor:
    """Return 10, 20, 30, 40, 50 % of the columns, rounded up, as their mean 0: never measured."""
    number = math.ceil(SHARES[severity - 1] * table.shape[1])
    columns = _order(table, "missing_columns", seed)[:number]
    return table.index_fill(1, columns.to(table.device), 0.0)


@TABLE_SHIFTS.register("column_noise")
def column_noise(table: Tensor, severity: int, seed: int) -> Tensor:
    """Return x + s z with z standard normal, s = 0.1, 0.2, 0.4, 0.7, 1: measured less well."""
    noise = torch.randn(table.shape, generator=generator(seed, "column_noise", severity))
    return table + STDS[severity - 1] * noise.to(table)


def _order(table: Tensor, kind: str, seed: int) -> Tensor:
    return torch.randperm(table.shape[1], generator=generator(seed, kind))


def gap_split(table: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """Return the rows for training and those for testing, which lie in a gap of one column.

    Rows are sorted by the column; the middle third, places round(N / 3) to round(2 N / 3), is for
    testing (A. Foong et al., "'In-between' uncertainty in Bayesian neural networks", 2019). Equal
    values stay in the order of the table, so a column of few values can have some on both sides.

    Args:
        table: (N, D), N at least 3, finite; in any units.
        column: 0 to D - 1.

    Returns:
        rows (N_train,) and rows (N_test,), int64, each in the order of the table.

    >>> gap_split(torch.tensor([[5.0], [1.0], [3.0]]), 0)
    (tensor([0, 1]), tensor([2]))
    """
    _check(table)
    rows, columns = table.shape
    if rows < 3 or column not in range(columns):
        raise ValueError(
            f"a gap split needs at least 3 rows and a column of 0 to {columns - 1}, got a table of"
            f" {rows} rows and column {column!r}"
        )
    order = table[:, column].argsort(stable=True)
    low, high = round(rows / 3), round(2 * rows / 3)
    train = torch.cat([order[:low], order[high:]])
    return train.sort().values, order[low:high].sort().values


def _check(table: Tensor) -> None:
    if not isinstance(table, Tensor) or table.ndim != 2 or table.nelement() == 0:
        what = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(f"a table must be a tensor (N, D) with at least one value, got {what}")
    if not table.is_floating_point():
        raise ValueError(f"a table must be floating-point, got {table.dtype}; try .float()")
    check_finite(table, "table values")
