r"""Abstaining with a bound: thresholds on the confidence and the risk of what is accepted.

Sort n labelled examples by confidence. Given the k-th highest confidence :math:`\theta_k`, the
examples above it are independent draws of accepted ones, so their errors e among m are binomial
with the risk r of the rule "accept above :math:`\theta_k`". Hence

- Clopper-Pearson's interval from (e, m) holds r with the stated probability (`risk_interval`);
- a rule is certified for a risk r* if :math:`P(\mathrm{Bin}(m, r^*) \le e) \le \delta / G`.
  Of G = 20 ranks chosen beforehand, n/20, 2n/20, ..., n, the rule that accepts most among those
  certified has a risk of at most r* with probability :math:`1 - \delta` (Bonferroni;
  `certified_threshold`).

Both bounds hold for any model; they are about new examples from the distribution of these, which
must not have trained or recalibrated it.

References: Y. Geifman, R. El-Yaniv, Selective classification for deep neural networks, NeurIPS 2017
(the setting; there ranks are searched by bisection); C. Clopper, E. Pearson, Biometrika 26 (1934).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from polymode.core.checks import Share, check_call
from polymode.likelihoods.targets import check_as_many, check_labels
from polymode.metrics.score import Interval, NotDefined
from polymode.prediction import CategoricalPrediction, Prediction

RANKS = 20
"""Rules that are tried, at equally spaced coverages."""


@dataclass(frozen=True)
class Rejection:
    """A rule that answers where it is confident: call it on a prediction, True is to abstain.

    Attributes:
        threshold: confidences above it are answered; -1 answers all.
        risk: bound on the error rate of answers. level: probability with which it holds.
        coverage: share of the examples of the choice that were answered.
        n: examples of the choice.
    """

    threshold: float
    risk: float
    level: float
    coverage: float
    n: int

    def __call__(self, prediction: Prediction) -> Tensor:
        """Return where to abstain, bool (B,)."""
        return _confidence(prediction) <= self.threshold


def certified_threshold(
    prediction: Prediction, targets: Tensor, risk: Share = 0.05, level: Share = 0.95
) -> Rejection:
    """Return the rule that answers most with an error rate of at most `risk`.

    The bound holds with probability >= `level` over these examples, whatever the model.

    Args:
        prediction: of n examples that the user sets aside for this.
        targets: their labels (n,).
        risk: of answers on new examples, in (0, 1).
        level: in (0, 1).

    Raises:
        NotDefined: if no rule can be certified; the message says how many examples one without
            errors needs.
    """
    check_call(certified_threshold, locals())
    confidence, wrong = _judged(prediction, targets)
    n, slack = len(confidence), (1.0 - level) / RANKS
    best: Rejection | None = None
    for rank in range(1, RANKS + 1):
        threshold = _threshold(confidence, rank / RANKS)
        accepted = confidence > threshold
        m, errors = int(accepted.sum()), int(wrong[accepted].sum())
        if m and _binomial_cdf(errors, m, risk) <= slack:
            best = Rejection(threshold, risk, level, m / n, n)
    if best is None:
        need = math.ceil(math.log(slack) / math.log(1.0 - risk))
        raise NotDefined(
            f"no rule with a risk of {risk:g} can be certified at {level:g} from {n:,} examples;"
            f" without any error it takes {need:,} answered ones. Allow a higher risk, or give more"
        )
    return best


def risk_interval(
    prediction: Prediction, targets: Tensor, coverage: float = 0.8, level: Share = 0.95
) -> Interval:
    """Return the error rate of the most confident examples, with an interval for new ones.

    Exact in the sense that it holds the risk of the rule with probability >= `level`, for any n.

    Args:
        prediction: of n labelled examples. targets: (n,).
        coverage: share to be answered, in (0, 1]; the k-th example itself, and those equal to it,
            are not among them unless it is 1.
        level: in (0, 1).
    """
    check_call(risk_interval, locals())
    if not 0.0 < coverage <= 1.0:
        raise ValueError(f"`coverage` of risk_interval must be in (0, 1], got {coverage}")
    confidence, wrong = _judged(prediction, targets)
    accepted = confidence > _threshold(confidence, coverage)
    m, errors = int(accepted.sum()), int(wrong[accepted].sum())
    if not m:
        raise NotDefined(
            f"no example of {len(wrong):,} is more confident than the one at coverage {coverage:g}"
        )
    low, high = clopper_pearson(errors, m, level)
    return Interval(errors / m, low, high, float(level), m)


def clopper_pearson(count: int, num: int, level: float) -> tuple[float, float]:
    """Return the interval that holds a binomial probability with probability >= `level`.

    >>> [round(end, 4) for end in clopper_pearson(0, 10, 0.95)]
    [0.0, 0.3085]
    """
    from scipy.special import betaincinv

    tail = 0.5 * (1.0 - level)
    low = float(betaincinv(count, num - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, num - count, 1.0 - tail)) if count < num else 1.0
    return low, high


def _threshold(confidence: Tensor, coverage: float) -> float:
    """Return the k-th highest confidence, or -1 for all."""
    rank = math.ceil(coverage * len(confidence) - 1e-9)
    if rank >= len(confidence):
        return -1.0
    return confidence.sort(descending=True).values[rank].item()


def _binomial_cdf(count: int, num: int, prob: float) -> float:
    from scipy.special import bdtr

    return float(bdtr(count, num, prob))


def _judged(prediction: Prediction, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidences and whether the top class is wrong, (n,) each."""
    confidence = _confidence(prediction)
    labels = check_labels(targets, prediction.num_outputs).to(confidence.device)
    check_as_many(len(labels), len(confidence), "label(s)")
    return confidence, prediction.mean.argmax(-1) != labels


def _confidence(prediction: Prediction) -> Tensor:
    if not isinstance(prediction, CategoricalPrediction):
        raise ValueError(
            f"Thresholds are for predictions of classes, got {prediction!r}; for values use"
            " conformal intervals and their widths"
        )
    return prediction.mean.detach().double().amax(-1)
