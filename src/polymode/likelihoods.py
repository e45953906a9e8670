"""Likelihoods: how targets depend on the outputs of a network.

    pm.Task(train=(x, y), likelihood=pm.likelihoods.Gaussian(noise="learned"))

Their definitions and formulas are in `polymode.core.likelihoods`.
"""

from __future__ import annotations

from polymode.core.likelihoods import (
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
