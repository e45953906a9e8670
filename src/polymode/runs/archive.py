"""Predictions of a cell, and the arrays of its examinations, as an `.npz` file; and back.

Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polymode.core.memory import free_bytes
from polymode.core.safe_files import FileProblem
from polymode.core.text import parse_json
from polymode.metrics.results import Kept
from polymode.prediction import Prediction
from polymode.tasks.readers.npz import npz_headers, read_npz

Arrays = Mapping[str, Mapping[str, np.ndarray]]
"""By examination and name."""
_ANY = 2**62  # where only headers are read


def pack(predictions: Mapping[str, Kept], examined: Arrays | None = None) -> bytes:
    """Return predictions and arrays as the bytes of an `.npz` file, the same bytes each time."""
    arrays: dict[str, np.ndarray] = {}
    about = []
    for number, (name, (prediction, targets, inputs)) in enumerate(predictions.items()):
        tensors, facts = prediction.to_arrays()
        for part, tensor in {**tensors, "targets": targets, "inputs": inputs}.items():
            if tensor is not None:
                arrays[f"{number}.{part}"] = tensor.detach().cpu().numpy()
        about.append({"name": name, "parts": list(tensors), "rest": facts})
    arrays["about"] = np.array(json.dumps(about))
    for number, of_label in enumerate((examined or {}).values()):
        arrays |= {f"examined.{number}.{name}": array for name, array in of_label.items()}
    if examined:
        names = {label: list(of_label) for label, of_label in examined.items()}
        arrays["examined"] = np.array(json.dumps(names))
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def digest_of(content: bytes) -> str:
    """Return the digest of a file's bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Checker:
    """Checks files of predictions; each is read once, as long as it does not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str | None, int, int], str] = {}

    def problem(self, path: Path, digest: str | None) -> str:
        """Return what is wrong with a file; nothing where it is intact, or where there is none.

        Without a `digest`, as in older runs, all its arrays are read.
        """
        try:
            about = path.stat()
        except FileNotFoundError:
            return ""
        key = path, digest, about.st_mtime_ns, about.st_size
        if key not in self._known:
            self._known[key] = self._look(path, digest)
        return self._known[key]

    def _look(self, path: Path, digest: str | None) -> str:
        if not path.is_file():
            return f"{path} is not a plain file"
        if digest is not None:
            unchanged = digest_of(path.read_bytes()) == digest
            return (
                "" if unchanged else f"{path} was changed after it was written: its digest differs"
            )
        try:
            list(Stored(path).values()), list(StoredArrays(path).values())
        except FileProblem as error:
            return str(error)
        return ""


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, FileProblem):
            raise
        raise FileProblem(f"{path} does not hold predictions of polymode: {error!r}") from None


def _text(path: Path, name: str) -> Any:
    """Return the JSON that one array of a file holds."""
    return parse_json(str(read_npz(path, [name])[name]))


class _Recent:
    """The predictions that were read last, `most` bytes of them at most: figures of a report ask
    for the same ones again and again."""

    def __init__(self, most: int = 2**27) -> None:
        self.most, self._bytes = most, 0
        self._held: dict[tuple[Any, ...], tuple[Kept, int]] = {}

    def get(self, key: tuple[Any, ...]) -> Kept | None:
        entry = self._held.pop(key, None)
        if entry is None:
            return None
        self._held[key] = entry  # the last to go
        return entry[0]

    def put(self, key: tuple[Any, ...], kept: Kept, size: int) -> None:
        if size > self.most or key in self._held:
            return
        self._held[key] = kept, size
        self._bytes += size
        while self._bytes > self.most:
            self._bytes -= self._held.pop(next(iter(self._held)))[1]


_recent = _Recent()


class Stored(Mapping[str, Kept]):
    """What `pack` packed, in a file; each prediction is read when it is asked for, and of all files
    128 MB are held.

    Raises `FileProblem` where the file is damaged, now or then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _damage_named(path):
            self._held = set(npz_headers(path, most_bytes=_ANY))
            about = _text(path, "about")
            self._about = {facts["name"]: (number, facts) for number, facts in enumerate(about)}

    def __getitem__(self, name: str) -> Kept:
        number, facts = self._about[name]
        with _damage_named(self.path):
            about = self.path.stat() if self.path.exists() else None
            key = (self.path, name, about and (about.st_mtime_ns, about.st_size))
            if (kept := _recent.get(key)) is not None:
                return kept
            parts = {part: f"{number}.{part}" for part in [*facts["parts"], "targets", "inputs"]}
            places = [place for place in parts.values() if place in self._held]
            arrays = read_npz(self.path, places, most_bytes=free_bytes())
            tensors = {
                part: torch.from_numpy(arrays[place])
                for part, place in parts.items()
                if place in arrays
            }
            extra = [tensors.pop(part, None) for part in ("targets", "inputs")]
            kept = Kept(Prediction.from_arrays(tensors, facts["rest"]), *extra)
            _recent.put(key, kept, 2 * sum(array.nbytes for array in arrays.values()))
            return kept

    def __contains__(self, name: object) -> bool:
        return name in self._about  # a `Mapping` would read the prediction

    def __iter__(self) -> Iterator[str]:
        return iter(self._about)

    def __len__(self) -> int:
        return len(self._about)


class StoredArrays(Mapping[str, Mapping[str, np.ndarray]]):
    """The arrays of examinations that `pack` packed; read when they are asked for, and not held.

    Raises `FileProblem` where the file is damaged, now or then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _damage_named(path):
            examined = "examined" in npz_headers(path, most_bytes=_ANY)
            self._names = dict(_text(path, "examined")) if examined else {}

    def __getitem__(self, label: str) -> dict[str, np.ndarray]:
        names, number = self._names[label], list(self._names).index(label)
        with _damage_named(self.path):
            places = {name: f"examined.{number}.{name}" for name in names}
            arrays = read_npz(self.path, places.values(), most_bytes=free_bytes())
            return {name: arrays[place] for name, place in places.items()}

    def __contains__(self, label: object) -> bool:
        return label in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
