"""Diversity: how much the members of an ensemble differ, and what their number is worth.

Members differ in their predictions (`pairwise`), in their gradients with respect to the inputs
(`gradients`) and in their weights (`weights`); `size` has a metric against the number of members.
All describe and do not score: members can differ by being wrong in different ways. `pairwise`
compares samples, `weights` and `gradients` modes, `size` either. `M` modes, `S` samples, `B` batch,
`C` classes.
"""

from __future__ import annotations

from polymode.metrics.diversity.gradients import GradientDistance, input_gradient_distance
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
from polymode.metrics.diversity.weights import weight_cosine

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
