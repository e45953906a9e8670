"""Likelihoods: how targets depend on the outputs of a network.

    pm.Task(train=(x, y), likelihood=pm.likelihoods.Gaussian(noise="learned"))

`kinds` has their definitions and formulas, `base` what all have in common. `components` are the
densities that predictions mix, `densities` their functions, `targets` and `scaling` the targets.
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

__all__ = [
    "Bernoulli", "Categorical", "Gaussian", "HeteroscedasticGaussian", "Likelihood", "StudentT",
]  # fmt: skip
