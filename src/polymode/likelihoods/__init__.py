"""Likelihoods: how targets depend on the outputs of a network.

    pm.Task(train=(x, y), likelihood=pm.likelihoods.Gaussian(noise="learned"))

`kinds` has their definitions and formulas, `counts` those of counts, `quantiles` heads that are no
likelihood, `losses` what networks may be trained by instead; `base` what all have in common,
`positions` what makes one for pixels, tokens, several labels or weights of another. `components`
are the laws that predictions mix, `densities` their functions, `targets` and `scaling` the targets.
"""

from __future__ import annotations

from polymode.likelihoods.counts import NegativeBinomial, Poisson
from polymode.likelihoods.kinds import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Laplace,
    Likelihood,
    StudentT,
)
from polymode.likelihoods.losses import BetaNLL, FocalLoss, LabelSmoothing
from polymode.likelihoods.positions import Positions
from polymode.likelihoods.quantiles import QuantileHeads

__all__ = [
    "Bernoulli", "BetaNLL", "Categorical", "FocalLoss", "Gaussian", "HeteroscedasticGaussian",
    "LabelSmoothing", "Laplace", "Likelihood", "NegativeBinomial", "Poisson", "Positions",
    "QuantileHeads", "StudentT",
]  # fmt: skip
