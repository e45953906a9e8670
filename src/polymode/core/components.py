"""What a likelihood makes of a network's outputs, and a prediction is made of."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Categories(NamedTuple):
    """Predicted class log-probabilities, (..., B, C), normalised over the last axis.

    `log_normalizer` (..., B) is what was subtracted from the network's outputs, where it gave C.
    """

    log_probs: Tensor
    log_normalizer: Tensor | None = None


class Components(NamedTuple):
    """Predicted densities by location and scale, (..., B, D): Gaussian, or Student-t with `df`."""

    loc: Tensor
    scale: Tensor
    df: float | None
