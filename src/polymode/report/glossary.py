"""What the metrics on a page mean: the text of tooltips and of the glossary."""

from __future__ import annotations

from typing import NamedTuple

from polymode.examinations import EXAMINATIONS
from polymode.metrics.leaderboard import Column, Leaderboard
from polymode.metrics.results import EXAMINED, family_of, title_of
from polymode.metrics.score import FAMILIES, TABLES
from polymode.report.embed import file_name

EXAMINED_FAMILY = "Examinations"
BETTER = {"up": "higher is better", "down": "lower is better", "": "describes, does not score"}


class Meaning(NamedTuple):
    """A metric in words; `anchor` is its place on the page."""

    anchor: str
    title: str
    unit: str
    better: str
    summary: str
    family: str


def glossary(board: Leaderboard) -> dict[str, Meaning]:
    """Return the meaning of every metric of a leaderboard, by name, families together."""
    columns = {column.metric: column for column in reversed(board.columns)}
    summaries: dict[str, str] = {}
    for table in sorted(TABLES.values(), key=lambda table: len(columns.keys() & table.names())):
        for name in table.names():  # of two tables that have it, the one that suits the board
            summaries[name] = str(table.get(name).metadata["summary"])
    for entry in map(EXAMINATIONS.get, EXAMINATIONS.names()):
        summaries = {**entry.metadata["measures"], **summaries}
    order = [*FAMILIES.values(), EXAMINED_FAMILY]
    families = {name: _family(column) for name, column in columns.items()}
    names = dict.fromkeys(column.metric for column in board.columns)
    meanings = {}
    for number, name in enumerate(sorted(names, key=lambda metric: order.index(families[metric]))):
        column = columns[name]
        summary = summaries.get(name, "a metric of your own")
        better = BETTER.get(column.direction, "")
        summary = summary.removesuffix(f"; {BETTER['']}")
        meanings[name] = Meaning(
            f"metric-{number + 1}-{file_name(name)}",
            title_of(name),
            column.unit,
            better,
            summary,
            families[name],
        )
    return meanings


def _family(column: Column) -> str:
    """Return the heading that the metric belongs to."""
    examined = column.dataset.startswith(EXAMINED)
    return EXAMINED_FAMILY if examined else FAMILIES[family_of(column.metric)]
