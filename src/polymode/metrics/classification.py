r"""Scores of class probabilities against labels.

With the mixture :math:`\bar p_n = \frac1S\sum_s p_s(\cdot \mid x_n)` of the S samples, its top
class :math:`\hat y_n` and confidence :math:`c_n = \max_k \bar p_{nk}`, every score here is that of
:math:`\bar p`, never the mean of the samples' scores. `S` samples, `B` batch, `C` classes.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.core.rng import generator
from polymode.likelihoods.targets import check_labels
from polymode.metrics.score import (
    CLASSIFICATION,
    NotDefined,
    Score,
    check_lengths,
    mean_score,
    register,
)
from polymode.prediction import CategoricalPrediction, Prediction
from polymode.recalibration.temperature import fit_temperature

IMPOSSIBLE = -math.log(5e-324)  # nats of a label that every sample gives probability 0
_BLOCK = 2**22  # probabilities that are turned into float64 at a time
_quality = partial(register, CLASSIFICATION, family="quality")
_uncertainty = partial(register, CLASSIFICATION, direction="", family="uncertainty", targets=False)


@_quality(
    "accuracy",
    title="accuracy",
    unit="fraction",
    direction="up",
    headline=True,
    summary="share of examples whose most probable class is the label",
)
def accuracy(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the share of right classes, :math:`\frac1B\sum_n 1[\hat y_n = y_n]`; `each` is 0, 1.

    Traps: the class has the largest averaged probability, it is not the members' majority vote; of
    equally probable classes the first is taken, so a constant predictor gets the share of class 0.
    """
    check_call(accuracy, locals())
    classes, labels = classes_and_labels(prediction, targets, "accuracy")
    return mean_score((classes.classes == labels).double())


@_quality(
    "top_5_accuracy",
    title="top-5 accuracy",
    unit="fraction",
    direction="up",
    summary="share of examples whose label is among the five most probable classes",
)
def top_k(prediction: Prediction, targets: Tensor, k: int = 5) -> Score:
    r"""Return the share of labels among the k most probable classes, in [0, 1].

    With :math:`g_n` classes strictly more probable than the label and :math:`t_n \ge 1` classes
    exactly as probable, itself included, an example contributes
    :math:`\min(1, \max(0, (k - g_n) / t_n))`: 1 or 0 without ties, and with ties the probability
    of being among the first k if they are ordered at random. A constant predictor gets k / C.

    Traps: k = 1 is `accuracy` except at ties, where accuracy takes the first class. Libraries that
    break ties by the class index, or in favour of the label, give a constant predictor up to 1.
    With C <= k every label is among the first k: not defined.

    Args:
        k: at least 1.
    """
    check_call(top_k, locals())
    classes, labels = classes_and_labels(prediction, targets, "top_k")
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"`k` of top_k must be an integer of at least 1, got {k!r}")
    probs = classes.mean.detach()
    if probs.shape[1] <= k:
        raise NotDefined(f"needs more than {k} classes, got {probs.shape[1]}")
    label_probs = probs.gather(1, labels[:, None])
    above, tied = (probs > label_probs).sum(1), (probs == label_probs).sum(1)
    return mean_score(((k - above).double() / tied).clamp(0, 1))


