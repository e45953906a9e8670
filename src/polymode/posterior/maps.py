"""Predictions of pictures with outputs at each pixel: few at a time, and above a bound averages."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from polymode.core.memory import require_free
from polymode.core.rows import is_one_shape
from polymode.prediction import Prediction
from polymode.prediction.averages import Averages

if TYPE_CHECKING:
    from polymode.posterior.posterior import Posterior

HELD = 2**30  # bytes of samples of maps that a prediction holds, at most
AT_A_TIME = 2**26  # bytes of samples of maps that are predicted at a time, above one picture


def has_maps(post: Posterior) -> bool:
    """Return whether outputs lie at pixels of a picture (C, H, W)."""
    axes = post.likelihood.num_axes
    return axes > 1 and is_one_shape(post.input_shape) and len(post.input_shape) > axes


def most_at_a_time(post: Posterior, samples_per_mode: int) -> int:
    """Return how many pictures are predicted at a time; no bound where outputs are no maps."""
    if not has_maps(post):
        return sys.maxsize
    assert isinstance(post.input_shape, tuple)
    pixels = math.prod(post.input_shape[-post.likelihood.num_axes :])
    numbers = post.num_modes * samples_per_mode * post.target_size * pixels
    return max(1, AT_A_TIME // (numbers * post.weights.like.dtype.itemsize))


def joined(parts: Iterable[Prediction], most: int = 0) -> Prediction:
    """Return the predictions of parts as one; of classes, averages above `most` bytes."""
    held: list[Prediction] = []
    size, rows = 0, 0
    for part in parts:
        size, rows = size + part.nbytes, rows + len(part)
        if size > most and Averages.possible(part):
            held = [Averages([earlier]) for earlier in [*held, part]]  # type: ignore[list-item]
        else:
            held.append(part)
        need = sum(prediction.nbytes for prediction in held)
        require_free(need, f"predictions for {rows:,} pictures", "Use post.stream(x)")
        del part
    if isinstance(held[0], Averages):
        return Averages(held)  # type: ignore[arg-type]
    return Prediction.cat(held)
