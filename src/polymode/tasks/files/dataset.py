"""Data sets: what is known of one before it is here, where its packed file lies, reading from it.

DATASETS.get("mnist").value.originals[0].addresses
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from polymode.core.registry import Registry
from polymode.core.safe_files import FileProblem, cache_folder
from polymode.tasks.readers.npz import npz_headers, read_npz

Reader = Callable[[Mapping[str, Path]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Original:
    """A file as its authors publish it.

    Attributes:
        name: its name, also a relative path such as `gap/boston/data/index_test_0.txt`.
        addresses: where to get it, the first one first; all serve the same bytes.
        size: bytes, exactly; no more than this is ever taken from a server.
        sha256: its checksum; empty where none was published.
        md5: the checksum to use where no sha256 was published.
    """

    name: str
    addresses: tuple[str, ...]
    size: int
    sha256: str = ""
    md5: str = ""

    @property
    def checksum(self) -> tuple[str, str]:
        """The kind of checksum and its value; ("none", "") where there is none."""
        if self.sha256:
            return "sha256", self.sha256
        return ("md5", self.md5) if self.md5 else ("none", "")


@dataclass(frozen=True)
class ArraySpec:
    """What one array must be.

    Attributes:
        shape: its shape, exactly.
        dtype: its type; labels ("int64") may be stored as any integers.
        num_classes: labels lie in 0 to num_classes - 1; 0 for other arrays.
        counts: examples of each class, where known.
        sha256: of the values in C order, where those of the original are known.
    """

    shape: tuple[int, ...]
    dtype: str
    num_classes: int = 0
    counts: tuple[int, ...] = ()
    sha256: str = ""

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Dataset:
    """A data set: its files, how to read them, and the arrays that come of it.

    Attributes:
        description: what it is, one line.
        licence: terms of use, one line.
        originals: its files; empty for a set that is only taken from a folder.
        read: arrays from the files, by name of the file.
        arrays: what `load` returns.
        also: further names of packed files, with the arrays these hold.
    """

    description: str
    licence: str
    originals: tuple[Original, ...]
    read: Reader | None
    arrays: Mapping[str, ArraySpec]
    also: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def download_size(self) -> int:
        """Bytes of all originals."""
        return sum(original.size for original in self.originals)

    @property
    def packed_size(self) -> int:
        """Bytes of all arrays."""
        return sum(spec.size for spec in self.arrays.values())

    @property
    def checksums(self) -> str:
        """The kind of checksum of its files: "sha256", "md5" or "none"."""
        kinds = {original.checksum[0] for original in self.originals}
        return next((kind for kind in ("none", "md5", "sha256") if kind in kinds), "none")


DATASETS: Registry[Dataset] = Registry("data set")


def check_header(
    where: str, name: str, spec: ArraySpec, shape: tuple[int, ...], dtype: np.dtype
) -> None:
    """Raise `FileProblem` unless shape and type are those of the data set."""
    fits = dtype.kind in "iu" if spec.num_classes else dtype == np.dtype(spec.dtype)
    if tuple(shape) != spec.shape or not fits:
        raise FileProblem(
            f"{where}: {name} is {tuple(shape)} {dtype}, the data set has {spec.shape} {spec.dtype}"
        )


def canonical(spec: ArraySpec, array: np.ndarray) -> np.ndarray:
    """Return the array in the data set's type, C order."""
    return np.ascontiguousarray(array, dtype=spec.dtype)


def check_values(where: str, name: str, spec: ArraySpec, array: np.ndarray) -> None:
    """Raise `FileProblem` unless the values can be those of the data set."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise FileProblem(f"{where}: {name} holds NaN or infinite values")
    if spec.num_classes:
        _check_labels(where, name, spec, array)
    if spec.sha256 and hashlib.sha256(array.data).hexdigest() != spec.sha256:
        raise FileProblem(
            f"{where}: {name} does not hold the values of the original files (their sha256 differs)"
        )


def _check_labels(where: str, name: str, spec: ArraySpec, array: np.ndarray) -> None:
    wrong = np.flatnonzero((array < 0) | (array >= spec.num_classes))
    if wrong.size:
        raise FileProblem(
            f"{where}: {name} must be 0 to {spec.num_classes - 1}, got {array[wrong[0]]} in row"
            f" {wrong[0]} ({wrong.size:,} such)"
        )
    counts = tuple(np.bincount(array, minlength=spec.num_classes).tolist())
    if spec.counts and counts != spec.counts:
        label = next(
            k for k, pair in enumerate(zip(counts, spec.counts, strict=True)) if len({*pair}) > 1
        )
        raise FileProblem(
            f"{where}: {name} has {counts[label]:,} examples of class {label}, the data set has"
            f" {spec.counts[label]:,}"
        )


class MissingData(ValueError):
    """Data sets that are not on this machine; the message names the command that gets them."""


def data_folder() -> Path:
    """Return `$POLYMODE_DATA`, or `data` in the cache folder (`core/safe_files.py`)."""
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
    downloadable = [name for name in missing if name not in local]
    remedies = [f"get with `polymode data get {' '.join(downloadable)}`"] if downloadable else []
    if local:
        remedies.append(
            f"{', '.join(local)} cannot be downloaded: from a folder that has it, such as"
            f" ~/Downloads, get with `polymode data get {' '.join(local)} --from ~/Downloads`"
        )
    raise MissingData(f"Data not in {data_folder()}: {', '.join(missing)}; {'; '.join(remedies)}")
