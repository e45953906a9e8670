"""Small pieces of HTML for notebooks: a heading, facts, tables.

All arguments are text and are escaped, unless they are said to be HTML. Colours are those of the
surrounding page, light or dark; lines are half-transparent grey. Styles are set on the elements,
because notebooks drop style sheets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = "padding:.25em .75em;white-space:nowrap;background:none;vertical-align:baseline"
_SOFT = "opacity:.72"


def html_table(
    head: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str = "",
    bold: Collection[tuple[int, int]] = (),
    left: bool = False,
) -> str:
    """Return a table; the first column is to the left, the others to the right.

    Args:
        head: the headings. rows: the cells, as many in each row, made into text.
        caption: stands above. bold: (row, column) of cells that stand out, counted from 0.
        left: all columns to the left, as texts are read.

    >>> html_table(["method", "NLL"], [["<map>", 0.1]]).count("&lt;map&gt;")
    1
    """
    parts = [f'<table style="border-collapse:collapse;border:0;margin:.4em 0">{_caption(caption)}']
    cells = "".join(
        _cell("th", text, bool(place) and not left, line=True) for place, text in enumerate(head)
    )
    parts.append(f'<thead><tr style="background:none">{cells}</tr></thead><tbody>')
    for number, row in enumerate(rows):
        cells = "".join(
            _cell("td", text, bool(place) and not left, strong=(number, place) in bold)
            for place, text in enumerate(row)
        )
        parts.append(f'<tr style="background:none">{cells}</tr>')
    return "".join([*parts, "</tbody></table>"])


def html_facts(facts: Mapping[str, Any]) -> str:
    """Return names and values side by side, one pair a line."""
    lines = (
        f'<tr style="background:none"><td style="{_CELL};text-align:left;border:0;{_SOFT}">'
        f'{escape(str(name))}</td><td style="{_CELL};text-align:left;border:0;white-space:normal">'
        f"{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    table = "border-collapse:collapse;border:0;margin:.4em 0"
    return f'<table style="{table}"><tbody>{"".join(lines)}</tbody></table>'


def html_block(title: str, *parts: str, note: str = "") -> str:
    """Return parts, already HTML, below a title, in a box that scrolls by itself.

    Args:
        title: text. parts: HTML, from the functions of this module. note: text below.
    """
    below = f'<div style="font-size:.9em;{_SOFT}">{escape(note)}</div>' if note else ""
    heading = f'<div style="font-weight:600">{escape(title)}</div>'
    style = "overflow-x:auto;font-variant-numeric:tabular-nums"
    return f'<div style="{style}">{heading}{"".join(parts)}{below}</div>'


def html_details(summary: str, *parts: str) -> str:
    """Return parts, already HTML, folded behind a line of text."""
    line = f'<summary style="cursor:pointer">{escape(summary)}</summary>'
    return f"<details>{line}{''.join(parts)}</details>"


def _caption(text: str) -> str:
    style = "caption-side:top;text-align:left;padding:.3em .75em 0;font-weight:600;color:inherit"
    return f'<caption style="{style}">{escape(text)}</caption>' if text else ""


def _cell(tag: str, text: Any, right: bool, *, line: bool = False, strong: bool = False) -> str:
    style = f"{_CELL};text-align:{'right' if right else 'left'};border:0"
    style += f";border-bottom:{_LINE}" if line else ""
    style += ";font-weight:700" if strong else ""
    return f'<{tag} style="{style}">{escape(str(text))}</{tag}>'
