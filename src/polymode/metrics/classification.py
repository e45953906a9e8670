r"""Scores of class probabilities against labels.

With the mixture :math:`\bar p_n = \frac1S\sum_s p_s(\cdot \mid x_n)` of the S samples, its top
class :math:`\hat y_n` and confidence :math:`c_n = \max_k \bar p_{nk}`, everything here judges
:math:`\bar p`, never the mean of the samples' own scores. `S` samples, `B` batch, `C` classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.core.targets import check_labels
from polymode.metrics.score import CLASSIFICATION, Score, mean_score, register
from polymode.prediction import CategoricalPrediction, Prediction


@register(
    CLASSIFICATION,
    "accuracy",
    title="accuracy",
    unit="fraction",
    direction="up",
    summary="share of examples whose most probable class is the label",
)
def accuracy(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the share of right classes, :math:`\frac1B\sum_n 1[\hat y_n = y_n]`; `each` is 0, 1.

    Traps: the class is that of the averaged probabilities, not a vote of the members; of equally
    probable classes the first is taken, so a constant predictor gets the share of class 0.
    """
    classes, labels = _pair(prediction, targets, "accuracy")
    return mean_score((classes.classes == labels).double())


@register(
    CLASSIFICATION,
    "nll",
    title="NLL",
    unit="nats/example",
    direction="down",
    summary="mean negative log-probability of the label under the averaged prediction",
)
def nll(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the mean of :math:`-\log \frac1S\sum_s p_s(y_n \mid x_n)`, in nats per example.

    Log-sum-exp over the samples, so it is finite as long as one sample gives the label a positive
    probability; infinite otherwise, and not clipped. Proper: its expectation is smallest for the
    true probabilities.

    Traps: a mean, not a sum (published values of both kinds are found); and the NLL of the mean
    prediction, which is never above the mean of the members' NLLs (Jensen).

    Reference: I. J. Good, Rational decisions, J. R. Stat. Soc. B 14 (1952).
    """
    classes, labels = _pair(prediction, targets, "nll")
    return mean_score(-classes.log_prob(labels))


@register(
    CLASSIFICATION,
    "brier",
    title="Brier",
    unit="probability²",
    direction="down",
    summary="squared distance of the class probabilities from the one-hot label, summed over"
    " classes: 0 to 2",
)
def brier(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the mean of :math:`\sum_k (\bar p_{nk} - 1[y_n = k])^2`, in [0, 2].

    Proper, and bounded where the NLL is not.

    Traps: some libraries divide by C, some score one class of two (half of this); some average the
    members' own Brier scores, which is never below the score of the mean.

    Reference: G. W. Brier, Verification of forecasts expressed in terms of probability, Monthly
    Weather Review 78 (1950).
    """
    classes, labels = _pair(prediction, targets, "brier")
    probs = classes.mean.double()
    of_label = probs.gather(1, labels[:, None])[:, 0]
    return mean_score(probs.square().sum(1) - 2 * of_label + 1)


@register(
    CLASSIFICATION,
    "ece",
    title="ECE",
    unit="probability",
    direction="down",
    summary="mean gap between confidence and accuracy over 15 equal-width bins of confidence",
)
def ece(prediction: Prediction, targets: Tensor, num_bins: int = 15) -> Score:
    r"""Return the expected calibration error, :math:`\sum_b \frac{|b|}{B} |acc_b - conf_b|`.

    In [0, 1]. Bins of equal width on the confidence of the top class, closed on the right,
    :math:`(\frac{b-1}{15}, \frac{b}{15}]`: a confidence of exactly 1 is in the last one.

    Traps: biased upwards on few examples, the more the more bins; it looks at the top label only;
    and a constant predictor can have zero. It is no proper score: read it beside the NLL.

    Args:
        num_bins: at least 1; 15 is what the literature reports.

    Reference: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, On calibration of modern neural
    networks, ICML 2017.
    """
    classes, labels = _pair(prediction, targets, "ece")
    if not isinstance(num_bins, int) or num_bins < 1:
        raise ValueError(f"`num_bins` of ece must be an integer of at least 1, got {num_bins!r}")
    confidence = classes.confidence.double()
    edges = torch.linspace(0, 1, num_bins + 1, dtype=torch.float64, device=confidence.device)
    bins = torch.bucketize(confidence, edges[1:-1])
    gap = (classes.classes == labels).double() - confidence
    gaps = torch.zeros(num_bins, dtype=torch.float64, device=gap.device).index_add(0, bins, gap)
    return Score(gaps.abs().sum().item() / len(gap), len(gap))


@register(
    CLASSIFICATION,
    "mutual_information",
    title="mutual information",
    unit="nats",
    direction="",
    min_samples=2,
    targets=False,
    summary="how much the members' predictions differ; describes, does not score",
)
def mutual_information(prediction: Prediction, targets: Tensor | None = None) -> Score:
    r"""Return the mean of :math:`H[\bar p_n] - \frac1S\sum_s H[p_{sn}]`, in [0, log S] nats.

    Needs no targets. Trap: its ceiling is log S, so ensembles of different sizes differ in it.
    """
    return mean_score(_samples(prediction, "mutual_information").mutual_information)


@register(
    CLASSIFICATION,
    "disagreement",
    title="disagreement",
    unit="fraction of pairs",
    direction="",
    min_samples=2,
    targets=False,
    summary="share of the pairs of members that name different classes; describes, does not score",
)
def disagreement(prediction: Prediction, targets: Tensor | None = None) -> Score:
    """Return the mean over examples of the share of sample pairs with different top classes.

    Near 0 everywhere, also off the data, means that the members have become one function. On easy
    data it is small for good reason: members that are all right agree.
    """
    return mean_score(_samples(prediction, "disagreement").disagreement)


def _pair(
    prediction: Prediction, targets: Tensor, metric: str
) -> tuple[CategoricalPrediction, Tensor]:
    """Return the prediction, which must be of classes, and labels that belong to it."""
    classes = _classes(prediction, metric)
    labels = check_labels(targets, classes.log_probs.shape[-1]).to(classes.log_probs.device)
    if len(labels) != len(classes):
        raise ValueError(f"got {len(labels)} label(s) for {len(classes)} prediction(s)")
    if len(labels) == 0:
        raise ValueError("there is nothing to score: 0 examples")
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
