"""Columns of a table as plain arrays of one of four kinds, whatever the table comes as.

A table is a DataFrame (pandas, polars or anything with `columns` and `frame[name].to_numpy()`), or
a dictionary from names to sequences; neither library is needed. A column becomes one of

========  ===============================================================
number    float64, NaN where missing
boolean   float64 of 0 and 1, NaN where missing
date      float64, days since 1970-01-01 (UTC), NaN where missing
category  objects: text, None where missing
========  ===============================================================

by its type, or by its values where the type is "object". `N` rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from polymode.core.checks import shown
from polymode.core.registry import suggest

KINDS = ("number", "boolean", "date", "category")
_CATEGORICAL = ("category", "Categorical", "Enum")  # names of types in pandas and polars


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one column: `values` (N,) of `kind`, see the module."""

    name: str
    kind: str
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    @property
    def missing(self) -> np.ndarray:
        """True where there is no value, (N,)."""
        if self.kind == "category":
            return np.array([value is None for value in self.values], dtype=bool)
        return np.isnan(self.values)

    def take(self, rows: np.ndarray) -> Column:
        """Return some rows."""
        return Column(self.name, self.kind, self.values[rows])


def is_frame(value: Any) -> bool:
    """Whether a value is a table with names of columns, and not an array, tensor or data set."""
    if isinstance(value, (Tensor, np.ndarray, str)):
        return False
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and hasattr(value, "shape")


def read_columns(frame: Any, what: str = "the table") -> dict[str, Column]:
    """Return the columns of a DataFrame or of a dictionary of sequences by name."""
    if isinstance(frame, Mapping):
        sources: dict[str, Any] = {str(name): values for name, values in frame.items()}
    elif is_frame(frame):
        names = list(frame.columns)
        if len(set(map(str, names))) < len(names):
            twice = next(str(n) for k, n in enumerate(names) if str(n) in map(str, names[:k]))
            raise ValueError(f"{what} has two columns named '{twice}'; rename one")
        sources = {str(name): frame[name] for name in names}
    else:
        raise ValueError(
            f"{what} must be a DataFrame or a dictionary of columns, got {shown(frame)}"
        )
    if not sources:
        raise ValueError(f"{what} has no columns")
    columns = {name: read_column(name, source) for name, source in sources.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of {what} differ in length: {lengths}")
    return columns


def read_column(name: str, source: Any) -> Column:
    """Return one column: a series, an array or a sequence of values."""
    type_name = type(getattr(source, "dtype", None)).__name__
    declared = str(getattr(source, "dtype", ""))
    values = source.to_numpy() if hasattr(source, "to_numpy") else source
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if not isinstance(values, np.ndarray):
        values = _objects(values)
    if values.ndim != 1:
        raise ValueError(f"column '{name}' must have one value per row, got shape {values.shape}")
    if declared.startswith(_CATEGORICAL) or "Categorical" in type_name:
        return Column(name, "category", _texts(values.astype(object)))
    kind = values.dtype.kind
    if kind == "b":
        return Column(name, "boolean", values.astype(np.float64))
    if kind in "iuf":
        return Column(name, "number", values.astype(np.float64))
    if kind == "M":
        return Column(name, "date", _days(values))
    if kind in "US":
        return Column(name, "category", _texts(values.astype(object)))
    if kind == "O":
        return _by_values(name, values)
    raise ValueError(
        f"column '{name}' is of type {values.dtype}, which is neither a number, a truth value, a"
        " date nor a category; convert or drop it"
    )


def columns_named(columns: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """Refuse a table that lacks one of the columns."""
    for name in names:
        if name not in columns:
            listed = ", ".join(list(columns)[:8]) + (", ..." if len(columns) > 8 else "")
            near = suggest(name, columns)
            raise ValueError(f"{what} has no column '{name}'.{near} It has: {listed}")


def _objects(values: Iterable[Any]) -> np.ndarray:
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, NaT or a library's NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and math.isnan(value)


def _by_values(name: str, values: np.ndarray) -> Column:
    """Return a column of objects, whose kind is that of its values."""
    missing = np.array([is_missing(value) for value in values], dtype=bool)
    present = values[~missing]
    if not len(present):
        return Column(name, "number", np.full(len(values), np.nan))
    if all(isinstance(v, (bool, np.bool_)) for v in present):
        return Column(name, "boolean", _filled(values, missing, float))
    if all(isinstance(v, Real) or type(v).__name__ == "Decimal" for v in present):
        return Column(name, "number", _filled(values, missing, float))
    if all(isinstance(v, (date, np.datetime64)) for v in present):
        return Column(name, "date", _filled(values, missing, day_number))
    for value in present:
        if isinstance(value, (list, dict, tuple, set, np.ndarray, bytes)):
            raise ValueError(
                f"column '{name}' holds {shown(value)}, which is neither a number, a truth value, a"
                " date nor text; spread it over several columns, or drop it"
            )
    return Column(name, "category", _texts(values))


def _filled(values: np.ndarray, missing: np.ndarray, convert: Any) -> np.ndarray:
    filled = np.full(len(values), np.nan)
    filled[~missing] = [convert(value) for value in values[~missing]]
    return filled


def _texts(values: np.ndarray) -> np.ndarray:
    return _objects(None if is_missing(value) else str(value) for value in values)


def _days(values: np.ndarray) -> np.ndarray:
    since = values.astype("datetime64[us]") - np.datetime64(0, "us")
    days = since.astype(np.float64) / (24 * 3600 * 1e6)
    days[np.isnat(values)] = np.nan
    return days


def day_number(value: Any) -> float:
    """Return the days since 1970-01-01 of a date or time; times without a zone count as UTC."""
    if isinstance(value, np.datetime64):
        return float(_days(np.array([value]))[0])
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return moment.timestamp() / (24 * 3600)
    return float(value.toordinal() - date(1970, 1, 1).toordinal())
