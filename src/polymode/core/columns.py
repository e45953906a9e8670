"""Tables of text that fit the terminal: long cells are wrapped."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence

_GAP = 2
_LEAST = 8  # characters of a column, where even its longest word has to be broken
_READABLE = 30  # a last column narrower than this stands below its row instead
_INDENT = "    "


def terminal_width() -> int | None:
    """Return the columns of the terminal, `$COLUMNS` first; None where output goes elsewhere."""
    named = os.environ.get("COLUMNS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or None  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return None


def left_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> str:
    """Return a table whose columns are all texts, hence all to the left.

    Args:
        header: the headings. rows: the cells, as many in each row.
        width: characters per line, ≥ 1; longer cells are wrapped, and a last column that would
            become too narrow stands below its row. None does not wrap.

    >>> rows = [["map", "one network at the maximum of its posterior"], ["swag", "a path"]]
    >>> print(left_table(["name", "meaning"], rows, 36))
    name  meaning
    map   one network at the maximum of
          its posterior
    swag  a path
    >>> print(left_table(["name", "meaning"], rows, 30))
    name
        meaning
    map
        one network at the maximum
        of its posterior
    swag
        a path
    """
    lines = [[str(cell) for cell in line] for line in (header, *rows)]
    natural = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths = _widths(lines, width)
    if width is None or widths[-1] >= min(_READABLE, natural[-1]):
        return "\n".join(text for line in lines for text in _row(line, widths))
    texts, widths = [], _widths([line[:-1] for line in lines], width)
    for line in lines:
        below = textwrap.wrap(line[-1], max(width - len(_INDENT), 1))
        texts += [*_row(line[:-1], widths), *(_INDENT + text for text in below)]
    return "\n".join(texts)


def _row(cells: list[str], widths: list[int]) -> list[str]:
    """Return the lines of one row."""
    wrapped = [_wrap(cell, size) for cell, size in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, wrapped))):
        parts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        padded = [part.ljust(size) for part, size in zip(parts, widths, strict=True)]
        lines.append((" " * _GAP).join(padded).rstrip())
    return lines


def _wrap(cell: str, size: int) -> list[str]:
    return textwrap.wrap(cell, size, break_on_hyphens=False) or [""]


def _widths(lines: list[list[str]], width: int | None) -> list[int]:
    """Return the columns' widths: their natural ones, or the widest reduced to a common size.

    No column becomes narrower than its longest word, if these fit.
    """
    columns = list(zip(*lines, strict=True))
    natural = [max(1, *map(len, column)) for column in columns]
    if width is None:
        return natural
    room = width - _GAP * (len(columns) - 1)
    words = [max([1, *(len(w) for cell in column for w in cell.split())]) for column in columns]
    if sum(words) > room:
        words = [min(word, _LEAST) for word in words]
    cut = natural
    for size in range(max(natural), 0, -1):
        cut = [max(word, min(length, size)) for word, length in zip(words, natural, strict=True)]
        if sum(cut) <= room:
            break
    for place in reversed(range(len(cut))):  # what is left of the room
        cut[place] += max(min(natural[place] - cut[place], room - sum(cut)), 0)
    return cut
