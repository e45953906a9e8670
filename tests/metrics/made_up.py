"""Predictions of classes that nobody trained, with labels, to be scored."""

from __future__ import annotations

import torch

from polymode.prediction import CategoricalPrediction


def draw(samples: int, batch: int, classes: int, seed: int = 0):
    stream = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, batch, classes, generator=stream, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=stream)
    return CategoricalPrediction(logits.log_softmax(-1)), labels


def of(probs) -> CategoricalPrediction:
    """One sample with the given probabilities (B, C)."""
    return CategoricalPrediction(torch.as_tensor(probs, dtype=torch.float64).log()[None])


def binary(confidence, hit):
    """Two classes, of which 0 is named with a confidence >= 1/2, and labels."""
    confidence = torch.as_tensor(confidence, dtype=torch.float64)
    labels = 1 - torch.as_tensor(hit).long()
    return of(torch.stack([confidence, 1 - confidence], 1)), labels


def simulate(size: int, accuracy, rng):
    """Confidences spread evenly over (.5, 1), hits with the probability `accuracy` gives them."""
    confidence = rng.uniform(0.5, 1, size)
    return confidence, rng.random(size) < accuracy(confidence)
