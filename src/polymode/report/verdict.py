"""The first sentence of a report: what is best, by how much, and whether that is just noise."""

from __future__ import annotations

from polymode.metrics.leaderboard import Leaderboard, digits_for
from polymode.metrics.text_table import number
from polymode.report.alerts import listed
from polymode.report.method_tables import ranked


def verdict(board: Leaderboard) -> str:
    """Return which method has the lowest test NLL, by how much, and whether that is just noise."""
    finite = [label for label in ranked(board) if _mean(board, label) is not None]
    if not finite:
        return f"No method has a finite test NLL on {board.task}."
    best = finite[0]
    cells = [board[label, "test", "nll"] for label in finite]
    digits = digits_for(cells)
    values = [number(cell.mean, cell.error, digits) for cell in cells]
    if len(finite) == 1:
        return f"{best} reaches a test NLL of {values[0]} nats per example on {board.task}."
    second = finite[1]
    facts = f"{values[0]} nats per example against {values[1]} for {second}"
    gap = board.difference(second, best)
    if gap is None or gap.standard_error is None:
        lead = f"{best} has the lowest test NLL on {board.task}: {facts}"
        return f"{lead}; {_why_untested(board, best, second)}, so this may be luck."
    assert gap.low is not None and gap.high is not None
    ends = [f"{end:.{digits}f}".replace("-", "−") for end in (gap.low, gap.high)]
    span = f"95 % interval {ends[0]} to {ends[1]}, {gap.n} seeds"
    size = f"{number(gap.mean, gap.standard_error, digits)} ({span})"
    tied = [label for label in finite[2:] if board[label, "test", "nll"].tied]
    also = f" Not clearly worse either: {listed(tied)}." if tied else ""
    if gap.clear and not board[second, "test", "nll"].tied:
        lead = f"{best} has the lowest test NLL on {board.task}"
        return f"{lead}: {facts}; paired difference {size}.{also}"
    tests = f", too little for one of {len(finite) - 1} comparisons" if gap.clear else ""
    return (
        f"No clear winner on {board.task} by test NLL: {best} has {facts}, but the"
        f" paired difference is {size}{tests}.{also}"
    )


def _why_untested(board: Leaderboard, best: str, second: str) -> str:
    """Say why no paired test exists: too few seeds, or too few that both have."""
    seeds = {entry.label: set(entry.seeds) for entry in board.entries}
    if len(seeds[best] | seeds[second]) == 1:
        return "one seed, ± over examples"
    shared = len(seeds[best] & seeds[second])
    return "they share one seed" if shared else "they share no seed"


def _mean(board: Leaderboard, label: str) -> float | None:
    cell = board.cells.get((label, "test", "nll"))
    return None if cell is None else cell.mean
