r"""`compare`: several results on one task as a leaderboard.

Results of one method, network and options are one entry; its seeds give mean and standard error,
:math:`s / \sqrt n` with ddof 1. Two entries are compared by their paired differences over the seeds
that they share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from polymode.metrics.results import Results, title_of
from polymode.metrics.score import ARROWS
from polymode.metrics.table import align, decimals_for, number

SHIFT_MEAN = "shift:mean"  # mean over all shifts and severities of one result


class Entry(NamedTuple):
    """One line of the leaderboard: results that differ in the seed only."""

    label: str
    results: tuple[Results, ...]

    @property
    def method(self) -> str:
        return self.results[0].method

    @property
    def seeds(self) -> list[int]:
        return [results.seed for results in self.results]


class Column(NamedTuple):
    """One metric on one data set; `n` examples, the fewest of any entry."""

    dataset: str
    metric: str
    title: str
    unit: str
    direction: str
    n: int


class Cell(NamedTuple):
    """Mean over `n` seeds, None with a `note` where it does not apply; `best` of its column."""

    mean: float | None
    standard_error: float | None
    n: int
    best: bool = False
    note: str = ""


class Difference(NamedTuple):
    """Paired difference of two entries over `n` shared seeds, with its 95 % t-interval."""

    mean: float
    standard_error: float | None
    n: int
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero; False while there is no interval."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


@dataclass(frozen=True)
class Leaderboard:
    """Methods against metrics, made by `compare`.

    `board["deep_ensemble", "test", "nll"]` is a `Cell`; "shift:mean" is the mean over all shifts.
    """

    task: str
    entries: tuple[Entry, ...]
    columns: tuple[Column, ...]
    cells: dict[tuple[str, str, str], Cell]

    def __getitem__(self, key: tuple[str, str, str]) -> Cell:
        return self.cells[key]

    @property
    def labels(self) -> list[str]:
        return [entry.label for entry in self.entries]

    @property
    def seeds(self) -> list[int]:
        """All seeds of any entry, in order."""
        return sorted({seed for entry in self.entries for seed in entry.seeds})

    def groups(self) -> dict[str, list[Column]]:
        """Return the scoring columns that belong side by side: test, mean shift, each OOD set."""
        groups: dict[str, list[Column]] = {}
        for column in self.columns:
            single_shift = column.dataset.startswith("shift:") and column.dataset != SHIFT_MEAN
            if column.direction and not single_shift:
                groups.setdefault(column.dataset, []).append(column)
        return groups

    def difference(
        self, first: str, second: str, metric: str = "nll", dataset: str = "test"
    ) -> Difference | None:
        """Return first − second, paired by seed; None where they share no seed with a value."""
        values = [
            {results.seed: _value(results, dataset, metric) for results in entry.results}
            for label in (first, second)
            for entry in self.entries
            if entry.label == label
        ]
        gaps = [
            here - there
            for seed in values[0]
            if (here := values[0][seed]) is not None and (there := values[1].get(seed)) is not None
        ]
        if not gaps:
            return None
        mean, error = _mean(gaps)
        if error is None:
            return Difference(mean, None, len(gaps), None, None)
        from scipy.special import stdtrit

        reach = float(stdtrit(len(gaps) - 1, 0.975)) * error
        return Difference(mean, error, len(gaps), mean - reach, mean + reach)

    def table(self) -> str:
        """Return the leaderboard as text; `*` is the best of a column, arrows point to better."""
        many = max(len(entry.results) for entry in self.entries)
        seeds = f"{many} seeds" if many > 1 else "1 seed"
        head = f"{self.task}, {seeds}: mean ± s.e. over seeds, * best"
        return "\n\n".join([head, *map(self._block, self.groups()), self._costs()])

    def _block(self, group: str) -> str:
        columns = self.groups()[group]
        texts = []
        for column in columns:
            cells = [self.cells[label, column.dataset, column.metric] for label in self.labels]
            digits = decimals_for(*zip(*(cell[:2] for cell in cells), strict=True))
            shown = [
                number(cell.mean, cell.standard_error, digits) + ("*" if cell.best else " ")
                for cell in cells
            ]
            heading = f"{column.title} {ARROWS[column.direction]}".rstrip() + " "
            texts.append([heading, *shown])
        names = [group_title(group, self), *(f"  {label}" for label in self.labels)]
        lines = list(zip(names, *texts, strict=True))
        return align(lines[0], lines[1:])

    def _costs(self) -> str:
        header = ["cost", "seeds", "train s", "predict ms/1,000", "networks", "parameters"]
        lines = []
        for entry in self.entries:
            cost = costs(entry)
            train = number(cost["train_seconds"], None, 1)
            predict = f"{cost['predict_ms']:,.1f}"
            sizes = [f"{cost['num_modes']:,}", f"{cost['parameters']:,}"]
            lines.append([f"  {entry.label}", str(len(entry.results)), train, predict, *sizes])
        return align(header, lines)

    def to_json(self) -> str:
        """Return the cells as JSON, one object a cell."""
        cells = [
            {"entry": entry, "dataset": dataset, "metric": metric, **cell._asdict()}
            for (entry, dataset, metric), cell in self.cells.items()
        ]
        return json.dumps({"task": self.task, "cells": cells}, allow_nan=False)

    def __repr__(self) -> str:
        entries = ", ".join(f"{entry.label} × {len(entry.results)}" for entry in self.entries)
        return f"Leaderboard({self.task}: {entries}; {len(self.columns)} columns)"


def compare(results: Sequence[Results]) -> Leaderboard:
    """Return the leaderboard of results on one task, entries in the order in which they come."""
    results = list(results)
    if not results:
        raise ValueError("there is nothing to compare: 0 results")
    tasks = list(dict.fromkeys(each.task for each in results))
    if len(tasks) > 1:
        raise ValueError(f"results of one task can be compared, got {', '.join(tasks)}")
    entries = _entries(results)
    columns = _columns(results)
    cells: dict[tuple[str, str, str], Cell] = {}
    for column in columns:
        found = {entry.label: _cell(entry, column) for entry in entries}
        means = [cell.mean for cell in found.values() if cell.mean is not None]
        best = None
        if column.direction and len(means) > 1:
            best = max(means) if column.direction == "up" else min(means)
        for label, cell in found.items():
            is_best = best is not None and cell.mean == best
            cells[label, column.dataset, column.metric] = cell._replace(best=is_best)
    return Leaderboard(tasks[0], tuple(entries), tuple(columns), cells)


def costs(entry: Entry) -> dict[str, Any]:
    """Return the entry's cost: means over seeds of the times, sizes of the first seed."""
    every = [results.cost for results in entry.results]
    trained = [cost.train_seconds for cost in every if cost.train_seconds is not None]
    rates = [cost.predict_seconds / max(cost.predict_examples, 1) for cost in every]
    return {
        "train_seconds": sum(trained) / len(trained) if trained else None,
        "predict_ms": 1e6 * sum(rates) / len(rates),
        "num_modes": every[0].num_modes,
        "parameters": every[0].parameters,
    }


