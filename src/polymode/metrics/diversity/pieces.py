"""Class probabilities of many networks, a bounded part of the inputs at a time.

Sums over inputs add up, so no more than one part must be in memory. `S` samples, `B` batch,
`C` classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from polymode.prediction import CategoricalPrediction, Prediction

PIECE_BYTES = 2**24  # of one piece in float32; the work on it takes some copies

Probabilities: TypeAlias = Prediction | Tensor | np.ndarray
"""A `CategoricalPrediction`, or probabilities (S, B, C), which may be a memory-mapped array."""
Predictions: TypeAlias = Probabilities | Iterable[Probabilities]
"""All inputs at once, or an iterable of batches of them, as `post.stream(x)` gives."""


def pieces(predictions: Predictions) -> Iterator[Tensor]:
    """Yield log-probabilities (S, b, C) on the CPU, of b inputs at a time, all inputs in turn.

    Of float64 they stay float64, all else becomes float32. Every piece is checked: members must be
    the same in all batches, at least 2, and probabilities must add up to 1.
    """
    if isinstance(predictions, (Prediction, Tensor, np.ndarray)):
        predictions = [predictions]
    shape: tuple[int, int] | None = None
    for batch in predictions:
        samples, num_inputs, classes = _shape(batch)
        if shape not in (None, (samples, classes)):
            raise ValueError(
                f"all batches must be of the same members and classes, got {shape} and then"
                f" {(samples, classes)}"
            )
        shape = samples, classes
        rows = max(1, PIECE_BYTES // (4 * samples * classes))
        for start in range(0, num_inputs, rows):
            yield _log_probs(batch, slice(start, start + rows))


def _shape(batch: Probabilities) -> tuple[int, int, int]:
    """Return (S, B, C), or say what is wrong with the batch."""
    if isinstance(batch, CategoricalPrediction):
        batch = batch.log_probs
    if not isinstance(batch, (Tensor, np.ndarray)):
        raise ValueError(
            "pairs of members are compared by their class probabilities: give"
            f" CategoricalPredictions or arrays (S, B, C), got {type(batch).__name__}"
        )
    if batch.ndim != 3:
        raise ValueError(f"probabilities must have axes (S, B, C), got shape {tuple(batch.shape)}")
    samples, num_inputs, classes = batch.shape
    if samples < 2:
        raise ValueError(f"pairs need at least 2 samples, got {samples}")
    return samples, num_inputs, classes


def _log_probs(batch: Probabilities, rows: slice) -> Tensor:
    """Return the log-probabilities of some inputs, in float32 or float64, on the CPU."""
    if isinstance(batch, np.ndarray):
        part = torch.from_numpy(np.array(batch[:, rows]))  # a copy: the file may be read-only
    else:
        assert isinstance(batch, (CategoricalPrediction, Tensor))
        whole = batch.log_probs if isinstance(batch, CategoricalPrediction) else batch
        part = whole.detach()[:, rows].cpu()
    part = part if part.dtype == torch.float64 else part.float()
    if isinstance(batch, CategoricalPrediction):
        return part
    return CategoricalPrediction.from_probs(part).log_probs
