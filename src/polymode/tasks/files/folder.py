"""The folder with the data: where it is, what lies in it, and reading from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polymode.core.files import FileProblem, cache_folder
from polymode.tasks.files.dataset import DATASETS, Dataset, canonical, check_header
from polymode.tasks.readers.npz import npz_headers, read_npz


class MissingData(ValueError):
    """Data sets that are not on this machine; the message names the command that gets them."""


def data_folder() -> Path:
    """Return `$POLYMODE_DATA`, or `data` in the cache folder (`core/files.py`)."""
    named = os.environ.get("POLYMODE_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def packed_files(name: str, folder: Path) -> dict[Path, tuple[str, ...]]:
    """Return the files that may hold the data set, the best first, and the arrays of each."""
    dataset = DATASETS.get(name).value
    files = {folder / f"{name}.npz": tuple(dataset.arrays)}
    return files | {folder / file: names for file, names in dataset.also.items()}


def find(name: str, folder: Path | None = None) -> Path | None:
    """Return the packed file of a data set, or None where there is none."""
    files = packed_files(name, data_folder() if folder is None else folder)
    return next((path for path in files if path.is_file()), None)


def load(name: str, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a data set that is here; never touches the network.

    Images are `x_train`, `x_test` (N, H, W) or (N, H, W, 3) uint8, labels `y_train`, `y_test` (N,)
    int64; where only the test half is here, only that. For "uci" see docs/data.md.

    Args:
        name: of `DATASETS`.
        names: the arrays that are needed; others are not read. Default: all that are here.
    """
    require(name)
    path = find(name)
    assert path is not None
    held = packed_files(name, path.parent)[path]
    wanted = held if names is None else tuple(names)
    if not set(wanted) <= set(held):
        raise MissingData(
            f"{path} holds only {', '.join(held)} of {name}; get all of it with `polymode data get"
            f" {name}`"
        )
    return read_packed(DATASETS.get(name).value, path, wanted)


def read_packed(dataset: Dataset, path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the arrays called `names` of a packed file, of the shapes that the data set has."""
    try:
        check_packed(dataset, path, names)
        arrays = read_npz(path, names)
    except FileProblem as problem:
        raise FileProblem(f"{problem}; remove the file and get it again") from None
    return {name: canonical(dataset.arrays[name], array) for name, array in arrays.items()}


def check_packed(dataset: Dataset, path: Path, names: tuple[str, ...]) -> None:
    """Raise `FileProblem` unless the headers of a packed file are those of the data set."""
    headers = npz_headers(path)
    missing = [name for name in names if name not in headers]
    if missing:
        raise FileProblem(f"{path} lacks {', '.join(missing)}")
    for name in names:
        check_header(str(path), name, dataset.arrays[name], *headers[name])


def require(*names: str) -> None:
    """Raise `MissingData` with the one command that gets all of `names` that are not here."""
    missing = [name for name in dict.fromkeys(names) if find(name) is None]
    if not missing:
        return
    local = [name for name in missing if not DATASETS.get(name).value.originals]
    others = [name for name in missing if name not in local]
    told = [f"get with `polymode data get {' '.join(others)}`"] if others else []
    if local:
        told.append(
            f"{', '.join(local)} cannot be downloaded: from a folder that has it, such as"
            f" ~/Downloads, get with `polymode data get {' '.join(local)} --from ~/Downloads`"
        )
    raise MissingData(f"Data not in {data_folder()}: {', '.join(missing)}; {'; '.join(told)}")
