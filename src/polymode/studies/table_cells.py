"""Cells of tables, texts of differences and verdicts on claims, shared by all studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from polymode.metrics.paired import Difference, mean_and_error
from polymode.metrics.text_table import decimals_for, number
from polymode.plots import Comparison
from polymode.studies.study import Runs

T = TypeVar("T")

PAIRED = "paired over seeds, 95 % t-interval"


class Column(NamedTuple):
    """Where the numbers of a column stand in results.

    Attributes:
        dataset, metric: see `Runs.values`.
        factor: to the unit of the table, such as 100 for per cent.
        field: name among the published numbers; "" where none is printed.
    """

    dataset: str
    metric: str
    factor: int = 1
    field: str = ""

    def values(self, runs: Runs, part: str, arm: str) -> list[float]:
        """Return the numbers of an arm in the unit of the table, one per seed."""
        by_seed = runs.values(part, arm, self.dataset, self.metric)
        return [self.factor * value for value in by_seed.values()]


def present(items: Mapping[str, T | None]) -> dict[str, T]:
    """Return the tables or figures for which there were runs."""
    return {name: value for name, value in items.items() if value is not None}


def mean_or_none(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and standard error; None for both where there are no values."""
    return mean_and_error(values) if values else (None, None)


def mean_cell(
    values: Mapping[int, float] | Sequence[float], digits: int = 2, missing: str = "n/a"
) -> str:
    """Return mean ± standard error of numbers, which may be by seed.

    >>> mean_cell({0: 1.0, 1: 3.0}), mean_cell([])
    ('2.00 ± 1.00', 'n/a')
    """
    numbers = list(values.values()) if isinstance(values, Mapping) else values
    return number(*mean_and_error(numbers), digits) if numbers else missing


def mean_cells(lists: Iterable[Sequence[float]], most_digits: int = 4) -> list[str]:
    """Return mean ± standard error of each list of numbers, all with the same decimals."""
    cells = [mean_or_none(values) for values in lists]
    digits = min(decimals_for(*zip(*cells, strict=True)), most_digits)
    return [number(mean, error, digits) for mean, error in cells]


def column_cells(
    runs: Runs, part: str, arms: Sequence[str], column: Column, most_digits: int = 4
) -> list[str]:
    """Return a column of a table, a cell per arm; per cents have two decimals at most."""
    most_digits = 2 if column.factor == 100 else most_digits
    return mean_cells([column.values(runs, part, arm) for arm in arms], most_digits)


def count_seeds(runs: Runs, part: str, arms: Iterable[str] | None = None) -> str:
    """Return the number of seeds of the arms, such as "3" or "2 to 5"; by default of all arms."""
    counts = {len(runs.of(part, arm)) for arm in (runs.arms(part) if arms is None else arms)}
    return " to ".join(map(str, sorted(counts)))


def by_seed(rows: Sequence[Mapping[int, float]], seeds: Sequence[int]) -> np.ndarray:
    """Return numbers of several arms as an array (arms, seeds); NaN where one is missing."""
    return np.array([[values.get(seed, np.nan) for seed in seeds] for values in rows])


def seeds_of(runs: Runs, part: str, arms: Iterable[str]) -> list[int]:
    """Return the seeds of any of the arms, sorted."""
    return sorted({cell.seed for arm in arms for cell in runs.of(part, arm)})


def compare_published(
    published: Mapping[str, Mapping[str, NamedTuple]],
    tolerances: Mapping[str, float],
    columns_of: Callable[[str], Mapping[str, Column]],
    values: Callable[[Column, str, str], Sequence[float]],
) -> list[Comparison]:
    """Return published numbers beside ours, those whose field has a tolerance.

    Args:
        published: lines by part and name; the spread of a field is the field with `_spread`.
        columns_of: the columns of a part, by title. values: ours in a column, a part and a line.
    """
    return [
        _comparison(f"{line}, {part}", column, row, values(column, part, line), tolerances)
        for part, lines in published.items()
        for line, row in lines.items()
        for column in columns_of(part).values()
        if column.field in tolerances
    ]


