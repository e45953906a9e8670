r"""The energy score: the CRPS of several outputs at once, which sees how they depend on each other.

.. math:: \mathrm{ES}(F, y) = E\|X - y\| - \tfrac12 E\|X - X'\|, \qquad X, X' \sim F \text{ on }
          \mathbb R^D.

For D = 1 it is the CRPS. There is no closed form for mixtures, so it is estimated from draws.
`N` draws, `B` batch, `D` outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.core.checks import Many, check_call
from polymode.likelihoods.densities import has_moment
from polymode.metrics.regression import check_pair
from polymode.metrics.score import REGRESSION, NotDefined, Score, mean_score, register
from polymode.prediction import Prediction

DRAWS = 100
_CHUNK = 2**20  # differences computed at a time, 8 MB


@register(
    REGRESSION,
    "energy_score",
    title="energy score",
    unit="units of y",
    direction="down",
    family="quality",
    summary="CRPS of all outputs together: distance of draws from the target, less half their"
    " distance from each other",
)
def energy_score(
    prediction: Prediction, targets: Tensor, num_draws: Many = DRAWS, seed: int = 0
) -> Score:
    r"""Return the mean energy score, estimated from draws of each predictive distribution.

    .. math:: \frac1N\sum_s \|x_s - y\| - \frac1{N(N-1)}\sum_{s<t} \|x_s - x_t\|

    In the units of y, from 0 in expectation: the estimate is unbiased, and may be negative for one
    example. Strictly proper. Not defined for one output, where `crps` is exact, and without a first
    moment (Student-t, df <= 1).

    Traps: outputs of different units are added in one norm, so the largest dominates (see
    `standardise`); it tells errors of the means more clearly than of the dependence; the standard
    error is over examples, whose own error from N draws is part of it.

    Args:
        num_draws: N, at least 2. seed: of the draws.

    Reference: T. Gneiting, A. E. Raftery, Strictly proper scoring rules, prediction, and
    estimation, JASA 102 (2007), section 4.2.
    """
    check_call(energy_score, locals())
    density, values = check_pair(prediction, targets, "energy_score")
    if values.shape[1] < 2:
        raise NotDefined("needs >= 2 outputs; of one it is the CRPS")
    if not has_moment(density.df, 1):
        raise NotDefined(f"no first moment: df = {density.df:g} <= 1")
    if num_draws < 2:
        raise ValueError(f"`num_draws` of energy_score must be at least 2, got {num_draws}")
    draws = density.sample(num_draws, seed=seed)
    return mean_score(energy_of_draws(draws, values))


@torch.no_grad()
def energy_of_draws(draws: Tensor, values: Tensor) -> Tensor:
    """Return the unbiased energy score of draws (N, B, D) against values (B, D), float64 (B,)."""
    number, _, outputs = draws.shape
    rows = max(1, _CHUNK // (number * number * outputs))
    parts = []
    for x, y in zip(draws.double().split(rows, 1), values.double().split(rows), strict=True):
        x = x.transpose(0, 1)
        apart = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").sum((1, 2))
        away = (x - y.unsqueeze(1)).norm(dim=-1).mean(1)
        parts.append(away - apart / (2 * number * (number - 1)))
    return torch.cat(parts)
