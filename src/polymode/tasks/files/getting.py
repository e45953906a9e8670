"""From the original files, or a folder that has them, to one packed file in the data folder."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polymode.core.memory import human
from polymode.core.safe_files import FileProblem, replace_with
from polymode.tasks.files.dataset import (
    DATASETS,
    Dataset,
    canonical,
    check_header,
    check_packed,
    check_values,
    data_folder,
    find,
    packed_files,
)
from polymode.tasks.files.download import DownloadProblem, download, wrong_checksum
from polymode.tasks.readers.npz import read_npz


@dataclass(frozen=True)
class Step:
    """What `get` is doing.

    Attributes:
        kind: "here" (nothing to do), or "start", then "download" or "check", "read", "write".
        name: of the data set.
        file: the file that it is about.
        done: bytes of the data set's files that are here; `total` of how many.
    """

    kind: str
    name: str
    file: str
    done: int = 0
    total: int = 0


Observer = Callable[[Step], Any]


def get(name: str, *, source: Path | None = None, observer: Observer | None = None) -> Path:
    """Bring a data set into the data folder; return its packed file.

    Downloads the original files, or takes them, or a packed file, from the folder `source`; checks
    them, reads them, checks what was read, and writes `<name>.npz` in one step. What a broken
    download brought is kept in `downloads/` and continued; once all is done it is removed.

    Args:
        name: of `DATASETS`.
        source: a folder with the original files (also in a subfolder called `name`), or with the
            packed `.npz`.
        observer: hears of every `Step`.
    """
    dataset = DATASETS.get(name).value
    tell = observer or (lambda step: None)
    packed = None if source is None else find(name, source)
    names = tuple(dataset.arrays) if packed is None else packed_files(name, packed.parent)[packed]
    packed_here = _here(name, dataset, names)
    if packed_here is not None:
        tell(Step("here", name, str(packed_here)))
        return packed_here
    tell(Step("start", name, str(source or "")))
    target = data_folder() / (f"{name}.npz" if packed is None else packed.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if packed is not None:
            tell(Step("read", name, str(packed)))
            check_packed(dataset, packed, names)
            arrays = _checked(dataset, names, read_npz(packed, names), str(packed))
        else:
            files = _originals(name, dataset, source, target.parent, tell)
            tell(Step("read", name, _few(list(files))))
            assert dataset.read is not None
            arrays = _checked(dataset, names, dataset.read(files), name)
        tell(Step("write", name, str(target)))
        _ask_disk(target.parent, sum(array.nbytes for array in arrays.values()))
        replace_with(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        if source is None:
            shutil.rmtree(_downloads(name, target.parent), ignore_errors=True)
    finally:
        _remove_empty(target.parent / "downloads")
    return target


def _remove_empty(folder: Path) -> None:
    """Remove the folder and those in it, as far as no file is in them."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()


def _here(name: str, dataset: Dataset, names: tuple[str, ...]) -> Path | None:
    """Return the file that holds `names` already; a damaged one does not count."""
    for path, held in packed_files(name, data_folder()).items():
        if path.is_file() and set(names) <= set(held):
            try:
                check_packed(dataset, path, held)
            except FileProblem:
                continue
            return path
    return None


def _checked(
    dataset: Dataset, names: tuple[str, ...], arrays: dict[str, np.ndarray], where: str
) -> dict[str, np.ndarray]:
    """Return the arrays called `names` in the data set's types, or raise `FileProblem`."""
    checked = {}
    for name in names:
        if name not in arrays:
            raise FileProblem(f"{where} lacks {name}")
        spec, array = dataset.arrays[name], arrays[name]
        check_header(where, name, spec, array.shape, array.dtype)
        checked[name] = canonical(spec, array)
        check_values(where, name, spec, checked[name])
    return checked


def _downloads(name: str, folder: Path) -> Path:
    return folder / "downloads" / name


def _originals(
    name: str, dataset: Dataset, source: Path | None, folder: Path, tell: Observer
) -> dict[str, Path]:
    """Return the original files, checked: from `source`, or downloaded."""
    if source is not None:
        return _from_folder(name, dataset, source, tell)
    if not dataset.originals:
        raise DownloadProblem(
            f"{name} cannot be downloaded; name a folder that has {name}.npz"
            f"{''.join(f' or {file}' for file in dataset.also)}, such as ~/Downloads:"
            f" `polymode data get {name} --from ~/Downloads`"
        )
    total, before = dataset.download_size, 0
    _ask_disk(folder, total + dataset.packed_size)
    files = {}
    for original in dataset.originals:
        path = _downloads(name, folder) / original.name

        def progress(done: int, file: str = original.name, start: int = before) -> None:
            tell(Step("download", name, file, start + done, total))

        download(original, path, progress)
        files[original.name] = path
        before += original.size
    return files


def _from_folder(name: str, dataset: Dataset, source: Path, tell: Observer) -> dict[str, Path]:
    files, missing = {}, []
    for original in dataset.originals:
        places = (source / name / original.name, source / original.name)
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            missing.append(original.name)
        else:
            files[original.name] = path
    if missing or not dataset.originals:
        packed = " or ".join(path.name for path in packed_files(name, source))
        lacking = f", nor {_few(missing)} of its original files" if missing else ""
        raise FileProblem(f"{source} has no {packed}{lacking}")
    done = 0
    for original in dataset.originals:
        tell(Step("check", name, original.name, done, dataset.download_size))
        cause = wrong_checksum(files[original.name], original)
        if cause is not None:
            raise FileProblem(f"{files[original.name]}: {cause}; download it again")
        done += original.size
    return files


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1} more"


def _ask_disk(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if need > free:
        raise DownloadProblem(
            f"{folder} has {human(free)} free, {human(need)} is needed; make room or set"
            " POLYMODE_DATA to a folder elsewhere"
        )