def _comparison(
    label: str,
    column: Column,
    row: NamedTuple,
    ours: Sequence[float],
    tolerances: Mapping[str, float],
) -> Comparison:
    mean, error = mean_or_none(ours)
    higher = column.metric == "accuracy" or column.metric.startswith("aupr")
    unit = "nats × 100" if column.metric == "mutual_information" else "%"
    return Comparison(
        label=f"{label}, {column.field.replace('_', ' ')}",
        paper=getattr(row, column.field),
        paper_spread=getattr(row, f"{column.field}_spread", None),
        ours=mean,
        standard_error=error,
        tolerance=tolerances[column.field],
        unit=unit if column.factor == 100 else "",
        direction="up" if higher else "down",
    )


def interval_text(gap: Difference, digits: int = 3, factor: float = 1, sign: str = "+") -> str:
    """Return a difference with its 95 % interval, where it has one.

    >>> interval_text(Difference(-0.1, 0.02, 5, -0.15, -0.05), digits=2)
    '−0.10 [−0.15, −0.05]'
    """
    form = f"{sign}.{digits}f"
    text = f"{factor * gap.mean:{form}}"
    if gap.low is not None and gap.high is not None:
        text += f" [{factor * gap.low:{form}}, {factor * gap.high:{form}}]"
    return text.replace("-", "−")


def ratio_text(log_ratio: Difference | None, digits: int, unit: str = "") -> str:
    """Return a ratio with its 95 % interval from the difference of logarithms.

    >>> ratio_text(Difference(0.0, 0.1, 5, -0.3, 0.3), 2, " times")
    '1.00 times [0.74, 1.35]'
    """
    if log_ratio is None:
        return "n/a"
    text = f"{math.exp(log_ratio.mean):.{digits}f}{unit}"
    if log_ratio.low is None or log_ratio.high is None:
        return text
    return f"{text} [{math.exp(log_ratio.low):.{digits}f}, {math.exp(log_ratio.high):.{digits}f}]"


def marked_interval(gap: Difference | None, mark: str, digits: int = 3, factor: float = 1) -> str:
    """Return a difference with its interval, and a mark if the interval leaves out zero."""
    return "n/a" if gap is None else interval_text(gap, digits, factor) + mark * gap.clear


def difference_text(
    gap: Difference | None, what: str, over: str = "seeds", digits: int = 3, factor: float = 1
) -> str:
    """Return a difference with its interval and the number of its pairs, for a claim.

    >>> difference_text(Difference(-0.1, 0.02, 5, -0.15, -0.05), "NLL")
    'NLL: −0.100 [−0.150, −0.050], 5 seeds'
    """
    if gap is None:
        return f"{what}: not run"
    pairs = over.removesuffix("s") if gap.n == 1 else over
    return f"{what}: {interval_text(gap, digits, factor)}, {gap.n} {pairs}"


def judge_interval(
    gap: Difference | None,
    holds: Callable[[float, float], bool],
    refuted: Callable[[float, float], bool],
) -> str:
    """Return the verdict on a claim by conditions on the ends of a 95 % interval."""
    if gap is None:
        return "not run"
    if gap.low is None or gap.high is None:
        return "undecided"
    if holds(gap.low, gap.high):
        return "holds"
    return "does not hold" if refuted(gap.low, gap.high) else "undecided"


def judge_sign(gap: Difference | None, *, sign: int) -> str:
    """Return the verdict on the sign of a difference: its 95 % interval must exclude 0.

    Args:
        gap: paired over seeds; None where there was none.
        sign: 1 where the claim is that it is positive, −1 negative.
    """
    return judge_interval(
        gap,
        lambda low, high: min(sign * low, sign * high) > 0,
        lambda low, high: max(sign * low, sign * high) < 0,
    )


def judge_equal(gap: Difference | None, margin: float) -> str:
    """Return the verdict on "the same within a margin": where the interval lies.

    >>> judge_equal(Difference(0.001, 0.002, 4, -0.005, 0.007), 0.01)
    'holds'
    """
    return judge_interval(
        gap,
        lambda low, high: max(-low, high) <= margin,
        lambda low, high: low > margin or high < -margin,
    )


def judge_not_below(gap: Difference | None, margin: float, refuted_below: float) -> str:
    """Return the verdict on "level or ahead": the interval lies above −margin.

    >>> judge_not_below(Difference(0.001, 0.002, 4, -0.005, 0.007), 0.01, -0.01)
    'holds'
    """
    return judge_interval(
        gap, lambda low, high: low > -margin, lambda low, high: high < refuted_below
    )
