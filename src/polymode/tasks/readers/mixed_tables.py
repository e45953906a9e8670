"""Tables with columns of any kind in files: csv text, and Parquet where pyarrow is installed.

A column of text is one of numbers, of truth values or of dates (ISO 8601) if all its fields are;
otherwise its fields are categories. Fields that are empty or say NA, NaN, null or none are missing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from polymode.core.safe_files import FileProblem
from polymode.tasks.readers.streams import LARGEST, Bounded, opened
from polymode.tasks.readers.text_tables import delimiter_of, is_missing_field

_TRUTH = {"true": True, "false": False, "yes": True, "no": False}
_PARQUET = (".parquet", ".pq")


def read_mixed_table(path: Path | str, *, most_bytes: int = LARGEST) -> dict[str, list[Any]]:
    """Return the columns of a file by name, None where a value is missing.

    Args:
        path: csv text with a header (commas, semicolons or tabs; plain or gzipped, UTF-8), or a
            file that ends in .parquet.
        most_bytes: more than this is not read.
    """
    path = Path(path).expanduser()
    if path.suffix in _PARQUET:
        return _read_parquet(path)
    try:
        return _read_text(path, most_bytes)
    except csv.Error as error:
        raise FileProblem(f"{path} cannot be read as a table: {error}") from None


def _read_text(path: Path, most_bytes: int) -> dict[str, list[Any]]:
    rows = _rows(path, most_bytes)
    _, names = next(rows, (0, []))
    if not names:
        raise FileProblem(f"{path} is empty")
    if "" in names or len(set(names)) < len(names):
        wrong = "no name" if "" in names else f"the name '{_twice(names)}' of another one"
        raise FileProblem(f"{path}: a column has {wrong}; its first line must name all columns")
    fields: list[list[str]] = [[] for _ in names]
    for number, row in rows:
        if len(row) != len(names):
            raise FileProblem(
                f"{path}, line {number} has {len(row)} field(s), the header has {len(names)}"
            )
        for column, field in zip(fields, row, strict=True):
            column.append(field)
    if not fields[0]:
        raise FileProblem(f"{path} has a header and no rows")
    return {name: _values(column) for name, column in zip(names, fields, strict=True)}


def _rows(path: Path, most_bytes: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line in which a row ends, and its fields."""
    with opened(path) as stream:
        bounded = io.BufferedReader(Bounded(path, stream, most_bytes))
        text = io.TextIOWrapper(bounded, "utf-8-sig", newline="")
        try:
            first = text.readline()
            reader = csv.reader(
                _after(first, text), delimiter=delimiter_of(first) or ",", skipinitialspace=True
            )
            for row in reader:
                if row:
                    yield reader.line_num, [field.strip() for field in row]
        except UnicodeDecodeError as error:
            raise FileProblem(f"{path} is not UTF-8 text: {error.reason}") from None


def _after(first: str, text: io.TextIOWrapper) -> Iterator[str]:
    yield first
    yield from text


def _twice(names: list[str]) -> str:
    return next(name for k, name in enumerate(names) if name in names[:k])


def _values(fields: list[str]) -> list[Any]:
    """Return the values of a column: all numbers, all truth values, all dates, or text."""
    missing = [is_missing_field(field) for field in fields]
    readers: tuple[Callable[[str], Any], ...] = (float, _truth, datetime.fromisoformat)
    for read in readers:
        try:
            return [None if m else read(f) for f, m in zip(fields, missing, strict=True)]
        except (ValueError, KeyError):
            continue
    return [None if m else f for f, m in zip(fields, missing, strict=True)]


def _truth(field: str) -> bool:
    return _TRUTH[field.lower()]


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise FileProblem(
            f"{path}: Parquet needs the package pyarrow (`pip install pyarrow`), or save it as csv"
        ) from None
    if not path.is_file():
        raise FileProblem(f"{path} is not there")
    try:
        table = parquet.read_table(path)
    except Exception as error:
        raise FileProblem(f"{path} cannot be read as Parquet: {error}") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}
