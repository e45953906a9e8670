"""Results of several folders on one leaderboard, and how far its entries are from the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from polymode.metrics import Leaderboard, compare
from polymode.metrics.compare import setup_of
from polymode.metrics.leaderboard import BEST
from polymode.metrics.results import Results, title_of
from polymode.metrics.text_table import align, decimals_for, number
from polymode.runs.run_folder import RunFolder
from polymode.runs.settings import UsageProblem


def compare_folders(folders: Sequence[RunFolder]) -> Leaderboard:
    """Return the leaderboard of all folders' results, which must be on the same data.

    Results of one setup with different seeds are one entry, from whichever folder. Where a setup
    and seed are in more than one folder, all results of that setup are named after their folder.
    """
    pairs: list[tuple[RunFolder, Results]] = []
    first = folders[0]
    for folder in folders:
        results = folder.results()
        if not results:
            raise UsageProblem(f"{folder.path} has no finished cell yet; run it first")
        first_data, data = (f.config().get("data", {}) for f in (first, folder))
        if first_data != data:
            raise UsageProblem(
                f"{folder.path} (task '{data.get('task')}') and {first.path} (task"
                f" '{first_data.get('task')}') have different tasks, data or task options; their"
                " numbers cannot be compared"
            )
        pairs += [(folder, cell) for cell in results]
    counts = Counter((_setup(cell), cell.seed) for _, cell in pairs)
    twice = {setup for (setup, _), count in counts.items() if count > 1}
    named = [
        cell.replace(config={**cell.config, "run": str(folder.path)})
        if _setup(cell) in twice
        else cell
        for folder, cell in pairs
    ]
    try:
        return compare(named)
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def _setup(results: Results) -> str:
    return repr(sorted(setup_of(results).items()))


def differences(board: Leaderboard, *, full: bool = False) -> list[dict[str, Any]]:
    """Return the paired differences on the test set of every entry to the best of each column.

    "clear" is the verdict of the leaderboard: a test tells the entry from the best, after Holm's
    correction over the column.
    """
    rows = []
    for column in board.groups(full=full).get("test", []):
        cells = {label: board[label, "test", column.metric] for label in board.labels}
        best = next((label for label, cell in cells.items() if cell.best), None)
        if best is None:
            continue
        for label, cell in cells.items():
            gap = board.difference(label, best, column.metric)
            if gap is not None and not cell.best:
                facts = {"entry": label, "reference": best, "dataset": "test"}
                clear = not (cell.tied or cell.untested)
                rows.append({**facts, "metric": column.metric, **gap._asdict(), "clear": clear})
    return rows


def difference_table(board: Leaderboard, gaps: Sequence[dict[str, Any]]) -> str:
    """Return the differences as text, with the marks of the leaderboard."""
    by_entry = {(gap["entry"], gap["metric"]): gap for gap in gaps}
    columns = [["minus the best", *(f"  {label}" for label in board.labels)]]
    shared = [[gap["n"] for gap in gaps if gap["entry"] == label] for label in board.labels]
    columns.append(["seeds", *(span_text(numbers) for numbers in shared)])
    for metric in dict.fromkeys(gap["metric"] for gap in gaps):
        of_metric = [gap for gap in gaps if gap["metric"] == metric]
        digits = decimals_for(
            [gap["mean"] for gap in of_metric], [gap["standard_error"] for gap in of_metric]
        )
        texts = []
        for label in board.labels:
            gap, sign = by_entry.get((label, metric)), board[label, "test", metric].sign
            size = "n/a" if gap is None else number(gap["mean"], gap["standard_error"], digits)
            texts.append(sign if sign == BEST else size + (sign or " "))
        columns.append([f"{title_of(metric)} ", *texts])
    lines = list(zip(*columns, strict=True))
    title = (
        "Difference to the best of each column, paired over shared seeds, test set:\nmean ± s.e.;"
        " marks as above: paired t-tests, Holm's correction over the column, 95 %"
    )
    return f"{title}\n\n{align(lines[0], lines[1:])}"


def span_text(numbers: Sequence[int]) -> str:
    """Return how many seeds are shared with the best ones.

    >>> span_text([3, 3]), span_text([1, 3]), span_text([])
    ('3', '1-3', '')
    """
    if not numbers:
        return ""
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least}-{most}"
