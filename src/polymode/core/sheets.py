"""CSV that a spreadsheet opens without running formulas.

A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, and labels, paths
and names of data sets are untrusted. Such text gets an apostrophe in front, which marks it as
text; numbers stay numbers (OWASP, "CSV injection").
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")  # noqa: RUF001 - wide forms count as well
_NUMBER = re.compile(r"[+-]?(\d[\d,]*\.?\d*|\.\d+)(e[+-]?\d+)?( ?%)?|[+-]?(inf|nan)", re.IGNORECASE)


def safe_cell(value: Any) -> Any:
    """Return the value of a cell; text that would be a formula gets an apostrophe in front.

    >>> [safe_cell(value) for value in ("=1+1", "-0.5", -0.5, "@map", "a-b")]
    ["'=1+1", '-0.5', -0.5, "'@map", 'a-b']
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, with safe cells."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([safe_cell(value) for value in row] for row in rows)
    return file.getvalue()
