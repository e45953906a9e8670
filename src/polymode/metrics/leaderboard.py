"""The leaderboard: methods against metrics, with spread, ties, differences and cost.

Built by `compare`. The data sets of columns are those of the results, and means over several:
"shift:mean" over all shifts, "ood:mean:near" and "ood:mean:far" over OOD sets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from polymode.core.html import html_block, html_table
from polymode.core.registry import suggest
from polymode.metrics.by_image import ByImage, difference_by_image
from polymode.metrics.paired import Difference, paired
from polymode.metrics.results import EXAMINED, Results, is_headline
from polymode.metrics.score import ARROWS
from polymode.metrics.text_table import align, decimals_for, number

SHIFT_MEAN = "shift:mean"
OOD_MEANS = {"near": "ood:mean:near", "far": "ood:mean:far"}
BEST, TIED, UNTESTED = "*", "≈", "?"
GUESS = "!"  # in the place of another mark: worse than a guess
FEWEST_SEEDS = 3  # to say that two entries are near to each other
FRONT = "◆"  # no entry beats it in NLL and both times at once


class Entry(NamedTuple):
    """One line of the leaderboard: results that differ only in the seed."""

    label: str
    results: tuple[Results, ...]

    @property
    def method(self) -> str:
        return self.results[0].method

    @property
    def seeds(self) -> list[int]:
        return [results.seed for results in self.results]


class Column(NamedTuple):
    """One metric on one data set; `n` is the smallest number of examples of any entry."""

    dataset: str
    metric: str
    title: str
    unit: str
    direction: str
    n: int


class Cell(NamedTuple):
    """Mean over `n` seeds, None with a `note` where it does not apply.

    Attributes:
        standard_error: over seeds, None for one seed.
        best: of its column.
        tied: not significantly worse than the best by a paired t-test over shared seeds, or over
            images (see `Leaderboard.difference`); Holm's correction over the column, 95 %.
        untested: shares too few seeds with the best to tell: fewer than two, or fewer than three
            where the test does not separate them.
        example_error: for a single seed, the standard error over examples where it is known.
    """

    mean: float | None
    standard_error: float | None
    n: int
    best: bool = False
    note: str = ""
    tied: bool = False
    untested: bool = False
    example_error: float | None = None

    @property
    def error(self) -> float | None:
        """The error shown after ±: over seeds, or for one seed over examples."""
        return self.example_error if self.standard_error is None else self.standard_error

    @property
    def sign(self) -> str:
        """The mark of the best, of the tied and of the untested."""
        return BEST if self.best else TIED if self.tied else UNTESTED if self.untested else ""


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

    def groups(self, *, full: bool = False) -> dict[str, list[Column]]:
        """Return the columns by data set: test, means over shifts and OOD sets, OOD sets.

        Args:
            full: every metric, and the examinations; by default only headline metrics that score.
        """
        groups: dict[str, list[Column]] = {}
        for column in self.columns:
            one_shift = column.dataset.startswith(("shift:", "val:")) and (
                column.dataset != SHIFT_MEAN
            )
            headline = column.direction and is_headline(column.metric)
            is_shown = full or (headline and not column.dataset.startswith(EXAMINED))
            if is_shown and not one_shift:
                groups.setdefault(column.dataset, []).append(column)
        return groups

    def difference(
        self, first: str, second: str, metric: str = "nll", dataset: str = "test"
    ) -> Difference | None:
        """Return first − second, paired by seed; None if no seed has both values.

        Of maps with fewer than two shared seeds, it is paired by image, with the error over images:
        it is then about these two posteriors, not about their methods, and `n` counts images.
        """
        ours, theirs = self._by_seed(first, dataset, metric), self._by_seed(second, dataset, metric)
        shared = [seed for seed in ours if seed in theirs]
        if len(shared) == 1 and first != second:
            images = [self._images(label, shared[0], dataset) for label in (first, second)]
            gap = difference_by_image(images[0], images[1], metric)
            if gap is not None:
                return gap
        return paired([ours[seed] - theirs[seed] for seed in shared])

    def _images(self, label: str, seed: int, dataset: str) -> ByImage:
        every = {results.seed: results.by_image for results in self._entry(label).results}
        return every[seed].get(dataset, {})

    def _by_seed(self, label: str, dataset: str, metric: str) -> dict[int, float]:
        values = {r.seed: value_of(r, dataset, metric) for r in self._entry(label).results}
        return {seed: value for seed, value in values.items() if value is not None}

    def _entry(self, label: str) -> Entry:
        for entry in self.entries:
            if entry.label == label:
                return entry
        raise KeyError(f"no entry '{label}' on this leaderboard.{suggest(label, self.labels)}")

    def pareto(self, metric: str = "nll", dataset: str = "test") -> list[str]:
        """Return the entries on the Pareto front of the metric and both times.

        An entry is off the front if another is at least as good in mean score, training time and
        prediction time, and better in one. Entries without a score or a training time are left out.

        Traps: times are measured, so entries of nearly equal cost swap places between runs.
        """
        direction = next(c.direction for c in self.columns if c[:2] == (dataset, metric))
        sign = -1.0 if direction == "up" else 1.0
        points: dict[str, tuple[float, float, float]] = {}
        for entry in self.entries:
            mean, cost = self.cells[entry.label, dataset, metric].mean, costs(entry)
            if mean is not None and cost["train_seconds"] is not None:
                points[entry.label] = (sign * mean, cost["train_seconds"], cost["predict_ms"])
        return [
            label
            for label, point in points.items()
            if not any(
                rival != point and all(a <= b for a, b in zip(rival, point, strict=True))
                for rival in points.values()
            )
        ]

    def table(self, *, full: bool = False) -> str:
        """Return the leaderboard as text; arrows point to better.

        Args:
            full: every metric, including those that only describe.
        """
        many = max(len(entry.results) for entry in self.entries)
        seeds = f"{many} seeds" if many > 1 else "1 seed"
        marks = [f"{sign} {meaning}" for sign, meaning in self.legend().items()]
        head = f"{self.task}, {seeds}: {self.spread}\n{', '.join(marks)}".rstrip()
        groups = self.groups(full=full).items()
        blocks = [self._block(name, part) for name, columns in groups for part in _fives(columns)]
        return "\n\n".join([head, *blocks, self._costs()])

    @property
    def spread(self) -> str:
        """What ± means in tables of this leaderboard."""
        counts = {len(entry.results) for entry in self.entries}
        if counts == {1}:
            return "value ± s.e. over examples"
        return "mean ± s.e. over seeds" + (", of one seed over examples" if 1 in counts else "")

    def legend(self) -> dict[str, str]:
        """Return the marks that occur, with their meanings; the same in every table."""
        meanings = {
            BEST: "best",
            TIED: "not clearly worse",
            UNTESTED: f"too few seeds (fewer than {FEWEST_SEEDS} shared)",
            GUESS: "worse than a guess",
        }
        signs = {self.sign(key) for key in self.cells}
        return {sign: meaning for sign, meaning in meanings.items() if sign in signs}

    def sign(self, key: tuple[str, str, str]) -> str:
        """Return the mark of a cell: that it is worse than a guess, or else `Cell.sign`."""
        cell, level = self.cells[key], self._guesses.get(key[2])
        if cell.mean is None or level is None:
            return cell.sign
        return GUESS if worse_than_guess(cell.mean, *level) else cell.sign

    def guesses(self) -> dict[str, float]:
        """Return what a guess reaches, by metric, for the metrics where it is known.

        OOD scores: an AUROC of 0.5, an FPR95 of 0.95. Scores of classes: those of equal
        probabilities for all C classes, an accuracy of 1 / C, an NLL of log C and a Brier score of
        1 − 1 / C.
        """
        return {metric: level for metric, (level, _) in self._guesses.items()}

    @cached_property
    def _guesses(self) -> dict[str, tuple[float, str]]:
        directions = {column.metric: column.direction for column in self.columns}
        levels = {name: 0.5 for name in directions if name.startswith("auroc_")}
        levels |= {name: 0.95 for name in directions if name.startswith("fpr95_")}
        count = self._num_classes()
        if count > 1 and "accuracy" in directions:
            levels |= {"accuracy": 1 / count, "nll": math.log(count), "brier": 1 - 1 / count}
        return {
            name: (level, directions[name]) for name, level in levels.items() if name in directions
        }

    def _num_classes(self) -> int:
        """Return the number of classes, 0 where results do not say."""
        first = self.entries[0].results[0]
        if first.class_names:
            return len(first.class_names)
        return int(first.kept["test"].prediction.mean.shape[-1]) if "test" in first.kept else 0

    def _repr_html_(self) -> str:
        """Return the headline columns as tables, for notebooks."""
        tables = []
        for name, columns in self.groups().items():
            head, *lines = ([cell.strip() for cell in line] for line in self._lines(name, columns))
            marked = {
                (row, place)
                for row, line in enumerate(lines)
                for place, text in enumerate(line)
                if place and text.endswith((BEST, TIED))
            }
            tables.append(html_table(head, lines, bold=marked))
        marks = [f"{sign} {meaning}" for sign, meaning in self.legend().items()]
        note = "; ".join([self.spread.capitalize(), *marks, "arrows point to better."])
        return html_block(f"Leaderboard: {self.task}", *tables, note=note)

    def _block(self, group: str, columns: list[Column]) -> str:
        lines = self._lines(group, columns)
        return align(lines[0], lines[1:])

    def _lines(self, group: str, columns: list[Column]) -> list[tuple[str, ...]]:
        """Return the headings and one line per entry."""
        texts = []
        for column in columns:
            cells = [self.cells[label, column.dataset, column.metric] for label in self.labels]
            digits = digits_for(cells)
            numbers = [number(cell.mean, cell.error, digits) for cell in cells]
            signs = [self.sign((label, column.dataset, column.metric)) for label in self.labels]
            marked = [text + (sign or " ") for text, sign in zip(numbers, signs, strict=True)]
            heading = f"{column.title} {ARROWS[column.direction]}".rstrip() + " "
            texts.append([heading, *marked])
        names = [group_title(group, self), *(f"  {label}" for label in self.labels)]
        return list(zip(names, *texts, strict=True))

    def _costs(self) -> str:
        ranked = any(column[:2] == ("test", "nll") for column in self.columns)
        front = self.pareto() if ranked else []
        first = f"cost ({FRONT} Pareto)" if front else "cost"
        times = ["train s", "predict ms/1,000"]
        header = [first, "seeds", *times, "modes", "samples", "params", "MB"]
        lines = []
        for entry in self.entries:
            cost = costs(entry)
            train = number(cost["train_seconds"], None, 1)
            predict = f"{cost['predict_ms']:,.1f}"
            sizes = [f"{cost[key]:,}" for key in ("num_modes", "num_samples", "parameters")]
            memory = number(cost["memory_mb"], None, 1)
            name = f"{FRONT if entry.label in front else ' '} {entry.label}"
            lines.append([name, str(len(entry.results)), train, predict, *sizes, memory])
        return align(header, lines)

    def to_json(self) -> str:
        """Return cells, costs and the Pareto front as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Return cells, costs and the Pareto front by test NLL, JSON-safe."""
        facts = {column[:2]: column for column in self.columns}
        cells = [
            {
                "entry": entry,
                "dataset": dataset,
                "metric": metric,
                **cell._asdict(),
                "unit": facts[dataset, metric].unit,
                "direction": facts[dataset, metric].direction,
                "examples": facts[dataset, metric].n,
            }
            for (entry, dataset, metric), cell in self.cells.items()
        ]
        ranked = any(column[:2] == ("test", "nll") for column in self.columns)
        return {
            "task": self.task,
            "seeds": {entry.label: entry.seeds for entry in self.entries},
            "costs": {entry.label: costs(entry) for entry in self.entries},
            "pareto": self.pareto() if ranked else [],
            "cells": cells,
        }

    def __repr__(self) -> str:
        entries = ", ".join(f"{entry.label} × {len(entry.results)}" for entry in self.entries)
        return f"Leaderboard({self.task}: {entries}; {len(self.columns)} columns)"


def worse_than_guess(value: float, level: float, direction: str) -> bool:
    """Return whether a number is on the wrong side of what a guess reaches."""
    return value < level if direction == "up" else value > level


def digits_for(cells: Iterable[Cell]) -> int:
    """Return the decimals that the cells of one column need."""
    return decimals_for(*zip(*((cell.mean, cell.error) for cell in cells), strict=True))


def _fives(columns: list[Column]) -> Iterable[list[Column]]:
    """Yield the columns in parts that fit a terminal."""
    for start in range(0, len(columns), 5):
        yield columns[start : start + 5]


def costs(entry: Entry) -> dict[str, Any]:
    """Return the entry's cost: times averaged over seeds, sizes of the first seed."""
    every = [results.cost for results in entry.results]
    trained = [cost.train_seconds for cost in every if cost.train_seconds is not None]
    rates = [cost.predict_seconds / max(cost.predict_examples, 1) for cost in every]
    held = every[0].memory_bytes
    return {
        "train_seconds": sum(trained) / len(trained) if trained else None,
        "predict_ms": 1e6 * sum(rates) / len(rates),
        "num_modes": every[0].num_modes,
        "num_samples": every[0].num_samples,
        "parameters": every[0].parameters,
        "memory_mb": None if held is None else held / 1e6,
    }


