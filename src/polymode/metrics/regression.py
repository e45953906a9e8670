r"""Scores of predicted densities against real-valued targets, in the units of the targets.

The prediction is the mixture :math:`\frac1S\sum_s p_s(y \mid x)` of the samples' densities, with
mean :math:`\bar\mu` and variance :math:`v`. `standardise` divides prediction and targets by a
scale, so that any metric may be reported in standard deviations of y instead of its units.
`S` samples, `B` batch, `D` outputs.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.likelihoods.densities import HALF_LOG_2PI, has_moment
from polymode.likelihoods.targets import check_values
from polymode.metrics.score import (
    REGRESSION,
    NotDefined,
    Score,
    check_lengths,
    mean_score,
    register,
)
from polymode.prediction import CountPrediction, DensityPrediction, MappedPrediction, Prediction

Density = DensityPrediction | MappedPrediction

_quality = partial(register, REGRESSION, direction="down", family="quality")
_uncertainty = partial(register, REGRESSION, direction="", family="uncertainty", targets=False)


@_quality(
    "rmse",
    title="RMSE",
    unit="units of y",
    headline=True,
    summary="root of the mean squared distance of the predictive mean from the target",
)
def rmse(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return :math:`\sqrt{\frac{1}{BD}\sum_{nd} (\bar\mu_{nd} - y_{nd})^2}`.

    In units of y, from 0. `each` is the squared error, averaged over outputs. The standard error is
    that of the mean squared error, propagated through the root to first order. Not defined for
    Student-t densities with df <= 1, which have no mean.

    Traps: the root of the mean, so scores of batches cannot be averaged; of outputs in different
    units the largest dominates (see `standardise`).
    """
    check_call(rmse, locals())
    mixture, values = check_pair(prediction, targets, "rmse")
    if not has_moment(mixture.df, 1):
        raise NotDefined(f"no mean: df = {mixture.df:g} <= 1")
    return _root((mixture.mean.double() - values.double()).square().mean(1))


