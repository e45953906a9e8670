"""Features of a body, made once: a file in the cache for each body and set of inputs.

`N` examples, `P` features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.safe_files import (
    FileProblem,
    cache_folder,
    json_digest,
    locked,
    read_tensors,
    write_tensors,
)
from polymode.stack.trunk import features_of
from polymode.tasks.bodies.body import BODIES, encoded, load_body
from polymode.tasks.files import load

BATCH = 64


def features(body: str, inputs: Sequence[str] | np.ndarray) -> Tensor:
    """Return the features (N, P) of texts, or of images (N, H, W, 3) uint8.

    They lie in `features/` of the cache, under a digest of weights and inputs. A file that was
    damaged is made again.
    """
    entry = BODIES.get(body).value
    key = json_digest(
        {
            "body": body,
            "version": entry.version,
            "weights": _digest(load(body)) if entry.has_file else "",
            "inputs": _digest({"inputs": _bytes_of(inputs)}),
        }
    )
    folder = cache_folder() / "features"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{body}-{key}.safetensors"
    with locked(folder):
        if path.is_file():
            try:
                return read_tensors(path)[0]["features"]
            except (FileProblem, KeyError):
                path.unlink()
        values = compute(body, inputs)
        write_tensors(path, {"features": values}, {"body": body})
    return values


@torch.no_grad()
def compute(body: str, inputs: Sequence[str] | np.ndarray) -> Tensor:
    """Return features; texts go through the body in the order of their lengths, so that little is
    padded."""
    network = load_body(body)
    order = list(range(len(inputs)))
    if not isinstance(inputs, np.ndarray):
        order.sort(key=lambda row: len(inputs[row]))

    def batches() -> Iterator[Tensor]:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            chosen: Any = (
                inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[r] for r in rows]
            )
            yield encoded(body, chosen)

    ordered = features_of(network, batches(), len(inputs))
    result = torch.empty_like(ordered)
    result[order] = ordered
    return result


def _bytes_of(inputs: Sequence[str] | np.ndarray) -> np.ndarray:
    if isinstance(inputs, np.ndarray):
        return inputs
    return np.frombuffer("\0".join(inputs).encode(), np.uint8)


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class Projection:
    """Features relative to their mean, in their principal directions, divided by one number.

    A rotation and one scale: a head with a Gaussian prior is the same model on them, up to λ, as
    on the features themselves, if all directions are kept. The mean square of a kept feature of
    the data is 1, so λ is in natural units; and directions are apart, so that samplers with a
    diagonal mass are quick.

    Args:
        data: features (N, P) that it is found on; labels are not used.
        components: how many directions are kept, the widest ones.

    Attributes:
        share: of the variance that is kept.
    """

    def __init__(self, data: Tensor, components: int) -> None:
        if not 1 <= components <= data.shape[1]:
            raise ValueError(
                f"`components` must be from 1 to {data.shape[1]}, the number of features, got"
                f" {components}"
            )
        self.mean = data.double().mean(0)
        centred = data.double() - self.mean
        values, directions = torch.linalg.eigh(centred.mT @ centred / len(data))
        widest = values.flip(0)[:components].clamp_min(0)
        self.directions = directions.flip(1)[:, :components]
        self.scale = widest.mean().sqrt()
        self.share = float(widest.sum() / values.clamp_min(0).sum())

    def __call__(self, features: Tensor) -> Tensor:
        return ((features.double() - self.mean) @ self.directions / self.scale).float()
