"""The first sentence of a report, and what a reader must know before believing the rest."""

from __future__ import annotations

from typing import NamedTuple

from polymode.metrics.leaderboard import Entry, Leaderboard
from polymode.metrics.table import decimals_for, number

COLLAPSED = 0.01  # members that differ less than this on every data set are one function
SPREADS = {"disagreement": "mean disagreement", "epistemic_share": "mean epistemic share"}


class Alert(NamedTuple):
    """A warning with its number and what to do about it."""

    title: str
    text: str


def verdict(board: Leaderboard) -> str:
    """Return who has the lowest test NLL, by how much, and whether that is more than noise."""
    ranked = _ranked(board)
    if not ranked:
        return f"No method has a finite test NLL on {board.task}."
    best = ranked[0]
    cells = [board[label, "test", "nll"] for label in ranked]
    digits = decimals_for(*zip(*(cell[:2] for cell in cells), strict=True))
    values = [number(cell.mean, cell.standard_error, digits) for cell in cells]
    if len(ranked) == 1:
        return f"{best} reaches a test NLL of {values[0]} nats per example on {board.task}."
    second = ranked[1]
    facts = f"{values[0]} against {values[1]} nats per example of {second}"
    gap = board.difference(second, best)
    if gap is None or gap.standard_error is None:
        return (
            f"{best} has the lowest test NLL on {board.task}: {facts}; one seed, no spread known."
        )
    assert gap.low is not None
    assert gap.high is not None
    span = f"95 % interval {gap.low:.{digits}f} to {gap.high:.{digits}f}, {gap.n} seeds"
    size = f"{number(gap.mean, gap.standard_error, digits)} ({span})"
    if gap.clear:
        return f"{best} has the lowest test NLL on {board.task}: {facts}; paired difference {size}."
    return (
        f"No clear winner on {board.task} by test NLL: {best} has {facts}, but the"
        f" paired difference is {size}."
    )


def alerts(board: Leaderboard, failures: int = 0) -> list[Alert]:
    """Return the warnings that apply, the gravest first."""
    found = []
    if failures:
        plural = "s" if failures > 1 else ""
        text = "The leaderboard lacks them; failures.jsonl has the tracebacks."
        found.append(Alert(f"{failures} cell{plural} failed", text))
    single = [entry.label for entry in board.entries if len(entry.results) == 1]
    if single:
        found.append(
            Alert(
                "One seed only",
                f"{', '.join(single)}: the spread over seeds is unknown, and a difference cannot be"
                " told from luck. Run at least three seeds.",
            )
        )
    collapsed = [alert for entry in board.entries if (alert := _collapse(entry))]
    return [*found, *collapsed, *_within_noise(board)]


def _ranked(board: Leaderboard) -> list[str]:
    """Return the labels by test NLL, lowest first; without those that have none."""
    cells = {label: board.cells.get((label, "test", "nll")) for label in board.labels}
    known = {label: cell.mean for label, cell in cells.items() if cell and cell.mean is not None}
    return sorted(known, key=lambda label: known[label])


def _collapse(entry: Entry) -> Alert | None:
    """Warn where members hardly differ on any data set, the OOD sets included."""
    for metric, words in SPREADS.items():
        rows = [row for each in entry.results for row in each.rows if row.metric == metric]
        values = [row.value for row in rows if row.value is not None]
        if values and max(values) < COLLAPSED:
            sets = len({row.dataset for row in rows})
            return Alert(
                f"Members collapsed: {entry.label}",
                f"{words.capitalize()} is at most {100 * max(values):.2g} % on all {sets} data"
                " set(s): the members are nearly one function, and their spread says nothing about"
                " what is not known.",
            )
    return None


def _within_noise(board: Leaderboard) -> list[Alert]:
    """Warn where the best of two or more has no clear lead over the next, on the test set."""
    unclear = []
    for column in board.columns:
        if column.dataset != "test" or not column.direction:
            continue
        cells = {label: board[label, "test", column.metric] for label in board.labels}
        known = {label: cell.mean for label, cell in cells.items() if cell.mean is not None}
        up = column.direction == "up"
        ranked = sorted(known, key=lambda label: known[label], reverse=up)
        if len(ranked) < 2:
            continue
        gap = board.difference(ranked[0], ranked[1], column.metric)
        if gap is not None and gap.standard_error is not None and not gap.clear:
            unclear.append(column.title)
    if not unclear:
        return []
    text = (
        f"Test {', '.join(unclear)}: the 95 % interval of the paired difference between the best"
        " and the next method holds zero. More seeds would tell."
    )
    return [Alert("Difference within noise", text)]
