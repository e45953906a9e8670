"""Likelihoods: how targets depend on the outputs of a network.

    pm.Task(train=(x, y), likelihood=pm.likelihoods.Gaussian(noise="learned"))

`kinds` has their definitions and formulas, `base` what all have in common, `positions` what makes
one for pixels, tokens, several labels or weights of another. `components` are the densities that
predictions mix, `densities` their functions, `targets` and `scaling` the targets.
"""

from __future__ import annotations

from polymode.likelihoods.kinds import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    StudentT,
)
from polymode.likelihoods.positions import Positions

__all__ = [
    "Bernoulli", "Categorical", "Gaussian", "HeteroscedasticGaussian", "Likelihood", "Positions",
    "StudentT",
]  # fmt: skip
