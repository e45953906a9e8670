r"""Selective classification where OOD inputs arrive as well (SCOD): one order for both.

An answer costs 1 if it is wrong, and 1 for every OOD input, whose class the network cannot name.
Half of the inputs are from the test set and half from the OOD set, whatever their numbers. With the
score :math:`u`, high for inputs that look OOD, losses :math:`\ell_i` and weights :math:`w_i = 1/2m`
(test) or :math:`1/2n` (OOD), the area under the generalised risk over coverage is

.. math:: \sum_j w_j \sum_i w_i\,\ell_i\,(1[u_i < u_j] + \tfrac12 1[u_i = u_j]):

the share of inputs that are accepted and cost, averaged over coverages. `m` test, `n` OOD inputs.

References: G. Xia, C.-S. Bouganis, Augmenting softmax information for selective classification
with out-of-distribution data, ACCV 2022 (the problem); J. Traub et al., Overcoming common flaws in
the evaluation of selective classification systems, NeurIPS 2024 (the area).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.metrics import ood
from polymode.metrics.classification import classes_and_labels
from polymode.metrics.score import SCOD_CLASSIFICATION, Score, register
from polymode.prediction import Prediction


def scod_augrc(inside: OnlyTensor, wrong: OnlyTensor, outside: OnlyTensor) -> Score:
    r"""Return the area under the generalised risk of test and OOD inputs together, in [1/8, 1/2].

    Constant or random scores give half the mean loss, :math:`\frac14(1 + e)` at error rate e; the
    best order declines all that costs and has :math:`\frac18(1 + e)^2`. The standard error comes
    from the influence of each input, in both sets.

    Traps: a mixture of halves is a choice; where OOD inputs are rare, errors weigh more. A detector
    that is perfect on OOD inputs but does not rank errors is not the best here, nor the other way
    round, which is what AUROC and AURC by themselves do not show.

    Args:
        inside, outside: scores (m,) and (n,), high for what is to be declined; no NaN.
        wrong: (m,) 1 where the answer to a test input is wrong, else 0.

    >>> scod_augrc(torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), torch.tensor([0.3, 0.4])).value
    0.28125
    """
    check_call(scod_augrc, locals())
    m, n = len(inside), len(outside)
    if wrong.shape != inside.shape or inside.dim() != 1 or outside.dim() != 1 or not (m and n):
        raise ValueError(
            "scod_augrc needs scores (m,) and (n,) and `wrong` (m,), m and n >= 1; got"
            f" {tuple(inside.shape)}, {tuple(outside.shape)} and {tuple(wrong.shape)}"
        )
    scores = torch.cat([inside, outside.to(inside)]).detach().double()
    if scores.isnan().any():
        raise ValueError(f"scod_augrc got {int(scores.isnan().sum())} NaN among its scores")
    losses = torch.cat([wrong.double(), torch.ones(n, dtype=torch.float64, device=wrong.device)])
    weights = scores.new_full((m + n,), 0.5 / m)
    weights[m:] = 0.5 / n
    _, group = scores.unique(return_inverse=True)
    cost, mass = (
        scores.new_zeros(int(group.max()) + 1).index_add_(0, group, part)
        for part in (weights * losses, weights)
    )
    accepted = (cost.cumsum(0) - 0.5 * cost)[group]  # cost below the threshold of each input
    beyond = (mass.flip(0).cumsum(0).flip(0) - 0.5 * mass)[group]  # thresholds above each input
    influence = accepted + losses * beyond
    value = (weights @ accepted).item()
    if min(m, n) < 2:
        return Score(value, m + n)
    error = math.sqrt(
        sum(0.25 * part.var(correction=1).item() / len(part) for part in influence.split([m, n]))
    )
    return Score(value, m + n, error)


def _metric(score: str) -> Callable[[Prediction, Prediction, Tensor], Score]:
    def metric(inside: Prediction, outside: Prediction, targets: Tensor) -> Score:
        classes, labels = classes_and_labels(inside, targets, f"scod_augrc_{score}")
        wrong = (classes.classes != labels).double()
        by = ood.SCORES[score]
        return scod_augrc(by(inside), wrong, by(outside))

    metric.__name__ = f"scod_augrc_{score}"
    metric.__doc__ = f"Return `scod_augrc` of `{score}` for the labelled test set and an OOD set."
    return metric


for _score, _title, _words in (
    ("one_minus_confidence", "1 − max p", "1 − largest class probability"),
    ("predictive_entropy", "entropy", "predictive entropy"),
):
    register(
        SCOD_CLASSIFICATION,
        f"scod_augrc_{_score}",
        title=f"SCOD AUGRC, {_title}",
        unit="error rate",
        direction="down",
        family="ood",
        summary="share of inputs, half test and half OOD, that are accepted and wrong (OOD always"
        f" is), averaged over coverages, by low {_words}",
    )(_metric(_score))