@_quality(
    "nll",
    title="NLL",
    unit="nats/example",
    headline=True,
    summary="mean negative log-density of the target under the mixture of the members' densities",
)
def nll(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the mean of :math:`-\log \frac1S\sum_s \prod_d p_s(y_{nd} \mid x_n)`.

    In nats per example, any real number; log-sum-exp over the samples of the joint density of all
    outputs. Proper: its expectation is smallest for the true density.

    Traps: a density, so it may be negative and depends on the units of y (dividing y by a scale s
    lowers the NLL by log s per output); not the same as `nll_moment_matched`, which many papers
    report for ensembles.

    Reference: I. J. Good, Rational decisions, J. R. Stat. Soc. B 14 (1952).
    """
    check_call(nll, locals())
    mixture, values = check_pair(prediction, targets, "nll")
    return mean_score(-mixture.log_prob(values))


@_quality(
    "nll_moment_matched",
    title="NLL, moment-matched",
    unit="nats/example",
    summary="mean negative log-density of the target under one Gaussian with the mixture's mean and"
    " variance",
)
def nll_moment_matched(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the NLL of one Gaussian for each output with the mixture's mean and variance.

    .. math:: \frac1B\sum_{nd} \tfrac12\log 2\pi v_{nd}
              + \frac{(y_{nd} - \bar\mu_{nd})^2}{2 v_{nd}}

    In nats per example, any real number. The deep-ensembles paper and most tables of UCI
    regressions report it. Not defined where the variance is infinite (Student-t, df <= 2).

    Traps: for one Gaussian sample it equals `nll`, otherwise either may be the smaller: it spends
    probability between distant members, and forgives targets there. Outputs are treated as
    independent, although differing members correlate them. It depends on the units of y.

    Reference: B. Lakshminarayanan, A. Pritzel, C. Blundell, Simple and scalable predictive
    uncertainty estimation using deep ensembles, NeurIPS 2017, section 2.4.
    """
    check_call(nll_moment_matched, locals())
    mixture, values = check_pair(prediction, targets, "nll_moment_matched")
    variance = check_variance(mixture).double()
    squares = (mixture.mean.double() - values.double()).square()
    return mean_score((0.5 * (variance.log() + squares / variance) + HALF_LOG_2PI).sum(1))


@_uncertainty(
    "sharpness",
    title="sharpness",
    unit="units of y",
    summary="root of the mean predictive variance, to be compared with the RMSE; describes, does"
    " not score",
)
def sharpness(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return :math:`\sqrt{\frac{1}{BD}\sum_{nd} v_{nd}}`, in units of y, above 0.

    Needs no targets. `each` is the variance, averaged over outputs; the standard error as in
    `rmse`. The root of the mean, not the mean of the roots, because the RMSE should equal it: if
    variances are right, :math:`E(y - \bar\mu)^2 = E\,v`. Not defined where the variance is
    infinite (Student-t, df <= 2).

    Traps: smaller is better only among calibrated predictions; a few wide ones dominate it.
    Elsewhere "sharpness" is the mean standard deviation, or a mean interval width, here `width_90`.

    Reference: T. Gneiting, F. Balabdaoui, A. E. Raftery, Probabilistic forecasts, calibration and
    sharpness, J. R. Stat. Soc. B 69 (2007); by the variance in V. Kuleshov, N. Fenner, S. Ermon,
    Accurate uncertainties for deep learning using calibrated regression, ICML 2018.
    """
    check_call(sharpness, locals())
    return _root(check_variance(check_mixture(prediction, "sharpness")).double().mean(1))


@_uncertainty(
    "epistemic_std",
    title="epistemic s.d.",
    unit="units of y",
    epistemic=True,
    summary="root of the mean epistemic variance: how far apart the networks' means are; describes,"
    " does not score",
)
def epistemic_std(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return :math:`\sqrt{\frac{1}{BD}\sum_{nd} \mathrm{Var}_s\,\mu_{snd}}`, in units of y.

    Densities with an epistemic share add it to the variance. Needs no targets. `each` is the
    variance, averaged over outputs; the standard error as in `rmse`.

    Traps: a few inputs where members are far apart dominate it; the variance over S samples divides
    by S, so it is too small for few samples.
    """
    check_call(epistemic_std, locals())
    mixture = _uncertain(prediction, "epistemic_std")
    return _root(mixture.epistemic_variance.double().mean(1))


@_uncertainty(
    "epistemic_share",
    title="epistemic share",
    unit="fraction of variance",
    epistemic=True,
    summary="part of the predictive variance that comes from not knowing the network; describes,"
    " does not score",
)
def epistemic_share(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return the mean over examples and outputs of epistemic over total variance, in [0, 1].

    Needs no targets. Not defined where the variance is infinite (Student-t, df <= 2).

    Traps: near 0 even away from the data, the members are one function; a mean of ratios, not the
    ratio of means; the variance over S samples divides by S, so it is too small for few samples.
    """
    check_call(epistemic_share, locals())
    mixture = _uncertain(prediction, "epistemic_share")
    return mean_score((mixture.epistemic_variance / check_variance(mixture)).mean(1))


def _uncertain(prediction: Prediction, metric: str) -> Density:
    mixture = check_mixture(prediction, metric)
    if isinstance(mixture, MappedPrediction):
        raise ValueError(
            f"`{metric}` is not defined of a mapped prediction, which is no longer split into"
            " aleatoric and epistemic; score the prediction before recalibration"
        )
    if not mixture.has_epistemic:
        raise ValueError(
            f"`{metric}` needs at least 2 samples, got 1 without an epistemic share of its own"
        )
    return mixture


def standardise(
    prediction: Prediction, targets: Tensor, scale: Tensor | float
) -> tuple[Density, Tensor]:
    r"""Return prediction and targets divided by `scale`, for metrics in multiples of it.

    The standard deviations of the training targets give the "standardised" numbers of the
    literature. The NLL falls by :math:`\sum_d \log scale_d`; the D outputs are divided by their
    scales before they are averaged. No shift is needed: no metric here depends on one.

    Args:
        prediction, targets: in units of y.
        scale: > 0, one number for all outputs or D of them, in units of y. From training data: the
            scale of the test set would reveal something about its targets.

    Returns:
        the prediction, and the targets (B, D), in units of `scale`.

    >>> from polymode.prediction import MixturePrediction
    >>> prediction = MixturePrediction(torch.tensor([[[10.0]]]), 2.0)
    >>> rmse(*standardise(prediction, torch.tensor([[16.0]]), 3.0)).value
    2.0
    """
    check_call(standardise, locals())
    mixture, values = check_pair(prediction, targets, "standardise")
    if isinstance(mixture, CountPrediction):
        raise NotDefined("a count in another unit is no count")
    by = torch.as_tensor(scale, dtype=torch.float64, device=values.device)
    if by.dim() > 1 or by.numel() not in (1, values.shape[1]):
        need, got = values.shape[1], tuple(by.shape)
        raise ValueError(f"`scale` must be one number or {need}, one per output, got shape {got}")
    if not ((by > 0) & by.isfinite()).all():
        raise ValueError(f"`scale` must be finite and > 0, got {by.tolist()}")
    return mixture.rescale(0.0, 1.0 / by), (values / by).to(values.dtype)


def check_pair(prediction: Prediction, targets: Tensor, metric: str) -> tuple[Density, Tensor]:
    """Return the prediction of densities with its targets (B, D), or raise what is wrong."""
    check_call(check_pair, locals())
    mixture = check_mixture(prediction, metric)
    values = check_values(targets, mixture.num_outputs).to(mixture.device)
    check_lengths(values, mixture, "target(s)")
    return mixture, values


def check_mixture(prediction: Prediction, metric: str) -> Density:
    """Return the prediction, or raise that `metric` needs densities."""
    check_call(check_mixture, locals())
    if not isinstance(prediction, Density):
        raise ValueError(
            f"`{metric}` scores predicted densities, got a {type(prediction).__name__};"
            " see polymode.metrics.classification"
        )
    return prediction


def check_variance(mixture: Density) -> Tensor:
    """Return the predictive variance (B, D), or raise that it does not exist."""
    check_call(check_variance, locals())
    if not has_moment(mixture.df, 2):
        raise NotDefined(f"infinite variance: df = {mixture.df:g} <= 2")
    if not mixture.variance.isfinite().all():
        raise NotDefined(f"the variance is beyond the range of {mixture.variance.dtype}")
    return mixture.variance


def _root(squares: Tensor) -> Score:
    """Return the root of the mean of squares (B,), its standard error to first order."""
    mean = mean_score(squares)
    root, error = math.sqrt(mean.value), mean.standard_error
    if error is not None and root > 0:
        error /= 2 * root
    return mean._replace(value=root, standard_error=error)
