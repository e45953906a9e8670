"""Predictions of a cell as an `.npz` file, and back; nothing is pickled."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from polymode.metrics.results import Kept
from polymode.prediction import Prediction


def pack(kept: Mapping[str, Kept]) -> bytes:
    """Return the predictions as the bytes of an `.npz` file, the same bytes each time."""
    arrays: dict[str, np.ndarray] = {}
    about = []
    for number, (name, (prediction, targets, inputs)) in enumerate(kept.items()):
        tensors, rest = prediction.to_arrays()
        for part, tensor in {**tensors, "targets": targets, "inputs": inputs}.items():
            if tensor is not None:
                arrays[f"{number}.{part}"] = tensor.detach().cpu().numpy()
        about.append({"name": name, "parts": list(tensors), "rest": rest})
    arrays["about"] = np.array(json.dumps(about))
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
