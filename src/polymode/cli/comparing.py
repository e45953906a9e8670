"""Results of several folders on one leaderboard, and how far its entries are from the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from polymode.metrics import Leaderboard, compare
from polymode.metrics.compare import setup_of
from polymode.metrics.results import Results, title_of
from polymode.metrics.table import align, decimals_for, number
from polymode.runs.folder import RunFolder
from polymode.runs.settings import UsageProblem


def compare_folders(folders: Sequence[RunFolder]) -> Leaderboard:
    """Return the leaderboard of all folders' results, which must be on the same data.

    Results of one setup with different seeds are one entry, from whichever folder. Where a setup
    and seed are in more than one folder, all results of that setup are named after their folder.
    """
    found: list[tuple[RunFolder, Results]] = []
    first = folders[0]
    for folder in folders:
        results = folder.results()
        if not results:
            raise UsageProblem(f"{folder.path} has no finished cell yet; run it first")
        ours, theirs = (each.config().get("data", {}) for each in (first, folder))
        if ours != theirs:
            raise UsageProblem(
                f"{folder.path} (task '{theirs.get('task')}') and {first.path} (task"
                f" '{ours.get('task')}') have different tasks, data or task options; their numbers"
                " cannot be compared"
            )
        found += [(folder, each) for each in results]
    counts = Counter((_setup(each), each.seed) for _, each in found)
    twice = {setup for (setup, _), count in counts.items() if count > 1}
    return compare(
        [
            each.replace(config={**each.config, "run": str(folder.path)})
            if _setup(each) in twice
            else each
            for folder, each in found
        ]
    )


def _setup(results: Results) -> str:
    return repr(sorted(setup_of(results).items()))


def differences(board: Leaderboard, *, full: bool = False) -> list[dict[str, Any]]:
    """Return the paired differences on the test set of every entry to the one of lowest NLL."""
    best = _reference(board)
    if best is None:
        return []
    found = []
    for column in board.groups(full=full).get("test", []):
        for label in board.labels:
            gap = board.difference(label, best, column.metric) if label != best else None
            if gap is not None and column.direction:
                facts = {"entry": label, "reference": best, "dataset": "test"}
                found.append(
                    {**facts, "metric": column.metric, **gap._asdict(), "clear": gap.clear}
                )
    return found


def _reference(board: Leaderboard) -> str | None:
    """Return the entry of lowest test NLL; None where none has one, or none is left to compare."""
    means = {label: board.cells.get((label, "test", "nll")) for label in board.labels}
    known = {label: cell.mean for label, cell in means.items() if cell and cell.mean is not None}
    if len(board.labels) < 2 or not known:
        return None
    return min(known, key=lambda label: known[label])


def difference_table(board: Leaderboard, gaps: Sequence[dict[str, Any]]) -> str:
    """Return the differences as text."""
    labels = list(dict.fromkeys(gap["entry"] for gap in gaps))
    metrics = list(dict.fromkeys(gap["metric"] for gap in gaps))
    seeds = {gap["entry"]: str(gap["n"]) for gap in gaps}
    head = f"minus {gaps[0]['reference']}"
    columns = [[head, *(f"  {label}" for label in labels)]]
    columns.append(["seeds", *(seeds[label] for label in labels)])
    for metric in metrics:
        found = [gap for gap in gaps if gap["metric"] == metric]
        digits = decimals_for(
            [gap["mean"] for gap in found], [gap["standard_error"] for gap in found]
        )
        texts = {
            gap["entry"]: number(gap["mean"], gap["standard_error"], digits)
            + ("*" if gap["clear"] else " ")
            for gap in found
        }
        columns.append([f"{title_of(metric)} ", *(texts.get(label, "n/a ") for label in labels)])
    lines = list(zip(*columns, strict=True))
    title = (
        "Difference to the lowest test NLL, paired over shared seeds, test set: mean ± s.e.,"
        " * 95 % interval leaves out zero"
    )
    return f"{title}\n\n{align(lines[0], lines[1:])}"