@_quality(
    "nll",
    title="NLL",
    unit="nats/example",
    direction="down",
    headline=True,
    summary="mean negative log-probability of the label under the averaged prediction",
)
def nll(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the mean of :math:`-\log \frac1S\sum_s p_s(y_n \mid x_n)`, in nats per example.

    Log-sum-exp over the samples, so it is exact as long as one sample gives the label a positive
    probability. A probability of exactly 0 in all samples counts as the smallest positive float64,
    745.1 nats: usually it is a smaller one that was rounded. Nothing else is clipped. Proper: its
    expectation is smallest for the true probabilities.

    Traps: a mean, not a sum (both are published); and the NLL of the mean prediction, which is
    never above the mean of the members' NLLs (Jensen).

    Reference: I. J. Good, Rational decisions, J. R. Stat. Soc. B 14 (1952).
    """
    check_call(nll, locals())
    classes, labels = classes_and_labels(prediction, targets, "nll")
    return mean_score(surprise(-classes.log_prob(labels)))


@_quality(
    "brier",
    title="Brier",
    unit="probability²",
    direction="down",
    headline=True,
    summary="squared distance of the class probabilities from the one-hot label, summed over"
    " classes: 0 to 2",
)
def brier(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the mean of :math:`\sum_k (\bar p_{nk} - 1[y_n = k])^2`, in [0, 2].

    Proper, and bounded where the NLL is not.

    Traps: some libraries divide by C, some score one class of two (half of this); some average the
    members' Brier scores, which is never below the score of the mean.

    Reference: G. W. Brier, Verification of forecasts expressed in terms of probability, Monthly
    Weather Review 78 (1950).
    """
    check_call(brier, locals())
    classes, labels = classes_and_labels(prediction, targets, "brier")
    probs = classes.mean.detach()
    of_label = probs.gather(1, labels[:, None])[:, 0].double()
    squares = [part.double().square().sum(1) for part in probs.split(_rows(probs))]
    return mean_score(torch.cat(squares) - 2 * of_label + 1)


@_quality(
    "calibrated_nll",
    title="calibrated NLL",
    unit="nats/example",
    direction="down",
    summary="NLL at the best temperature; fitted on one random half of this same set, scored on the"
    " other, and the halves swapped",
)
def calibrated_nll(prediction: Prediction, targets: Tensor, seed: int = 0) -> Score:
    r"""Return the NLL of :math:`softmax(\log \bar p_n / T)`, T fitted on the half without n.

    The set is cut into two random halves; the temperature T in [0.01, 100] that is best on one is
    applied to the other, and vice versa, so that every example is scored once, in nats, with a T
    fitted without it. Remaining differences between methods are beyond what a single temperature
    can correct. Probabilities of exactly 0 count as in `nll`. Not defined for fewer than 2
    examples.

    Traps: T is fitted on halves of the scored set, so the number compares methods and promises
    nothing about deployment, for which see `polymode.recalibration`. The mixture is tempered, not
    its members. The authors' code averages five such splits and adds 1e-12 to probabilities; this
    is one split, and nothing is added. The halves depend on the order of the examples and on
    `seed`. With few examples it may be far above the plain NLL: a half without errors sends T to
    its lower bound. The standard error ignores that T is estimated.

    Args:
        seed: of the split.

    Reference: A. Ashukha, A. Lyzhov, D. Molchanov, D. Vetrov, Pitfalls of in-domain uncertainty
    estimation and ensembling in deep learning, ICLR 2020 (arXiv:2002.06470).
    """
    check_call(calibrated_nll, locals())
    classes, labels = classes_and_labels(prediction, targets, "calibrated_nll")
    if len(labels) < 2:
        raise NotDefined("needs >= 2 examples, one to fit the temperature, got 1")
    logs = classes.log_mean.detach()
    order = torch.randperm(len(labels), generator=generator(seed, "calibrated_nll"))
    halves = order.to(logs.device).tensor_split(2)
    nats = torch.empty_like(logs[:, 0], dtype=torch.float64)
    for fitted, scored in (halves, halves[::-1]):
        temperature = fit_temperature(logs[fitted].double(), labels[fitted])
        for some in scored.split(_rows(logs)):
            scaled = logs[some].double() / temperature
            label_logits = scaled.gather(1, labels[some, None])[:, 0]
            nats[some] = scaled.logsumexp(1) - label_logits
    return mean_score(surprise(nats))


@_uncertainty(
    "predictive_entropy",
    title="predictive entropy",
    unit="nats",
    summary="mean entropy of the averaged prediction: all uncertainty; describes, does not score",
)
def predictive_entropy(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return the mean of :math:`H[\bar p_n] = -\sum_k \bar p_{nk}\log\bar p_{nk}`, in [0, log C].

    Needs no targets. For a calibrated predictor it equals the NLL in expectation; where the NLL is
    higher, the predictor is overconfident.

    Traps: not the mean of the members' entropies, which is `expected_entropy` and never above it;
    both are called "entropy". In nats, not bits, and not divided by log C.

    Reference: C. E. Shannon, A mathematical theory of communication, Bell Syst. Tech. J. 27 (1948).
    """
    check_call(predictive_entropy, locals())
    return mean_score(_classes(prediction, "predictive_entropy").predictive_entropy)


@_uncertainty(
    "expected_entropy",
    title="expected entropy",
    unit="nats",
    summary="mean entropy of the members' own predictions: what would remain if the network were"
    " known; describes, does not score",
)
def expected_entropy(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return the mean of :math:`\frac1S\sum_s H[p_{sn}]`, in [0, log C] nats.

    Needs no targets. For one sample it is the predictive entropy.

    Trap: it is the "aleatoric" part only if the members are right about the noise; if all members
    are overconfident it is too small.

    Reference: S. Depeweg et al., Decomposition of uncertainty in Bayesian deep learning for
    efficient and risk-sensitive learning, ICML 2018.
    """
    check_call(expected_entropy, locals())
    return mean_score(_classes(prediction, "expected_entropy").expected_entropy)


@_uncertainty(
    "mutual_information",
    title="mutual information",
    unit="nats",
    epistemic=True,
    summary="how much the members' predictions differ; describes, does not score",
)
def mutual_information(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return the mean of :math:`H[\bar p_n] - \frac1S\sum_s H[p_{sn}]`, in [0, log S] nats.

    Needs no targets. Trap: its upper bound is log S, so it depends on the size of the ensemble.
    """
    check_call(mutual_information, locals())
    return mean_score(_samples(prediction, "mutual_information").mutual_information)


@_uncertainty(
    "disagreement",
    title="disagreement",
    unit="fraction of pairs",
    epistemic=True,
    summary="share of the pairs of members that name different classes; describes, does not score",
)
def disagreement(prediction: Prediction, targets: Tensor | None = None) -> Score:
    """Return the mean over examples of the share of sample pairs with different top classes.

    If it is near 0 even away from the data, the members have become one function. On easy data it
    is rightly small: members that are all correct agree.
    """
    check_call(disagreement, locals())
    return mean_score(_samples(prediction, "disagreement").disagreement)


def _rows(values: Tensor) -> int:
    """Return how many rows (B, C) are turned into float64 at a time."""
    return max(1, _BLOCK // values.shape[1])


def surprise(nats: Tensor) -> Tensor:
    """Return negative log-probabilities with infinite ones replaced by `IMPOSSIBLE`."""
    return nats.masked_fill(nats == math.inf, IMPOSSIBLE)


def classes_and_labels(
    prediction: Prediction, targets: Tensor, metric: str
) -> tuple[CategoricalPrediction, Tensor]:
    """Return the prediction of classes with its labels, at least one, or raise what is wrong."""
    check_call(classes_and_labels, locals())
    classes = _classes(prediction, metric)
    labels = check_labels(targets, classes.num_outputs).to(classes.device)
    check_lengths(labels, classes, "label(s)")
    return classes, labels


def _samples(prediction: Prediction, metric: str) -> CategoricalPrediction:
    classes = _classes(prediction, metric)
    if classes.num_samples < 2:
        raise ValueError(f"`{metric}` needs at least 2 samples, got {classes.num_samples}")
    return classes


def _classes(prediction: Prediction, metric: str) -> CategoricalPrediction:
    if not isinstance(prediction, CategoricalPrediction):
        raise ValueError(
            f"`{metric}` scores class probabilities, got a {type(prediction).__name__};"
            " see polymode.metrics.regression"
        )
    return prediction
