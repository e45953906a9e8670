"""The folder of a posterior: how a new one takes the place of an old one.

1. Tensors are written under temporary names (`Draft`).
2. The new manifest is written under a temporary name, with the names that the tensors will have.
3. The tensors get these names, which nothing else had.
4. The manifest gets its own, in one step: before it the folder holds the old posterior, after it
   the new one.
5. The files that the old manifest named are removed, and no others; it is kept under a temporary
   name until they are.

Steps 2 to 5 lock the folder, so two processes that save take turns. Where the file system has no
locks, names are still never taken twice, and at worst old files stay. A reader that comes too late
for the old files finds a new manifest. A killed process leaves temporary files and those that its
temporary manifests name: the next save removes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from polymode.core.safe_files import (
    FileProblem,
    TensorFile,
    abandoned,
    create_folder,
    fill_file,
    is_plain_name,
    locked,
    read_json,
    temporary_path,
)
from polymode.posterior.manifest import MANIFEST, SCHEMA

_TENSORS = "members-*.safetensors"


class Draft(NamedTuple):
    """A file of tensors that has no final name yet.

    Attributes:
        temporary: its name now. suffix: what follows the number of the save in its final name.
        entry: what the manifest says of it, without its name.
    """

    temporary: str
    suffix: str
    entry: dict[str, Any]

    def named(self, number: int) -> str:
        return f"members-{number}{self.suffix}.safetensors"


def make_folder(folder: Path) -> None:
    """Make the folder of a posterior, and remove what killed processes left in it."""
    try:
        create_folder(folder, "the folder of a posterior")
    except OSError as error:
        raise _unwritable(folder, error) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(folder, PermissionError(13, "Permission denied"))
    with locked(folder):
        _sweep(folder)


def _unwritable(folder: Path, error: OSError) -> FileProblem:
    return FileProblem(f"{folder} cannot be written to: {error.strerror}; give another folder")


def draft_path(folder: Path, suffix: str) -> Path:
    """Return a new temporary name for tensors."""
    return temporary_path(folder / f"members{suffix}.safetensors")


def discard(folder: Path, drafts: Sequence[Draft]) -> None:
    """Remove drafts that did not become files of the posterior."""
    for draft in drafts:
        (folder / draft.temporary).unlink(missing_ok=True)


def publish(
    folder: Path,
    drafts: Sequence[Draft],
    manifest: dict[str, Any],
    write: Callable[[Path, dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Let the drafts and their manifest take the place of what the folder held; return the
    manifest's entries. `write` writes a manifest to a file."""
    journal, replaced = temporary_path(folder / MANIFEST), temporary_path(folder / MANIFEST)
    placed: list[Path] = []
    with locked(folder) as descriptor:
        try:
            number = _next_number(folder)
            while True:
                entries = [{"file": draft.named(number), **draft.entry} for draft in drafts]
                write(journal, {**manifest, "tensors": entries})
                if _claim(folder, [entry["file"] for entry in entries], placed):
                    break
                number += 1
            for draft, path in zip(drafts, placed, strict=True):
                os.replace(folder / draft.temporary, path)
            if descriptor is not None:
                os.fsync(descriptor)  # the names of the tensors are on disk before the manifest
            if (folder / MANIFEST).is_file():
                fill_file(replaced, lambda file: file.write((folder / MANIFEST).read_bytes()))
            os.replace(journal, folder / MANIFEST)
        except BaseException:
            for path in placed:
                path.unlink(missing_ok=True)
            journal.unlink(missing_ok=True)
            replaced.unlink(missing_ok=True)
            raise
        for name in _named_files(replaced).keys() - {entry["file"] for entry in entries}:
            with suppress(OSError):  # the new posterior is complete; another may have removed it
                (folder / name).unlink()
        replaced.unlink(missing_ok=True)
    return entries


def _next_number(folder: Path) -> int:
    numbers = (path.stem.split("-")[1] for path in folder.glob(_TENSORS))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def _claim(folder: Path, names: Sequence[str], placed: list[Path]) -> bool:
    """Make empty files of all these names; nothing of them if one is taken already."""
    for name in names:
        try:
            os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            while placed:
                placed.pop().unlink(missing_ok=True)
            return False
        placed.append(folder / name)
    return True


def _named_files(path: Path) -> dict[str, Any]:
    """Return the digests of the tensor files that a manifest names, as far as it can be read."""
    try:
        manifest = read_json(path, SCHEMA)
        if manifest["schema"] < 2:
            entries = [{"file": manifest["tensors"], "digest": manifest["tensors_digest"]}]
        else:
            entries = manifest["tensors"]
        files = {entry["file"]: entry["digest"] for entry in entries}
    except (FileProblem, KeyError, TypeError):
        return {}
    return {
        name: digest
        for name, digest in files.items()
        if is_plain_name(name) and Path(name).match(_TENSORS)
    }


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed while they saved have left."""
    current = _named_files(folder / MANIFEST)
    for journal in abandoned(folder, MANIFEST):
        for name, digest in _named_files(journal).items():
            if name not in current and _is_remainder(folder / name, digest):
                (folder / name).unlink(missing_ok=True)
    for pattern in ("members*.safetensors", MANIFEST, f".{MANIFEST}.*"):
        for path in abandoned(folder, pattern):
            path.unlink(missing_ok=True)


def _is_remainder(path: Path, digest: Any) -> bool:
    """Whether a file is the one that a manifest names, or was claimed for it and never filled."""
    try:
        if path.stat().st_size == 0:
            return True
        with TensorFile(path, digest):
            return True
    except (OSError, FileProblem):
        return False
