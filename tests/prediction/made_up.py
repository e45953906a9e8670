"""Predictions of each kind from random samples."""

from __future__ import annotations

from typing import Any

import torch

from polymode.prediction import CategoricalPrediction, MixturePrediction


def categorical(shape: tuple[int, int, int], seed: int = 0, sharpness: float = 3.0) -> Any:
    draw = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(shape, generator=draw, dtype=torch.float64)
    return CategoricalPrediction(logits.log_softmax(-1))


def mixture(
    shape: tuple[int, int, int], seed: int = 0, df: float | None = None
) -> MixturePrediction:
    draw = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=draw, dtype=torch.float64)
    scale = torch.rand(shape, generator=draw, dtype=torch.float64) + 0.1
    return MixturePrediction(loc, scale, df)
