"""Tables and claims of a study as text, Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence

from polymode.cli.formats import as_markdown, as_tex, pipe_table, tabular
from polymode.core.sheets import csv_text
from polymode.metrics.text_table import align, decimals_for, number
from polymode.plots.forest import Comparison
from polymode.report.study_page import SIGNS
from polymode.studies import Claim, Table

WIDTH = 100  # letters of a terminal


def claim_table(claims: Sequence[Claim]) -> Table:
    """Return the claims as a table."""
    lines = tuple((c.text, c.paper, c.ours, f"{SIGNS[c.verdict]} {c.verdict}") for c in claims)
    note = "differences paired over seeds, with 95 % intervals"
    return Table("Claims of the paper", ("claim", "paper", "here", "verdict"), lines, note)


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Return the paper's numbers compared with ours as a table."""
    lines = []
    for row in comparisons:
        spreads = [row.paper_spread, row.standard_error, row.tolerance]
        digits = decimals_for([row.paper, row.ours], spreads)
        lines.append(
            (
                row.label,
                number(row.paper, row.paper_spread, digits),
                number(row.ours, row.standard_error, digits),
                number(row.tolerance, None, digits),
                row.verdict,
            )
        )
    head = ("number", "paper", "ours", "tolerance", "verdict")
    return Table("Paper and ours", head, tuple(lines), "ours: mean ± s.e. over seeds")


def study_text(tables: Sequence[Table], claims: Sequence[Claim]) -> str:
    """Return tables and claims for a terminal."""
    blocks = [f"{t.title}\n{align(t.head, t.lines)}\n({t.note})" for t in tables]
    if claims:
        lines = ["Claims of the paper"]
        for claim in claims:
            lines.append(f"{SIGNS[claim.verdict]} {claim.verdict}: {claim.text}")
            for text in (f"paper: {claim.paper}", f"here: {claim.ours}"):
                lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _markdown(tables: Sequence[Table]) -> str:
    parts = []
    for table in tables:
        head, *rows = [[as_markdown(text) for text in line] for line in (table.head, *table.lines)]
        parts += [f"**{as_markdown(table.title)}**", pipe_table(head, rows)]
        if table.note:
            parts.append(f"{as_markdown(table.note)}.")
    return "\n\n".join(parts) + "\n"


def _latex(tables: Sequence[Table]) -> str:
    parts = []
    for table in tables:
        head, *rows = [[as_tex(text) for text in line] for line in (table.head, *table.lines)]
        needs = f"% {table.title}: {table.note}; needs \\usepackage{{booktabs}}"
        parts.append(f"{needs}\n{tabular(head, rows)}")
    return "\n\n".join(parts) + "\n"


def _csv(tables: Sequence[Table]) -> str:
    rows = [["table", "line", "column", "text"]]
    for table in tables:
        for line in table.lines:
            for head, text in zip(table.head[1:], line[1:], strict=True):
                rows.append([table.title, line[0], head, text])
    return csv_text(rows)


def _json(tables: Sequence[Table]) -> str:
    return json.dumps([table._asdict() for table in tables], ensure_ascii=False) + "\n"


STUDY_FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "md": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}
