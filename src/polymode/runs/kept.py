"""Predictions of a cell, and the arrays of its examinations, as an `.npz` file; and back.

Nothing is pickled.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from polymode.metrics.results import Kept
from polymode.prediction import Prediction

Arrays = Mapping[str, Mapping[str, np.ndarray]]
"""By examination and name."""


def pack(kept: Mapping[str, Kept], examined: Arrays | None = None) -> bytes:
    """Return predictions and arrays as the bytes of an `.npz` file, the same bytes each time."""
    arrays: dict[str, np.ndarray] = {}
    about = []
    for number, (name, (prediction, targets, inputs)) in enumerate(kept.items()):
        tensors, rest = prediction.to_arrays()
        for part, tensor in {**tensors, "targets": targets, "inputs": inputs}.items():
            if tensor is not None:
                arrays[f"{number}.{part}"] = tensor.detach().cpu().numpy()
        about.append({"name": name, "parts": list(tensors), "rest": rest})
    arrays["about"] = np.array(json.dumps(about))
    found = examined or {}
    for number, each in enumerate(found.values()):
        arrays |= {f"examined.{number}.{name}": array for name, array in each.items()}
    if found:
        arrays["examined"] = np.array(json.dumps({label: list(a) for label, a in found.items()}))
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


class Stored(Mapping[str, Kept]):
    """What `pack` packed, in a file; each prediction is read when it is asked for, and not held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
        self._about = {each["name"]: (number, each) for number, each in enumerate(about)}

    def __getitem__(self, name: str) -> Kept:
        number, each = self._about[name]
        with np.load(self.path, allow_pickle=False) as arrays:
            tensors = {part: torch.from_numpy(arrays[f"{number}.{part}"]) for part in each["parts"]}
            extra = [
                torch.from_numpy(arrays[part]) if part in arrays else None
                for part in (f"{number}.targets", f"{number}.inputs")
            ]
        return Kept(Prediction.from_arrays(tensors, each["rest"]), *extra)

    def __iter__(self) -> Iterator[str]:
        return iter(self._about)

    def __len__(self) -> int:
        return len(self._about)


class StoredArrays(Mapping[str, Mapping[str, np.ndarray]]):
    """The arrays of examinations that `pack` packed; read when they are asked for, and not held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with np.load(path, allow_pickle=False) as arrays:
            there = "examined" in arrays
            self._names = json.loads(str(arrays["examined"])) if there else {}

    def __getitem__(self, label: str) -> dict[str, np.ndarray]:
        names, number = self._names[label], list(self._names).index(label)
        with np.load(self.path, allow_pickle=False) as arrays:
            return {name: arrays[f"examined.{number}.{name}"] for name in names}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
