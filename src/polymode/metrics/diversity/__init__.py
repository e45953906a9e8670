"""Diversity: how much the members of an ensemble differ, and what their number is worth.

`pairwise` compares the predictions of samples, `modes` the weights of modes and their gradients
with respect to the inputs; `size` has a metric against the number of members. All describe and do
not score: members can differ by being wrong in different ways. `M` modes, `S` samples, `B` batch,
`C` classes.
"""

from __future__ import annotations

from polymode.metrics.diversity.modes import (
    GradientDistance,
    input_gradient_distance,
    weight_cosine,
)
from polymode.metrics.diversity.pairwise import (
    mean_pairwise,
    pairwise_disagreement,
    pairwise_kl,
    pairwise_mutual_information,
    upper,
)
from polymode.metrics.diversity.size import (
    SizeCurve,
    deep_ensemble_equivalent,
    ensemble_size_curve,
)

__all__ = [
    "GradientDistance",
    "SizeCurve",
    "deep_ensemble_equivalent",
    "ensemble_size_curve",
    "input_gradient_distance",
    "mean_pairwise",
    "pairwise_disagreement",
    "pairwise_kl",
    "pairwise_mutual_information",
    "upper",
    "weight_cosine",
]
