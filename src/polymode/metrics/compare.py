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
    FEWEST_SEEDS,
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
    tasks = list(dict.fromkeys(result.task for result in results))
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


def _as_results(results: Any) -> list[Results]:
    """Return a list of results, or raise what was passed instead."""
    if isinstance(results, Results):
        return [results]
    several = isinstance(results, Iterable) and not isinstance(results, (str, Tensor))
    items = list(results) if several else [results]
    for item in items:
        if not isinstance(item, Results):
            raise ValueError(
                f"compare takes results of pm.evaluate, compare([first, second]); got"
                f" a {type(item).__name__}{_remedy(item)}"
            )
    return items


def _remedy(item: Any) -> str:
    if type(item).__name__ == "Posterior":
        return "; use pm.evaluate(post, task) of it"
    return "; `polymode compare DIR...` takes folders" if isinstance(item, (str, Path)) else ""


def _check_data(results: list[Results]) -> None:
    """Refuse results on data of one name and different fingerprints."""
    first: dict[str, Results] = {}
    for result in results:
        for name, fingerprint in result.data.items():
            earlier = first.setdefault(name, result)
            if earlier.data[name] != fingerprint:
                raise ValueError(
                    f"'{name}' is different data for {earlier.method}, seed {earlier.seed}, and"
                    f" {result.method}, seed {result.seed} (fingerprints {earlier.data[name]} and"
                    f" {fingerprint}), so their numbers cannot be compared; evaluate both on one"
                    " task"
                )


def _mark(board: Leaderboard, column: Column) -> None:
    """Mark the best of a column, those not significantly worse, and those without a test."""
    keys = {label: (label, column.dataset, column.metric) for label in board.labels}
    column_cells = {label: board.cells[key] for label, key in keys.items()}
    means = {label: cell.mean for label, cell in column_cells.items() if cell.mean is not None}
    if len(means) < 2:
        return
    sign = -1.0 if column.direction == "up" else 1.0
    top = sign * min(sign * mean for mean in means.values())
    best = [label for label, mean in means.items() if mean == top]
    p_values, few = {}, set()
    for label in means:
        gap = board.difference(label, best[0], column.metric, column.dataset)
        if label not in best and gap is not None and gap.p_value is not None:
            # on the shared seeds the best over all seeds may be behind: then not clearly worse
            p_values[label] = gap.p_value if sign * gap.mean > 0 else 1.0
            if gap.n < FEWEST_SEEDS:
                few.add(label)
    tied = not_rejected(p_values)
    undecided = set(means) - set(best) - set(p_values)
    for label, cell in column_cells.items():
        board.cells[keys[label]] = cell._replace(
            best=label in best,
            tied=label in tied and label not in few,
            untested=label in undecided or label in tied and label in few,
        )


def _entries(results: list[Results]) -> list[Entry]:
    """Group results that differ only in the seed, and name the groups."""
    groups: dict[str, list[Results]] = {}
    for result in results:
        groups.setdefault(json.dumps(setup_of(result), sort_keys=True), []).append(result)
    setups = {key: setup_of(group[0]) for key, group in groups.items()}
    names = {key: group[0].label or group[0].method for key, group in groups.items()}
    entries = []
    for key, group in groups.items():
        seeds = [result.seed for result in group]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{names[key]} has results of one seed twice: seeds {seeds}")
        alike = [setups[other_key] for other_key, name in names.items() if name == names[key]]
        differing = [k for k in setups[key] if len({json.dumps(s.get(k)) for s in alike}) > 1]
        options = ", ".join(f"{name}={setups[key][name]}" for name in differing)
        label = names[key] + (f" ({options})" if options else "")
        entries.append(Entry(label, tuple(sorted(group, key=lambda result: result.seed))))
    return entries


def setup_of(results: Results) -> dict[str, Any]:
    """Return what the seeds of one entry share: method, network and options.

    The options chosen by a search, and its scores, belong to a seed and not to the setup.
    """
    search = results.config.get("search", {})
    searched = {"search", "stopping", "concerns", *search.get("chosen", ())}  # facts of one fit
    options = {name: value for name, value in results.config.items() if name not in searched}
    if options.pop("prior_choice", None) is not None:
        options["prior_precision"] = "auto"
    return {"method": results.method, "net": results.net, **options}


def _columns(results: list[Results]) -> list[Column]:
    """Return the columns by data set: test, means over shifts and OOD sets, then the others."""
    columns: dict[tuple[str, str], Column] = {}
    means: dict[tuple[str, str], Column] = {}
    for result in results:
        groups = {SHIFT_MEAN: datasets_of(result, SHIFT_MEAN)}
        groups |= {
            mean: sets for mean in OOD_MEANS.values() if len(sets := datasets_of(result, mean)) > 1
        }
        mean_of = {name: mean for mean, names in groups.items() for name in names}
        for row in result.rows:
            key = (row.dataset, row.metric)
            column = Column(*key, title_of(row.metric), row.unit, row.direction, row.n)
            fewest = min(columns.get(key, column).n, row.n)
            columns[key] = columns.get(key, column)._replace(n=fewest)
            if mean := mean_of.get(row.dataset):
                means.setdefault((mean, row.metric), column._replace(dataset=mean))
    test = [column for column in columns.values() if column.dataset == "test"]
    remaining = [column for column in columns.values() if column.dataset != "test"]
    return [*test, *means.values(), *remaining]


def _cell(entry: Entry, column: Column) -> Cell:
    """Return the mean over the entry's seeds; n/a if any seed has no value."""
    values = [value_of(result, column.dataset, column.metric) for result in entry.results]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        rows = (
            result.get(name, column.metric)
            for result in entry.results
            for name in datasets_of(result, column.dataset)
        )
        notes = [row.note for row in rows if row is not None and row.note]
        return Cell(None, None, len(numbers), note=notes[0] if notes else "n/a (not evaluated)")
    over_examples = None
    if len(numbers) == 1 and not column.dataset.startswith(EXAMINED):
        row = entry.results[0].get(column.dataset, column.metric)  # None for a mean over data sets
        over_examples = None if row is None else row.standard_error
    return Cell(*mean_and_error(numbers), len(numbers), example_error=over_examples)
