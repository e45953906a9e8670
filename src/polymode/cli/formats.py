"""A leaderboard as Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from polymode.core.sheets import csv_text
from polymode.metrics import Leaderboard
from polymode.metrics.leaderboard import (
    BEST,
    GUESS,
    TIED,
    UNTESTED,
    Column,
    digits_for,
    group_title,
)
from polymode.metrics.score import ARROWS
from polymode.metrics.text_table import number


class _Cell(NamedTuple):
    text: str
    best: bool
    sign: str  # of what is not best: tied with it, or not tested


class _Table(NamedTuple):
    """One data set: its heading, the columns, and a line for each entry."""

    title: str
    columns: list[Column]
    lines: list[tuple[str, list[_Cell]]]


def _tables(board: Leaderboard, full: bool) -> Iterator[_Table]:
    for group, columns in board.groups(full=full).items():
        digits = [_digits(board, column) for column in columns]
        lines = []
        for label in board.labels:
            cells = []
            for column, places in zip(columns, digits, strict=True):
                cell = board[label, column.dataset, column.metric]
                text = number(cell.mean, cell.error, places, "n/a")
                sign = board.sign((label, column.dataset, column.metric))
                cells.append(_Cell(text, sign == BEST, "" if sign == BEST else sign))
            lines.append((label, cells))
        yield _Table(group_title(group, board), columns, lines)


def _digits(board: Leaderboard, column: Column) -> int:
    return digits_for([board[label, column.dataset, column.metric] for label in board.labels])


def _caption(board: Leaderboard) -> str:
    counts = sorted({len(entry.results) for entry in board.entries})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    many = "seed" if counts == [1] else "seeds"
    marks = [f"{s} {meaning}" for s, meaning in board.legend().items() if s != BEST]
    return "; ".join([f"{board.task}, {seeds} {many}: {board.spread}", "best in bold", *marks])


def markdown(board: Leaderboard, full: bool = False) -> str:
    """Return a table in GitHub's Markdown for each data set, the best in bold."""
    parts = [as_markdown(_caption(board)) + ".\n"]
    for table in _tables(board, full):
        heads = [as_markdown(f"{c.title} {ARROWS[c.direction]}".rstrip()) for c in table.columns]
        rows = [
            [
                as_markdown(label),
                *(
                    f"**{cell.text}**" if cell.best else f"{cell.text} {cell.sign}".rstrip()
                    for cell in cells
                ),
            ]
            for label, cells in table.lines
        ]
        parts.append(pipe_table([as_markdown(table.title), *heads], rows) + "\n")
    return "\n".join(parts)


def latex(board: Leaderboard, full: bool = False) -> str:
    """Return a `tabular` with the rules of booktabs for each data set, the best in bold."""
    parts = [f"% {' '.join(_caption(board).split())}; needs \\usepackage{{booktabs}}\n"]
    arrows = {"up": r" $\uparrow$", "down": r" $\downarrow$", "": ""}
    signs_in_tex = {TIED: r"\approx", UNTESTED: UNTESTED, GUESS: GUESS}
    for table in _tables(board, full):
        heads = [as_tex(c.title) + arrows[c.direction] for c in table.columns]
        rows = []
        for label, cells in table.lines:
            plain = [cell.text.replace(" ± ", r" \pm ").replace("−", "-") for cell in cells]
            numbers = [text.replace(",", "{,}") for text in plain]
            signs = [f" {signs_in_tex[cell.sign]}" if cell.sign else "" for cell in cells]
            texts = [
                n if n == "n/a" else f"${n}{sign}$" for n, sign in zip(numbers, signs, strict=True)
            ]
            bold = [
                rf"$\mathbf{{{n}}}$" if cell.best else text
                for n, text, cell in zip(numbers, texts, cells, strict=True)
            ]
            rows.append([as_tex(label), *bold])
        parts.append(tabular([as_tex(table.title), *heads], rows) + "\n")
    return "\n".join(parts)


def pipe_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in GitHub's Markdown, numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tabular(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a `tabular` with the rules of booktabs, numbers to the right."""
    first, *body = [" & ".join(line) + r" \\" for line in (head, *rows)]
    begin = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", first, r"\midrule"]
    return "\n".join([*begin, *body, r"\bottomrule", r"\end{tabular}"])


def as_csv(board: Leaderboard, full: bool = False) -> str:
    """Return every number as a line: entry, data set, metric, mean, spread, unit, direction."""
    cells = board.to_dict()["cells"]
    return csv_text([list(cells[0]), *(cell.values() for cell in cells)])


def as_json(board: Leaderboard, full: bool = False) -> str:
    """Return every number, the costs and the Pareto front."""
    return board.to_json() + "\n"


def as_markdown(text: str) -> str:
    """Return text that Markdown takes as it is, also inside a table.

    >>> print(as_markdown("a|b_c <i>"))
    a\\|b\\_c \\<i\\>
    """
    return re.sub(r"([\\|*_`<>\[\]])", r"\\\1", " ".join(text.split()))


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "²": r"$^2$", "√": r"$\surd$", "≥": r"$\geq$", "−": "--",
}  # fmt: skip


def as_tex(text: str) -> str:
    r"""Return text with LaTeX's special characters escaped.

    >>> print(as_tex("map (num_modes=5), 90 %"))
    map (num\_modes=5), 90 \%
    """
    return "".join(_TEX.get(letter, letter) for letter in " ".join(text.split()))


FORMATS: dict[str, Callable[[Leaderboard, bool], str]] = {
    "md": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}
