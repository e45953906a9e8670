"""The tables of a report: methods as rows, or as columns where there is more to say of each.

A table knows nothing of HTML. Its numbers are those of the leaderboard, with the same digits as in
the terminal; what is n/a points to a note below the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from polymode.examinations import EXAMINATIONS
from polymode.metrics.leaderboard import (
    BEST,
    OOD_MEANS,
    SHIFT_MEAN,
    TIED,
    UNTESTED,
    Cell,
    Column,
    Entry,
    Leaderboard,
    costs,
    digits_for,
    group_title,
    worse_than_guess,
)
from polymode.metrics.paired import mean_and_error
from polymode.metrics.results import EXAMINED, family_of, is_headline
from polymode.metrics.score import ARROWS
from polymode.metrics.text_table import number
from polymode.plots import palette

WIDEST = 10  # columns; a table of more has its metrics as rows
SHAPES = {
    "o": "round",
    "s": "square",
    "^": "up",
    "D": "diamond",
    "v": "down",
    "P": "plus",
    "X": "cross",
}
"""What the page's style calls the marker that a method has in figures."""
MARKS = {BEST: "best", TIED: "tied", UNTESTED: "untested", "": ""}
"""How the page's style calls the marks of a leaderboard."""
CHANCE = "chance"  # of the best of a column that is worse than a guess
NARROW = 3  # columns of a table that is no wider than it must be
JOINED = 12  # columns of tables that stand side by side
SHIFTED = ("accuracy", "rmse", "nll", "ece")  # what the leaderboard shows of shifts


class Head(NamedTuple):
    """What a column holds; `metric` leads to the glossary, "" for what is not there."""

    title: str
    arrow: str = ""
    unit: str = ""
    metric: str = ""


NO_TOPIC = Head("")


class Written(NamedTuple):
    """One number as it is written; `value` is what it is sorted by, `note` counts from 1."""

    text: str
    error: str = ""
    value: float | None = None
    mark: str = ""
    note: int = 0


class Line(NamedTuple):
    """One method: its label in two parts, how it looks, its place among the configurations.

    `front` says whether it is marked as part of the Pareto front.
    """

    label: str
    name: str
    detail: str
    color: str
    shape: str
    place: int
    cells: list[Written]
    front: bool = False


class Table(NamedTuple):
    """A heading, columns with the groups that span them, a line per method, and notes.

    `topic` is the metric that all columns are of, where they are of one.
    """

    title: str
    heads: list[Head]
    lines: list[Line]
    notes: list[str]
    topic: Head = NO_TOPIC
    groups: list[tuple[Head, int]] = []
    sorted_by: int = -1

    @property
    def turned(self) -> bool:
        """Whether methods are better columns than rows."""
        return not self.groups and len(self.heads) > WIDEST

    @property
    def narrow(self) -> bool:
        """Whether a row holds so little that it should not span the page."""
        return len(self.lines if self.turned else self.heads) <= NARROW

    @property
    def marks(self) -> set[str]:
        """The marks that need a word of explanation."""
        marks = {cell.mark for line in self.lines for cell in line.cells if cell.mark}
        return marks | ({"pareto"} if any(line.front for line in self.lines) else set())


def ranked(board: Leaderboard) -> list[str]:
    """Return the labels by test NLL, lowest first, and at the end those that have none."""
    cells = {label: board.cells.get((label, "test", "nll")) for label in board.labels}
    nll = {label: cell.mean for label, cell in cells.items() if cell and cell.mean is not None}
    without = [label for label in board.labels if label not in nll]
    return [*sorted(nll, key=lambda label: nll[label]), *without]


def leaderboard(board: Leaderboard) -> Table:
    """Return the table that comes first: headlines of the test set, shifts, OOD sets, and cost."""
    parts: list[tuple[str, list[Column]]] = []
    for dataset in ["test", SHIFT_MEAN, *ood_summary(board)]:
        columns = [c for c in board.columns if c.dataset == dataset and _in_front(c)]
        if columns:
            parts.append((group_title(dataset, board), columns))
    columns = [column for _, part in parts for column in part]
    scores = table(board, "Leaderboard", [(_head(c), _cells_of(board, c)) for c in columns])
    heads, times = _cost_columns(board)
    front = board.pareto() if ("test", "nll") in {c[:2] for c in board.columns} else []
    lines = [
        line._replace(cells=[*line.cells, *times[line.label]], front=line.label in front)
        for line in scores.lines
    ]
    place = next((i for i, c in enumerate(columns) if c[:2] == ("test", "nll")), -1)
    titles = [(title.replace("n = ", "n\u00a0=\u00a0"), len(part)) for title, part in parts]
    groups = [*((Head(title), span) for title, span in titles), (Head("cost"), len(heads))]
    return scores._replace(heads=scores.heads + heads, lines=lines, groups=groups, sorted_by=place)


