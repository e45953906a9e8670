r"""Scores of predicted densities against real-valued targets, in the units of the targets.

The prediction is the mixture :math:`\frac1S\sum_s p_s(y \mid x)` of the samples' densities.
`S` samples, `B` batch, `D` outputs.
"""

from __future__ import annotations

import math

from torch import Tensor

from polymode.core.targets import check_values
from polymode.metrics.score import REGRESSION, Score, mean_score, register
from polymode.prediction import MixturePrediction, Prediction


@register(
    REGRESSION,
    "rmse",
    title="RMSE",
    unit="units of y",
    direction="down",
    family="quality",
    headline=True,
    summary="root of the mean squared distance of the predictive mean from the target",
)
def rmse(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return :math:`\sqrt{\frac{1}{BD}\sum_{nd} (\bar\mu_{nd} - y_{nd})^2}`, in units of y.

    `each` is the squared error, mean over outputs. The standard error is that of the mean squared
    error, carried through the root to first order.

    Traps: the root of the mean, so scores of batches cannot be averaged; and with outputs of
    different units the largest one rules.
    """
    mixture, values = _pair(prediction, targets, "rmse")
    squared = mean_score((mixture.mean.double() - values.double()).square().mean(1))
    root = math.sqrt(squared.value)
    error = squared.standard_error
    if error is not None and root > 0:
        error /= 2 * root
    return squared._replace(value=root, standard_error=error)


@register(
    REGRESSION,
    "nll",
    title="NLL",
    unit="nats/example",
    direction="down",
    family="quality",
    headline=True,
    summary="mean negative log-density of the target under the mixture of the members' densities",
)
def nll(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the mean of :math:`-\log \frac1S\sum_s \prod_d p_s(y_{nd} \mid x_n)`.

    In nats per example; log-sum-exp over the samples of the density of all outputs together.

    Traps: a density, so it depends on the units of y (standardising y by a scale s adds log s for
    each output) and may be negative; and not the NLL of one Gaussian with the mixture's mean and
    variance, which many papers report for ensembles and which is another number.

    Reference: I. J. Good, Rational decisions, J. R. Stat. Soc. B 14 (1952).
    """
    mixture, values = _pair(prediction, targets, "nll")
    return mean_score(-mixture.log_prob(values))


@register(
    REGRESSION,
    "epistemic_share",
    title="epistemic share",
    unit="fraction of variance",
    direction="",
    family="uncertainty",
    min_samples=2,
    targets=False,
    summary="part of the predictive variance that comes from differences between members;"
    " describes, does not score",
)
def epistemic_share(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return the mean over examples and outputs of epistemic over total variance, in [0, 1].

    Needs no targets. Near 0 everywhere, also off the data, the members are one function.
    """
    mixture = _mixture(prediction, "epistemic_share")
    if mixture.num_samples < 2:
        raise ValueError(f"`epistemic_share` needs at least 2 samples, got {mixture.num_samples}")
    return mean_score((mixture.epistemic_variance / mixture.variance).mean(1))


def _pair(prediction: Prediction, targets: Tensor, metric: str) -> tuple[MixturePrediction, Tensor]:
    """Return the prediction, which must be of densities, and values (B, D) that belong to it."""
    mixture = _mixture(prediction, metric)
    values = check_values(targets, mixture.loc.shape[-1]).to(mixture.loc.device)
    if len(values) != len(mixture):
        raise ValueError(f"got {len(values)} target(s) for {len(mixture)} prediction(s)")
    if len(values) == 0:
        raise ValueError("there is nothing to score: 0 examples")
    return mixture, values


def _mixture(prediction: Prediction, metric: str) -> MixturePrediction:
    if not isinstance(prediction, MixturePrediction):
        raise ValueError(
            f"`{metric}` scores predicted densities, got a {type(prediction).__name__};"
            " see polymode.metrics.classification"
        )
    return prediction