def group_title(group: str, board: Leaderboard) -> str:
    """Return the heading of a group of columns: which data, how many examples."""
    if group == SHIFT_MEAN:
        sets = {c.dataset for c in board.columns if c.dataset.startswith("shift:")} - {SHIFT_MEAN}
        return f"shifts (mean of {len(sets)})"
    count = min(column.n for column in board.columns if column.dataset == group)
    return f"{group.removeprefix('ood:') + ' (OOD)' if group != 'test' else group}, n = {count:,}"


def _entries(results: list[Results]) -> list[Entry]:
    """Group results that differ in the seed only, and name the groups."""
    groups: dict[str, list[Results]] = {}
    for each in results:
        groups.setdefault(json.dumps(_setup(each), sort_keys=True), []).append(each)
    setups = {key: _setup(group[0]) for key, group in groups.items()}
    entries = []
    for key, group in groups.items():
        seeds = [each.seed for each in group]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{group[0].method} has results of one seed twice: seeds {seeds}")
        alike = [s for s in setups.values() if s["method"] == group[0].method]
        differing = [k for k in setups[key] if len({json.dumps(s.get(k)) for s in alike}) > 1]
        options = ", ".join(f"{name}={setups[key][name]}" for name in differing)
        label = group[0].method + (f" ({options})" if options else "")
        entries.append(Entry(label, tuple(sorted(group, key=lambda each: each.seed))))
    return entries


def _setup(results: Results) -> dict[str, Any]:
    return {"method": results.method, "net": results.net, **results.config}


def _columns(results: list[Results]) -> list[Column]:
    """Return the columns by data set, the mean of the shifts behind the test set."""
    found: dict[tuple[str, str], Column] = {}
    shifted: dict[str, Column] = {}
    for each in results:
        for row in each.rows:
            key = (row.dataset, row.metric)
            title = title_of(row.metric)
            column = Column(*key, title, row.unit, row.direction, row.n)
            found[key] = found[key]._replace(n=min(found[key].n, row.n)) if key in found else column
            if row.dataset.startswith("shift:"):
                shifted.setdefault(row.metric, column._replace(dataset=SHIFT_MEAN))
    test = [column for column in found.values() if column.dataset == "test"]
    rest = [column for column in found.values() if column.dataset != "test"]
    return [*test, *shifted.values(), *rest]


def _value(results: Results, dataset: str, metric: str) -> float | None:
    """Return one number of one result; the mean over all shifts only where all have it."""
    values = [
        row.value
        for row in results.rows
        if row.metric == metric
        and (row.dataset.startswith("shift:") if dataset == SHIFT_MEAN else row.dataset == dataset)
    ]
    if not values or any(value is None for value in values):
        return None
    return math.fsum(value for value in values if value is not None) / len(values)


def _cell(entry: Entry, column: Column) -> Cell:
    """Return the mean over the entry's seeds; n/a if any seed has no value."""
    values = [_value(each, column.dataset, column.metric) for each in entry.results]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        notes = [
            row.note
            for each in entry.results
            for row in each.rows
            if row.metric == column.metric and row.note
        ]
        return Cell(None, None, len(known), note=notes[0] if notes else "n/a (not evaluated)")
    return Cell(*_mean(known), len(known))


def _mean(values: list[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error with ddof 1, None for one value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1) / len(values))
