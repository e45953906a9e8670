"""DataFrames and names of classes where a `Task` takes arrays: `Task(train=(df, df_y), ...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.tasks.frames.columns import Column, is_frame, read_column, read_columns
from polymode.tasks.frames.encoder import TableEncoder


class Sets(NamedTuple):
    """Sets of a task as arrays.

    Attributes:
        by_name: "train", "val" and "test" as given, tables and names of classes replaced.
        encoder: of the tables, None if there were none.
        classes: names of the classes, None if labels were numbers.
    """

    by_name: dict[str, Any]
    encoder: TableEncoder | None
    classes: tuple[str, ...] | None


def as_arrays(train: Any, others: Mapping[str, Any]) -> Sets:
    """Return the sets with tables encoded and names of classes numbered, as `train` has them."""
    given = {"train": train, **others}
    if not _is_pair(train) or not (is_frame(train[0]) or _are_names(train[1])):
        return Sets(given, None, None)
    classes = class_names(train[1]) if _are_names(train[1]) else None
    encoder = None
    if is_frame(train[0]):
        encoder = TableEncoder.fit(read_columns(train[0], "train"), classes=classes)
    arrays = {
        name: _pair_of(source, encoder, classes, name) if _is_pair(source) else source
        for name, source in given.items()
    }
    return Sets(arrays, encoder, classes)


def class_names(targets: Any) -> tuple[str, ...]:
    """Return the different names among targets, sorted."""
    column = read_column("targets", targets)
    refuse_missing(column)
    return tuple(sorted({*column.values.tolist()}))


def labels_of(targets: Any, classes: Sequence[str], what: str) -> Tensor:
    """Return the numbers of named classes, int64 (N,)."""
    column = read_column("targets", targets)
    refuse_missing(column)
    places = {name: label for label, name in enumerate(classes)}
    for row, name in enumerate(column.values):
        if name not in places:
            raise ValueError(
                f"{what} has the class '{name}' in row {row}, which train has not; train has"
                f" {', '.join(classes[:5])}"
            )
    return torch.tensor([places[name] for name in column.values], dtype=torch.long)


def refuse_missing(column: Column) -> None:
    """Refuse targets that are missing or infinite."""
    wrong = column.missing
    if column.kind != "category":
        wrong = wrong | np.isinf(column.values)
    if wrong.any():
        raise ValueError(
            f"target '{column.name}' is missing or infinite in {int(wrong.sum())} of {len(column)}"
            f" rows, the first is row {int(wrong.argmax())}; drop these rows"
        )


def _is_pair(source: Any) -> bool:
    return isinstance(source, (tuple, list)) and len(source) == 2


def _are_names(targets: Any) -> bool:
    """Whether targets are text, and not numbers or tensors."""
    if isinstance(targets, Tensor) or is_frame(targets):
        return False
    if isinstance(targets, (list, tuple)):
        return bool(targets) and all(isinstance(name, str) for name in targets)
    if not hasattr(targets, "to_numpy") and not isinstance(targets, np.ndarray):
        return False
    if isinstance(targets, np.ndarray) and (targets.ndim != 1 or targets.dtype.kind in "biufcM"):
        return False
    return read_column("targets", targets).kind == "category"


def _pair_of(
    source: Any, encoder: TableEncoder | None, classes: tuple[str, ...] | None, what: str
) -> tuple[Any, Any]:
    x, y = source
    if encoder is not None:
        x = encoder(x, what)
    if classes is not None:
        return x, labels_of(y, classes, what)
    if is_frame(y):
        columns = read_columns(y, f"targets of {what}").values()
        y = np.stack([column.values for column in columns], 1)
    elif hasattr(y, "to_numpy"):
        y = y.to_numpy()
    return x, torch.as_tensor(np.asarray(y)) if not isinstance(y, Tensor) else y