def _in_front(column: Column) -> bool:
    if not is_headline(column.metric):
        return False
    family = family_of(column.metric)
    if column.dataset == "test":
        return bool(column.direction) or family == "intervals"
    if column.dataset == SHIFT_MEAN:
        return column.metric in SHIFTED
    return family == "ood" and column.direction == "up"


def ood_summary(board: Leaderboard) -> list[str]:
    """Return one data set each for near and far: the mean over them, or the only one there is."""
    datasets = list(dict.fromkeys(column.dataset for column in board.columns))
    summary = [mean for mean in OOD_MEANS.values() if mean in datasets]
    for name in ood_sets(board):
        near = name.removeprefix("ood:") in board.entries[0].results[0].near_ood
        if OOD_MEANS["near" if near else "far"] not in datasets:
            summary.append(name)
    return summary


def ood_sets(board: Leaderboard) -> list[str]:
    """Return the OOD sets, near ones first."""
    near = board.entries[0].results[0].near_ood
    names = dict.fromkeys(c.dataset for c in board.columns if c.dataset.startswith("ood:"))
    single = [name for name in names if name not in OOD_MEANS.values()]
    return sorted(single, key=lambda name: name.removeprefix("ood:") not in near)


def _cost_columns(board: Leaderboard) -> tuple[list[Head], dict[str, list[Written]]]:
    heads = [Head("train", "↓", "s"), Head("predict", "↓", "ms/1,000")]
    cells = {}
    for entry in board.entries:
        cost = costs(entry)
        cells[entry.label] = [
            Written(number(cost["train_seconds"], None, 1), "", cost["train_seconds"]),
            Written(f"{cost['predict_ms']:,.1f}", "", cost["predict_ms"]),
        ]
    return heads, cells


def sizes(board: Leaderboard) -> Table:
    """Return what each method costs: times and sizes."""
    heads = [
        Head("seeds"),
        Head("training", "↓", "seconds, mean"),
        Head("prediction", "↓", "ms / 1,000 inputs"),
        Head("modes", "", "networks trained"),
        Head("samples", "", "networks that predict"),
        Head("parameters", "", "all modes"),
        Head("memory", "↓", "MB, parameters and buffers"),
    ]

    def cells(entry: Entry) -> list[Written]:
        cost = costs(entry)
        return [
            Written(str(len(entry.results)), "", len(entry.results)),
            Written(number(cost["train_seconds"], None, 1), "", cost["train_seconds"]),
            Written(f"{cost['predict_ms']:,.1f}", "", cost["predict_ms"]),
            Written(f"{cost['num_modes']:,}", "", cost["num_modes"]),
            Written(f"{cost['num_samples']:,}", "", cost["num_samples"]),
            Written(f"{cost['parameters']:,}", "", cost["parameters"]),
            Written(number(cost["memory_mb"], None, 2), "", cost["memory_mb"]),
        ]

    return Table("Cost", heads, _lines(board, lambda label: cells(_entry(board, label))), [])


def of_family(board: Leaderboard, family: str, dataset: str) -> Table | None:
    """Return every metric of a family on one data set; None where there is none."""
    columns = [c for c in board.columns if c.dataset == dataset and family_of(c.metric) == family]
    columns = [c for c in columns if _has_values(board, c)]
    if not columns:
        return None
    parts = [(_head(c), _cells_of(board, c)) for c in columns]
    return table(board, group_title(dataset, board), parts)


def examinations(board: Leaderboard) -> list[Table]:
    """Return a table for each examination, with what it is."""
    tables = []
    for dataset, columns in board.groups(full=True).items():
        columns = [column for column in columns if _has_values(board, column)]
        if dataset.startswith(EXAMINED) and columns:
            label = dataset.removeprefix(EXAMINED)
            name = label.partition(":")[0]
            facts = EXAMINATIONS.get(name).metadata if name in EXAMINATIONS else {}
            title = f"{label}: {facts['summary']}" if "summary" in facts else label
            tables.append(table(board, title, [(_head(c), _cells_of(board, c)) for c in columns]))
    return tables


def joined(title: str, tables: Sequence[Table]) -> list[Table]:
    """Return tables of the same methods as one, their titles over their columns, if it is not wide.

    The first heading of each table names its metric.
    """
    if len(tables) < 2 or sum(len(part.heads) for part in tables) > JOINED:
        return list(tables)
    notes: list[str] = []
    lines = [line._replace(cells=[]) for line in tables[0].lines]
    for part in tables:
        notes += [note for note in part.notes if note not in notes]
        places = {0: 0} | {i: notes.index(note) + 1 for i, note in enumerate(part.notes, 1)}
        for line, part_line in zip(lines, part.lines, strict=True):
            line.cells.extend(cell._replace(note=places[cell.note]) for cell in part_line.cells)
    heads = [head for part in tables for head in part.heads]
    groups = [(part.topic, len(part.heads)) for part in tables]
    return [Table(title, heads, lines, notes, groups=groups)]


