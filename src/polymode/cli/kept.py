"""Predictions of a cell as the bytes of an `.npz` file, and back; nothing is pickled."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

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


def unpack(content: bytes) -> dict[str, Kept]:
    """Return what `pack` packed."""
    kept = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for number, each in enumerate(json.loads(str(arrays["about"]))):
            tensors = {part: torch.from_numpy(arrays[f"{number}.{part}"]) for part in each["parts"]}
            extra = [
                torch.from_numpy(arrays[name]) if name in arrays else None
                for name in (f"{number}.targets", f"{number}.inputs")
            ]
            kept[each["name"]] = Kept(Prediction.from_arrays(tensors, each["rest"]), *extra)
    return kept
