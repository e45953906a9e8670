r"""`compare`: several results on one task as a leaderboard.

Results of one method, network and options are one entry; its seeds give mean and standard error,
:math:`s / \sqrt n` with ddof 1. Entries are compared by their paired differences over the seeds
that they share, see `paired`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from polymode.core.checks import check_call
from polymode.metrics.leaderboard import (
    OOD_MEANS,
    SHIFT_MEAN,
    Cell,
    Column,
    Entry,
    Leaderboard,
    datasets_of,
    value_of,
)
from polymode.metrics.paired import mean_and_error, not_rejected
from polymode.metrics.results import EXAMINED, Results, title_of


def compare(results: Sequence[Results], *more: Any) -> Leaderboard:
    """Return the leaderboard of results on one task; entries keep the order of the results.

    Results on different data are refused, by the fingerprints that `evaluate` keeps.
    """
    check_call(compare, locals(), but=("results",))
    if more:
        raise ValueError("compare takes one list of results: pm.compare([first, second])")
    results = _as_results(results)
    if not results:
        raise ValueError("there is nothing to compare: 0 results")
    tasks = list(dict.fromkeys(each.task for each in results))
    if len(tasks) > 1:
        raise ValueError(f"results of one task can be compared, got {', '.join(tasks)}")
    _check_data(results)
    entries = _entries(results)
    columns = _columns(results)
    cells = {
        (entry.label, column.dataset, column.metric): _cell(entry, column)
        for column in columns
        for entry in entries
    }
    board = Leaderboard(tasks[0], tuple(entries), tuple(columns), cells)
    for column in columns:
        if column.direction:
            _mark(board, column)
    return board


def _as_results(given: Any) -> list[Results]:
    """Return a list of results, or say what was given instead."""
    if isinstance(given, Results):
        return [given]
    several = isinstance(given, Iterable) and not isinstance(given, (str, Tensor))
    items = list(given) if several else [given]
    for each in items:
        if not isinstance(each, Results):
            raise ValueError(
                f"compare takes results of pm.evaluate, compare([first, second]); got"
                f" a {type(each).__name__}{_remedy(each)}"
            )
    return items


def _remedy(given: Any) -> str:
    if type(given).__name__ == "Posterior":
        return "; use pm.evaluate(post, task) of it"
    return "; `polymode compare DIR...` takes folders" if isinstance(given, (str, Path)) else ""


def _check_data(results: list[Results]) -> None:
    """Refuse results on data of one name and different fingerprints."""
    first: dict[str, Results] = {}
    for each in results:
        for name, mark in each.data.items():
            other = first.setdefault(name, each)
            if other.data[name] != mark:
                raise ValueError(
                    f"'{name}' is different data for {other.method}, seed {other.seed}, and"
                    f" {each.method}, seed {each.seed} (fingerprints {other.data[name]} and"
                    f" {mark}), so their numbers cannot be compared; evaluate both on one task"
                )


def _mark(board: Leaderboard, column: Column) -> None:
    """Mark the best of a column, those that no paired test tells from it, and the untested."""
    keys = {label: (label, column.dataset, column.metric) for label in board.labels}
    found = {label: board.cells[key] for label, key in keys.items()}
    means = {label: cell.mean for label, cell in found.items() if cell.mean is not None}
    if len(means) < 2:
        return
    sign = -1.0 if column.direction == "up" else 1.0
    top = sign * min(sign * mean for mean in means.values())
    best = [label for label, mean in means.items() if mean == top]
    p_values = {}
    for label in means:
        gap = board.difference(label, best[0], column.metric, column.dataset)
        if label not in best and gap is not None and gap.p_value is not None:
            # on the seeds that both have, the best over all seeds may be behind: not clearly worse
            p_values[label] = gap.p_value if sign * gap.mean > 0 else 1.0
    tied = not_rejected(p_values)
    for label, cell in found.items():
        board.cells[keys[label]] = cell._replace(
            best=label in best,
            tied=label in tied,
            untested=label in means and label not in best and label not in p_values,
        )


def _entries(results: list[Results]) -> list[Entry]:
    """Group results that differ in the seed only, and name the groups."""
    groups: dict[str, list[Results]] = {}
    for each in results:
        groups.setdefault(json.dumps(setup_of(each), sort_keys=True), []).append(each)
    setups = {key: setup_of(group[0]) for key, group in groups.items()}
    names = {key: group[0].label or group[0].method for key, group in groups.items()}
    entries = []
    for key, group in groups.items():
        seeds = [each.seed for each in group]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{names[key]} has results of one seed twice: seeds {seeds}")
        alike = [setups[other] for other, name in names.items() if name == names[key]]
        differing = [k for k in setups[key] if len({json.dumps(s.get(k)) for s in alike}) > 1]
        options = ", ".join(f"{name}={setups[key][name]}" for name in differing)
        label = names[key] + (f" ({options})" if options else "")
        entries.append(Entry(label, tuple(sorted(group, key=lambda each: each.seed))))
    return entries


def setup_of(results: Results) -> dict[str, Any]:
    """Return what the seeds of one entry have in common.

    What a search among options chose, and its scores, belong to a seed and not to the setup.
    """
    search = results.config.get("search", {})
    found = {"search", *search.get("chosen", ())}
    options = {name: value for name, value in results.config.items() if name not in found}
    return {"method": results.method, "net": results.net, **options}


def _columns(results: list[Results]) -> list[Column]:
    """Return the columns by data set, the means of shifts and OOD sets behind the test set."""
    found: dict[tuple[str, str], Column] = {}
    means: dict[tuple[str, str], Column] = {}
    for each in results:
        groups = {SHIFT_MEAN: datasets_of(each, SHIFT_MEAN)}
        groups |= {
            mean: sets for mean in OOD_MEANS.values() if len(sets := datasets_of(each, mean)) > 1
        }
        mean_of = {name: mean for mean, names in groups.items() for name in names}
        for row in each.rows:
            key = (row.dataset, row.metric)
            column = Column(*key, title_of(row.metric), row.unit, row.direction, row.n)
            found[key] = found[key]._replace(n=min(found[key].n, row.n)) if key in found else column
            if mean := mean_of.get(row.dataset):
                means.setdefault((mean, row.metric), column._replace(dataset=mean))
    test = [column for column in found.values() if column.dataset == "test"]
    rest = [column for column in found.values() if column.dataset != "test"]
    return [*test, *means.values(), *rest]


def _cell(entry: Entry, column: Column) -> Cell:
    """Return the mean over the entry's seeds; n/a if any seed has no value."""
    values = [value_of(each, column.dataset, column.metric) for each in entry.results]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        rows = (
            each.get(name, column.metric)
            for each in entry.results
            for name in datasets_of(each, column.dataset)
        )
        notes = [row.note for row in rows if row is not None and row.note]
        return Cell(None, None, len(known), note=notes[0] if notes else "n/a (not evaluated)")
    over_examples = None
    if len(known) == 1 and not column.dataset.startswith(EXAMINED):
        row = entry.results[0].get(column.dataset, column.metric)  # None for a mean over data sets
        over_examples = None if row is None else row.standard_error
    return Cell(*mean_and_error(known), len(known), example_error=over_examples)
