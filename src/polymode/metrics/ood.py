r"""Telling inputs from elsewhere (OOD) by the uncertainty of their predictions.

OOD is the positive class and a higher score means "rather OOD", everywhere. With scores
:math:`u_i` of the test set and :math:`v_j` of the OOD set,

.. math:: \mathrm{AUROC} = P(v > u) + \tfrac12 P(v = u).

`B` batch, `D` outputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.metrics.score import OOD_CLASSIFICATION, OOD_REGRESSION, PairMetric, Score, register
from polymode.prediction import Prediction


def auroc(inside: Tensor, outside: Tensor) -> Score:
    r"""Return the probability that an OOD input scores above a test input, ties counted half.

    From ranks, without a curve: it is the mean of the placements
    :math:`V_j = \frac{1}{m}\sum_i (1[u_i < v_j] + \frac12 1[u_i = v_j])`, and the standard error is
    DeLong's, :math:`\sqrt{var(V)/n + var(U)/m}` with U the placements the other way round.

    Traps: 1/2 is chance and 0 is a perfect detector with the sign turned; constant scores give
    exactly 1/2; it says nothing of which threshold to use.

    Args:
        inside: (m,) scores of the test set. outside: (n,) scores of the OOD set. No NaN.

    Returns:
        the area in [0, 1], over m + n examples; `each` is None.

    Reference: E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson, Comparing the areas under two or
    more correlated receiver operating characteristic curves, Biometrics 44 (1988).

    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])).value
    0.75
    """
    for name, scores in (("inside", inside), ("outside", outside)):
        if scores.dim() != 1 or len(scores) == 0:
            shape = tuple(scores.shape)
            raise ValueError(f"`{name}` of auroc must be scores of shape (n,), n >= 1, got {shape}")
        if scores.isnan().any():
            missing = int(scores.isnan().sum())
            raise ValueError(f"`{name}` of auroc has {missing} NaN of {len(scores)}; drop them")
    placed_out = _placements(outside, inside)
    placed_in = 1.0 - _placements(inside, outside)
    error = None
    if min(len(inside), len(outside)) > 1:
        spread = placed_out.var(correction=1) / len(outside) + placed_in.var(correction=1) / len(
            inside
        )
        error = math.sqrt(spread.item())
    return Score(placed_out.mean().item(), len(inside) + len(outside), error)


def _placements(values: Tensor, among: Tensor) -> Tensor:
    """Return the share of `among` below each value, ties counted half, in float64."""
    values, among = values.double(), among.double().sort().values
    below = torch.searchsorted(among, values)
    not_above = torch.searchsorted(among, values, right=True)
    return (below + not_above).double() / (2 * len(among))


def predictive_entropy(prediction: Prediction) -> Tensor:
    """Return the entropy of the mean prediction, (B,) nats: all of the uncertainty."""
    return prediction.predictive_entropy


def mutual_information(prediction: Prediction) -> Tensor:
    """Return what the members differ in, (B,) nats: the epistemic part."""
    return prediction.mutual_information


def variance(prediction: Prediction) -> Tensor:
    """Return the predictive variance, summed over outputs, (B,)."""
    return prediction.variance.sum(-1)


def epistemic_variance(prediction: Prediction) -> Tensor:
    """Return the variance of the members' means, summed over outputs, (B,)."""
    return prediction.epistemic_variance.sum(-1)


SCORES = {
    "predictive_entropy": predictive_entropy,
    "mutual_information": mutual_information,
    "variance": variance,
    "epistemic_variance": epistemic_variance,
}
"""Functions from a prediction to (B,) scores, high for what looks like OOD."""


def _auroc_of(score: str) -> PairMetric:
    def metric(inside: Prediction, outside: Prediction) -> Score:
        return auroc(SCORES[score](inside), SCORES[score](outside))

    metric.__doc__ = f"Return the AUROC of `{score}`, OOD positive."
    return metric


def _register() -> None:
    says = "probability that an OOD input has a higher {} than a test input (OOD positive)"
    for table, score, title, words, needs in (
        (OOD_CLASSIFICATION, "predictive_entropy", "entropy", "predictive entropy", 1),
        (OOD_CLASSIFICATION, "mutual_information", "MI", "mutual information", 2),
        (OOD_REGRESSION, "variance", "variance", "predictive variance", 1),
        (OOD_REGRESSION, "epistemic_variance", "epistemic", "epistemic variance", 2),
    ):
        register(
            table,
            f"auroc_{score}",
            title=f"AUROC, {title}",
            unit="probability",
            direction="up",
            min_samples=needs,
            summary=says.format(words),
        )(_auroc_of(score))


_register()