def group_title(group: str, board: Leaderboard) -> str:
    """Return the heading of a group of columns: which data, how many examples."""
    results = board.entries[0].results[0]
    if group == SHIFT_MEAN or group in OOD_MEANS.values():
        what = "shifts" if group == SHIFT_MEAN else f"{group.rsplit(':', 1)[1]} OOD sets"
        return f"{what} (mean of {len(datasets_of(results, group))})"
    if group.startswith(EXAMINED):
        return group.removeprefix(EXAMINED)
    count = min(column.n for column in board.columns if column.dataset == group)
    name = group
    if group.startswith("ood:"):
        place = "near OOD" if group.removeprefix("ood:") in results.near_ood else "far OOD"
        name = f"{group.removeprefix('ood:')} ({place})"
    return f"{name}, n = {count:,}"


def datasets_of(results: Results, dataset: str) -> list[str]:
    """Return the data sets behind a column's name: itself, or those of a mean."""
    if dataset == SHIFT_MEAN:
        return [name for name in results.datasets if name.startswith("shift:")]
    for place, mean in OOD_MEANS.items():
        if dataset == mean:
            outside = [name for name in results.datasets if name.startswith("ood:")]
            near = {f"ood:{name}" for name in results.near_ood}
            return [name for name in outside if (name in near) == (place == "near")]
    return [dataset]


def value_of(results: Results, dataset: str, metric: str) -> float | None:
    """Return one number of one result; a mean over data sets only if all have a value."""
    rows = [results.get(name, metric) for name in datasets_of(results, dataset)]
    values = [row.value for row in rows if row is not None and row.value is not None]
    return sum(values) / len(rows) if rows and len(values) == len(rows) else None
