r"""Joint log-likelihood of several observations: what marginal scores cannot see.

A score of one observation at a time is blind to whether the samples of a posterior agree with
themselves: members that are each sure of something else, and one network that is unsure
everywhere, may have the same mixtures. They differ in what a first observation says about a second
one. The dyadic scheme of Osband et al. takes two inputs, repeats them to :math:`\tau` observations,
k of the first and the others of the second with :math:`k \sim \mathrm{Bin}(\tau, \frac12)`, and
scores all of them together,

.. math:: -\frac1\tau \sum_k 2^{-\tau}\binom{\tau}{k}
          \log\frac1S\sum_s p_s(y_i \mid x_i)^k\,p_s(y_j \mid x_j)^{\tau - k}.

The sum over k is exact. A test set has one target per input, which is what is repeated.
`S` samples, `B` batch, `P` pairs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.checks import Many, check_call
from polymode.core.rng import generator
from polymode.metrics.classification import IMPOSSIBLE, classes_and_labels
from polymode.metrics.regression import check_pair
from polymode.metrics.score import (
    CLASSIFICATION,
    REGRESSION,
    NotDefined,
    Score,
    mean_score,
    register,
)
from polymode.prediction import CategoricalPrediction, MappedPrediction, Prediction

TAU = 10
_FACTS = {
    "title": "dyadic joint NLL",
    "unit": "nats/observation",
    "direction": "down",
    "family": "quality",
    "samples": True,
    "summary": "negative log-likelihood of 10 observations at two inputs together, per observation:"
    " it rewards samples that are each consistent, where `nll` sees one observation at a time",
}


@register(CLASSIFICATION, "dyadic_nll", **_FACTS)  # type: ignore[arg-type]
@register(REGRESSION, "dyadic_nll", **_FACTS)  # type: ignore[arg-type]
def dyadic_nll(prediction: Prediction, targets: Tensor, tau: Many = TAU, seed: int = 0) -> Score:
    r"""Return the negative joint log-likelihood of `tau` observations at pairs of inputs.

    In nats per observation. Inputs are paired at random, each once (the last of an odd number is
    left out), so pairs are independent and the standard error is that of their mean. One sample
    gives the mean NLL of the paired inputs; S > 1 samples give at most log S / tau more than their
    best sample. A probability of 0 in all samples counts as in `nll`.

    Traps: pairs depend on the order of the examples and on `seed`; the paper draws several labels
    per input, a data set has one, so noise in labels is repeated with them. Paired inputs are
    random: Wang et al. take near ones, for which inputs are needed. Not defined for a mapped
    prediction and for densities with an epistemic share, which have no joint density, nor where
    `evaluate` holds averages over the samples only.

    Args:
        tau: observations in a pair, at least 1; the paper uses 10.
        seed: of the pairs.

    Reference: I. Osband et al., Evaluating high-order predictive distributions in deep learning,
    UAI 2022 (arXiv:2202.13509); C. Wang, S. Sun, R. Grosse, Beyond marginal uncertainty, AISTATS
    2021 (arXiv:2011.04894).
    """
    check_call(dyadic_nll, locals())
    logs = _target_logs(prediction, targets)
    number = logs.shape[1] // 2
    if number == 0:
        raise NotDefined("needs >= 2 examples, got 1")
    order = torch.randperm(logs.shape[1], generator=generator(seed, "dyadic_nll"))
    first, second = order[: 2 * number].to(logs.device).view(2, number)
    score = mean_score(_joint(logs[:, first], logs[:, second], tau) / -tau)
    return score._replace(n=2 * number, each=None)


def _joint(first: Tensor, second: Tensor, tau: int) -> Tensor:
    """Return the expected joint log-likelihood of pairs, (P,), from logs (S, P) of each input."""
    total = torch.zeros_like(first[0])
    for k in range(tau + 1):
        logs = k * first + (tau - k) * second  # both finite: see `_target_logs`
        weight = math.comb(tau, k) / 2**tau
        total += weight * (logs.logsumexp(0) - math.log(len(logs)))
    return total


def _target_logs(prediction: Prediction, targets: Tensor) -> Tensor:
    """Return the log-probability of each target under each sample, float64 (S, B)."""
    if isinstance(prediction, CategoricalPrediction):
        classes, labels = classes_and_labels(prediction, targets, "dyadic_nll")
        return classes.sample_log_probs(labels).detach().double().clamp(min=-IMPOSSIBLE)
    density, values = check_pair(prediction, targets, "dyadic_nll")
    if isinstance(density, MappedPrediction):
        raise NotDefined("a mapped prediction has no samples of its own")
    if density.epistemic is not None:
        raise NotDefined("Gaussians around networks have no joint density; draw samples")
    return density.sample_log_probs(values).detach().double()