def of_metric(board: Leaderboard, metric: str, datasets: Sequence[str]) -> Table | None:
    """Return one metric with data sets as columns; None where no data set has it."""
    by_name = {column[:2]: column for column in board.columns}
    columns = [by_name[name, metric] for name in datasets if (name, metric) in by_name]
    columns = [column for column in columns if _has_values(board, column)]
    if not columns:
        return None
    titles = [_dataset_title(c.dataset, board).replace(" OOD)", ")") for c in columns]
    parts = [(Head(t), _cells_of(board, c)) for t, c in zip(titles, columns, strict=True)]
    return table(board, columns[0].title, parts, _head(columns[0]))


def of_shifts(board: Leaderboard, metric: str) -> Table | None:
    """Return one metric with a column per shift, each the mean over its severities."""
    groups: dict[str, list[Column]] = {}
    for column in board.columns:
        if column.metric == metric and column.dataset.count(":") == 2:
            if column.dataset.startswith("shift:"):
                groups.setdefault(column.dataset.split(":")[1], []).append(column)
    if not groups:
        return None
    parts = []
    for name, columns in groups.items():
        cells = {entry.label: _mean_cell(entry, columns) for entry in board.entries}
        parts.append((Head(name.replace("_", " ")), cells))
    first = next(iter(groups.values()))[0]
    return table(board, f"{first.title}, mean over severities", parts, _head(first))


def _mean_cell(entry: Entry, columns: Sequence[Column]) -> Cell:
    """Return the mean over data sets of each seed, then mean and standard error over seeds."""
    values = []
    for results in entry.results:
        rows = [results.get(column.dataset, column.metric) for column in columns]
        numbers = [row.value for row in rows if row is not None and row.value is not None]
        if len(numbers) < len(columns):
            return Cell(None, None, 0, note="n/a (not at every severity)")
        values.append(sum(numbers) / len(numbers))
    return Cell(*mean_and_error(values), len(values))


def table(
    board: Leaderboard,
    title: str,
    parts: Iterable[tuple[Head, dict[str, Cell]]],
    topic: Head = NO_TOPIC,
) -> Table:
    """Return a table of columns, each a heading and the cells by label."""
    heads: list[Head] = []
    columns: list[dict[str, Written]] = []
    notes: list[str] = []
    levels = board.guesses()
    for head, cells in parts:
        heads.append(head)
        about = head if head.metric else topic
        columns.append(_written(cells, notes, levels.get(about.metric), about.arrow))
    lines = _lines(board, lambda label: [column[label] for column in columns])
    return Table(title, heads, lines, notes, topic)


def _written(
    cells: dict[str, Cell], notes: list[str], chance: float | None, arrow: str
) -> dict[str, Written]:
    """Write the cells of one column with as many decimals as they need; adds to the notes.

    The best of a column is marked as such only if it is not worse than `chance`.
    """
    direction = "up" if arrow == ARROWS["up"] else "down"
    digits = digits_for(cells.values())
    written = {}
    for label, cell in cells.items():
        note = cell.note.removeprefix("n/a").strip(" ()")
        if note and note not in notes:
            notes.append(note)
        text, _, error = number(cell.mean, cell.error, digits).partition(" ± ")
        mark = MARKS[cell.sign]
        if mark == "best" and chance is not None and cell.mean is not None:
            mark = CHANCE if worse_than_guess(cell.mean, chance, direction) else mark
        place = notes.index(note) + 1 if note else 0
        written[label] = Written(text, error, cell.mean, mark, place)
    return written


def _lines(board: Leaderboard, cells: Callable[[str], list[Written]]) -> list[Line]:
    styles = palette(board.labels)
    lines = []
    for label in ranked(board):
        name = _entry(board, label).method
        detail = label.removeprefix(name).strip().removeprefix("(").removesuffix(")")
        place = board.labels.index(label) + 1
        color, marker = styles[label]
        lines.append(Line(label, name, detail, color, SHAPES[marker], place, cells(label)))
    return lines


def _entry(board: Leaderboard, label: str) -> Entry:
    return next(entry for entry in board.entries if entry.label == label)


def _cells_of(board: Leaderboard, column: Column) -> dict[str, Cell]:
    return {label: board[label, column.dataset, column.metric] for label in board.labels}


def _has_values(board: Leaderboard, column: Column) -> bool:
    return any(cell.mean is not None for cell in _cells_of(board, column).values())


def _head(column: Column) -> Head:
    return Head(column.title, ARROWS[column.direction], column.unit, column.metric)


def _dataset_title(dataset: str, board: Leaderboard) -> str:
    return group_title(dataset, board).split(", n =")[0]
