r"""Rank correlation of the aleatoric and the epistemic part: are they two numbers or one?

References: B. Mucsányi, M. Kirchhof, S. J. Oh, Benchmarking uncertainty disentanglement, NeurIPS
2024 (arXiv:2402.19460); D. G. Bonett, T. A. Wright, Sample size requirements for estimating
Pearson, Kendall and Spearman correlations, Psychometrika 65 (2000), for the standard error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.metrics.regression import check_mixture, check_variance
from polymode.metrics.score import CLASSIFICATION, REGRESSION, NotDefined, Score, register
from polymode.prediction import CategoricalPrediction, Prediction

_FACTS = {
    "title": "aleatoric-epistemic rank correlation",
    "unit": "correlation",
    "direction": "",
    "family": "uncertainty",
    "epistemic": True,
    "targets": False,
    "summary": "Spearman's correlation of the two parts of uncertainty over examples: near 1 they"
    " rank inputs alike, and one of them would do; describes, does not score",
}


@register(CLASSIFICATION, "parts_correlation", **_FACTS)  # type: ignore[arg-type]
@register(REGRESSION, "parts_correlation", **_FACTS)  # type: ignore[arg-type]
def parts_correlation(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return Spearman's rank correlation of the aleatoric and the epistemic part, in [-1, 1].

    Of classes, `expected_entropy` and `mutual_information`; of densities, the two variances, summed
    over outputs. Ties get their mean rank. The standard error is :math:`\sqrt{(1 - \rho^2)^2 (1 +
    \rho^2/2) / (n - 3)}`. Not defined for fewer than 4 examples, or where a part is constant, as
    the aleatoric variance is under noise of one size.

    Traps: on one easy test set both parts grow together near class boundaries, also for a method
    that separates them well elsewhere; it depends on the data as much as on the method.
    """
    check_call(parts_correlation, locals())
    if isinstance(prediction, CategoricalPrediction):
        parts = prediction.expected_entropy, prediction.mutual_information
    else:
        density = check_mixture(prediction, "parts_correlation")
        check_variance(density)
        parts = density.aleatoric_variance.sum(-1), density.epistemic_variance.sum(-1)
    aleatoric, epistemic = (part.detach().double().flatten() for part in parts)
    number = len(aleatoric)
    if number < 4:
        raise NotDefined(f"needs >= 4 examples, got {number}")
    for name, part in (("aleatoric", aleatoric), ("epistemic", epistemic)):
        if part.max() - part.min() <= 4 * torch.finfo(parts[0].dtype).eps * part.abs().max():
            raise NotDefined(f"the {name} part is the same for all examples")
    rho = _spearman(aleatoric, epistemic)
    error = math.sqrt((1 - rho**2) ** 2 * (1 + rho**2 / 2) / (number - 3))
    return Score(rho, number, error)


def _spearman(first: Tensor, second: Tensor) -> float:
    ranks = [_mean_ranks(values) for values in (first, second)]
    centred = [rank - rank.mean() for rank in ranks]
    norms = [rank.norm() for rank in centred]
    return float(centred[0] @ centred[1] / (norms[0] * norms[1]))


def _mean_ranks(values: Tensor) -> Tensor:
    """Return ranks from 1, equal values with their mean rank."""
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - 0.5 * (counts - 1))[places]
