"""Tables of numbers in text files (csv, txt, data): the delimiter and a header are found.

NumPy's reader does the work; only when it fails are the lines gone through one by one, to say which
row and column is to blame.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polymode.core.registry import suggest
from polymode.core.safe_files import FileProblem
from polymode.tasks.readers.streams import LARGEST, Bounded, opened

_MISSING = {"", "?", "-", "na", "n/a", "nan", "null", "none"}
_PACKED = {".gz", ".bz2", ".xz"}  # suffixes that NumPy would unpack, whatever is inside
_SHOWN = 5
_LONGEST = 10_000_000  # characters of a line, which is held whole


class Table(NamedTuple):
    """Values (N, D), float64, and the D names of the columns (their numbers without a header)."""

    values: np.ndarray
    names: tuple[str, ...]


def read_table(
    path: Path | str,
    *,
    columns: Sequence[str | int] | None = None,
    delimiter: str | None = None,
    most_bytes: int = LARGEST,
) -> Table:
    """Return the numbers of a text file.

    Lines that are empty or begin with `#` are left out. The first line is a header where none of
    its fields is a number. A missing value, a text or a row of another length is an error that
    names row (the line of the file, from 1) and column.

    Args:
        path: the file, plain or gzipped, UTF-8.
        columns: names or positions (from 0) of the columns to read; by default all.
        delimiter: by default found: a semicolon, a tab, a comma, else white space.
        most_bytes: more than this is not read.
    """
    path = Path(path)
    try:
        return _read(path, columns, delimiter, most_bytes)
    except csv.Error as error:
        raise FileProblem(f"{path} cannot be read as a table: {error}") from None


def _read(
    path: Path, columns: Sequence[str | int] | None, delimiter: str | None, most_bytes: int
) -> Table:
    text = _Text(path, most_bytes)
    first = next(text.lines(), None)
    if first is None:
        raise FileProblem(f"{path} is empty")
    separator = delimiter_of(first[1]) if delimiter is None else delimiter
    fields = _split(first[1], separator)
    header = not any(map(_is_number, fields)) and not all(map(is_missing_field, fields))
    names = tuple(fields) if header else tuple(map(str, range(len(fields))))
    chosen = _positions(path, columns, names)
    values = text.values(
        separator, first[0] if header else 0, len(names), None if columns is None else chosen
    )
    if values is None or values.shape[1] != len(chosen) or not np.isfinite(values).all():
        raise FileProblem(_fault(path, text, separator, header, names, chosen))
    return Table(values, tuple(names[position] for position in chosen))


class _Text:
    """The lines of a text file, plain or gzipped."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path, self.most_bytes = path, most_bytes

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield number (from 1) and content of the lines that count."""
        with opened(self.path) as stream:
            bounded = io.BufferedReader(Bounded(self.path, stream, self.most_bytes))
            text = io.TextIOWrapper(bounded, "utf-8-sig")
            try:
                for number, line in enumerate(iter(lambda: text.readline(_LONGEST + 1), ""), 1):
                    if len(line) > _LONGEST:
                        raise FileProblem(
                            f"{self.path}, line {number} has more than {_LONGEST:,} characters, the"
                            " most that is read"
                        )
                    if line.strip() and not line.lstrip().startswith("#"):
                        yield number, line.rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise FileProblem(f"{self.path} is not UTF-8 text: {error.reason}") from None

    def values(
        self, separator: str, skip: int, width: int, chosen: list[int] | None
    ) -> np.ndarray | None:
        """Return the numbers below the first `skip` lines, or None where a line is amiss."""
        if next((None for number, _ in self.lines() if number > skip), self) is self:
            raise FileProblem(f"{self.path} has a header and no rows")
        with opened(self.path) as stream:
            plain = not isinstance(stream, gzip.GzipFile) and self.path.suffix not in _PACKED
        direct = plain and chosen is None  # the fast way
        try:
            return np.loadtxt(
                str(self.path) if direct else self._rows(separator, skip, width),
                delimiter=separator or None,
                skiprows=skip if direct else 0,
                usecols=chosen,
                quotechar='"',
                ndmin=2,
                encoding="utf-8-sig",
            )
        except FileProblem:
            raise
        except ValueError:
            return None

    def _rows(self, separator: str, skip: int, width: int) -> Iterator[str]:
        """Yield the lines below the first `skip`, each of `width` fields."""
        for number, line in self.lines():
            if number > skip:
                if len(_split(line, separator)) != width:
                    raise ValueError(f"line {number}")
                yield line


def delimiter_of(line: str) -> str:
    """Return what separates the fields of a line; an empty text stands for white space."""
    return next((mark for mark in (";", "\t", ",") if mark in line), "")


def _split(line: str, separator: str) -> list[str]:
    if not separator:
        return [field.strip('"') for field in line.split()]
    return [field.strip() for field in next(csv.reader([line], delimiter=separator))]


def is_missing_field(field: str) -> bool:
    return field.strip().lower() in _MISSING


def _is_number(field: str) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _positions(
    path: Path, columns: Sequence[str | int] | None, names: tuple[str, ...]
) -> list[int]:
    if columns is None:
        return list(range(len(names)))
    positions = []
    for column in columns:
        if isinstance(column, str):
            if column not in names:
                raise ValueError(
                    f"{path} has no column '{column}'.{suggest(column, names)} It has:"
                    f" {', '.join(names)}"
                )
            positions.append(names.index(column))
        elif 0 <= column < len(names):
            positions.append(column)
        else:
            raise ValueError(f"{path} has columns 0 to {len(names) - 1}, not {column}")
    if not positions:
        raise ValueError("`columns` of read_table must name at least one column")
    return positions


def _fault(
    path: Path,
    text: _Text,
    separator: str,
    header: bool,
    names: tuple[str, ...],
    chosen: list[int],
) -> str:
    """Return what is wrong with the table, as one sentence."""
    missing: list[str] = []
    for order, (number, line) in enumerate(text.lines()):
        fields = _split(line, separator)
        if header and order == 0:
            continue
        if len(fields) != len(names):
            return f"{path}, row {number}: {len(fields)} values, {len(names)} expected"
        for position in chosen:
            where = f"row {number}, column '{names[position]}'"
            if is_missing_field(fields[position]):
                missing.append(where)
            elif not _is_number(fields[position]):
                remaining = [name for name in names if name != names[position]]
                return (
                    f"{path}, {where}: '{fields[position]}' is not a number; encode the column or"
                    f" read the others with columns={_few(remaining)}"
                )
    if missing:
        return (
            f"{path}: {len(missing):,} missing value(s): {'; '.join(missing[:_SHOWN])}"
            f"{' ...' if len(missing) > _SHOWN else ''}; drop the rows or fill them in first"
        )
    return f"{path} cannot be read as a table with the delimiter {separator or 'white space'!r}"


def _few(names: list[str]) -> str:
    listed = ", ".join(map(repr, names[:_SHOWN]))
    return f"[{listed}{', ...' if len(names) > _SHOWN else ''}]"
