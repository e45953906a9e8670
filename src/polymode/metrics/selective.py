r"""Selective prediction: how wrong the answers are if the least confident examples are declined.

Sort the N examples from the most confident down. Of the first k, the coverage :math:`k/N`, the risk
:math:`r(k) = \frac1k\sum_{i \le k} \ell_i` is their mean loss (here 1 for a wrong class and 0 for a
right one), and the generalised risk :math:`\frac{k}{N} r(k)` is the share of all examples that
are accepted and wrong. Areas under the two curves are means over coverage, by trapezoids from
:math:`1/N` to 1 divided by :math:`1 - 1/N`; for a single example, the height of its only point.

Equal confidences: the curve is the expectation over all orders of the tied examples, which is the
result of declining at random among them. The risk within a group of ties then has a closed form
(each example takes the group's mean loss), areas are linear in it, and the order of the examples
never matters. (Joining the ends of the groups by straight lines would give the same generalised
risk, but a risk that no rule attains.)

The confidence is the probability of the mixture's top class; where it is 1 up to rounding,
examples are ranked by the probability left for the other classes. Unless stated otherwise, standard
errors come from the influence of each example, to first order in 1/N. `N` examples.

References: Y. Geifman, R. El-Yaniv, Selective classification for deep neural networks, NeurIPS
2017; Y. Geifman, G. Uziel, R. El-Yaniv, Bias-reduced uncertainty estimation for deep neural
classifiers, ICLR 2019 (AURC, E-AURC); J. Traub et al., Overcoming common flaws in the evaluation of
selective classification systems, NeurIPS 2024 (generalised risk, AUGRC).
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.metrics.classification import classes_and_labels
from polymode.metrics.score import CLASSIFICATION, NotDefined, Score, register
from polymode.prediction import Prediction

ROUNDING = 1e-9  # coverages or risks closer than this count as equal
_error_rate = partial(
    register, CLASSIFICATION, unit="error rate", direction="down", family="selective"
)


class RiskCoverage(NamedTuple):
    """Mean loss of the k most confident examples for k = 1 ... N, and what it could be.

    Attributes:
        coverage: (N,) k / N. risk: (N,) r(k), the expectation over orders of ties.
        oracle: (N,) risk of the best order, by the loss itself.
        random: (N,) expected risk of a random order, the mean loss at every coverage.
    """

    coverage: Tensor
    risk: Tensor
    oracle: Tensor
    random: Tensor

    @property
    def aurc(self) -> float:
        """Area under the risk."""
        return _area(self.risk)

    @property
    def augrc(self) -> float:
        """Area under the generalised risk."""
        return _area(self.coverage * self.risk)

    @property
    def oracle_aurc(self) -> float:
        """The least AURC that any order of these losses has."""
        return _area(self.oracle)

    @property
    def oracle_augrc(self) -> float:
        """The least AUGRC that any order of these losses has."""
        return _area(self.coverage * self.oracle)

    @property
    def random_aurc(self) -> float:
        """The mean AURC over all orders: the mean loss."""
        return _area(self.random)

    @property
    def random_augrc(self) -> float:
        """The mean AUGRC over all orders: half the mean loss, times 1 + 1/N."""
        return _area(self.coverage * self.random)

    @property
    def e_aurc(self) -> float:
        """AURC above the oracle's, >= 0 up to rounding."""
        return self.aurc - self.oracle_aurc


def risk_coverage(confidence: OnlyTensor, loss: OnlyTensor) -> RiskCoverage:
    """Return the risk-coverage curve, the oracle's and that of a random order, in float64.

    Args:
        confidence: (N,) high for what is to be accepted first; may be infinite, not NaN.
        loss: (N,) finite losses, such as 0 and 1, or squared errors.

    >>> curve = risk_coverage(torch.tensor([0.9, 0.8, 0.6]), torch.tensor([0.0, 1.0, 0.0]))
    >>> curve.risk.tolist()
    [0.0, 0.5, 0.3333333333333333]
    """
    check_call(risk_coverage, locals())
    return _curve(*_sort(confidence, loss))


@_error_rate(
    "aurc",
    title="AURC",
    headline=True,
    summary="error rate among the accepted, averaged over coverages, when the least confident are"
    " declined first",
)
def aurc(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the area under the risk-coverage curve, :math:`\int r`, in [0, 1].

    A random order gives the error rate; `e_aurc` is the excess over the oracle's area.

    Traps: it falls with the error rate even if the order is no better: compare methods of different
    accuracy by `e_aurc` or `augrc`. The few most confident examples weigh most: the first one is
    in every r(k). Geifman et al. take the mean of all r(k), which differs by O(1/N), and many
    papers report it times 1,000.

    Reference: Geifman et al. 2019, see the module.
    """
    check_call(aurc, locals())
    by_confidence, by_loss = _judged(prediction, targets, "aurc")
    return _score(_curve(by_confidence, by_loss).aurc, _influence_on_aurc(by_confidence))


@_error_rate(
    "e_aurc",
    title="E-AURC",
    summary="AURC above that of the best possible order of the same errors",
)
def e_aurc(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the excess AURC, :math:`\int r - \int r^*` with the oracle's risk, in [0, 1].

    The oracle declines all errors before any right answer; its area, for N large, is
    :math:`e + (1 - e)\log(1 - e)` at error rate e, and exact here. Zero for a perfect order.

    Traps: not free of the error rate either: a random order has :math:`-(1 - e)\log(1 - e)`.

    Reference: Geifman et al. 2019, see the module.
    """
    check_call(e_aurc, locals())
    by_confidence, by_loss = _judged(prediction, targets, "e_aurc")
    influence = _influence_on_aurc(by_confidence) - _influence_on_aurc(by_loss)
    return _score(_curve(by_confidence, by_loss).e_aurc, influence)


@_error_rate(
    "augrc",
    title="AUGRC",
    summary="share of all examples that are accepted and wrong, averaged over coverages",
)
def augrc(prediction: Prediction, targets: Tensor) -> Score:
    r"""Return the area under the generalised risk-coverage curve, :math:`\int \frac{k}{N} r(k)`.

    In [0, 1/2 + 1/(2N)]. Every error weighs by how early it is accepted: with the error rate e
    and the probability a that a right answer is more confident than a wrong one, the area from
    coverage 0 on is :math:`(1 - a)\,e\,(1 - e) + e^2/2`, exactly.

    Traps: that area, from Traub et al., is this one times 1 - 1/N plus half the loss of the first
    example over N squared: the same to O(1/N). Many papers report it times 1,000.

    Reference: Traub et al. 2024, see the module.
    """
    check_call(augrc, locals())
    by_confidence, by_loss = _judged(prediction, targets, "augrc")
    curve = _curve(by_confidence, by_loss)
    after = 1 - curve.coverage + 0.5 / len(curve.coverage)
    accepted_wrong = by_confidence.pooled(curve.coverage * curve.risk)
    influence = accepted_wrong + by_confidence.loss * by_confidence.pooled(after)
    return _score(curve.augrc, influence)


@_error_rate(
    "risk_at_coverage_80",
    title="risk at 80 % coverage",
    summary="error rate among the 80 % most confident examples",
)
def risk_at_coverage(prediction: Prediction, targets: Tensor, coverage: float = 0.8) -> Score:
    r"""Return r(k) at the least k with :math:`k/N \ge` `coverage`, in [0, 1].

    The squared standard error is :math:`(s^2 + (1 - c)(r - \mu)^2)/k` with coverage c, the variance
    s² of the accepted losses, and the risk μ at the threshold, which moves from sample to sample:
    the mean loss of the examples within :math:`\sqrt{N c (1 - c)}` ranks of it.

    Traps: where the threshold falls among equal confidences, some of them are accepted at random.

    Args:
        coverage: in (0, 1].

    Reference: Geifman & El-Yaniv 2017, see the module.
    """
    check_call(risk_at_coverage, locals())
    if not 0.0 < coverage <= 1.0:
        raise ValueError(f"`coverage` of risk_at_coverage must be in (0, 1], got {coverage}")
    by_confidence, by_loss = _judged(prediction, targets, "risk_at_coverage")
    curve, n = _curve(by_confidence, by_loss), len(by_confidence.loss)
    k = max(1, math.ceil(n * coverage - ROUNDING))
    value, share = curve.risk[k - 1].item(), k / n
    error = None
    if k > 1:
        near = math.ceil(math.sqrt(n * share * (1 - share)))
        expected = by_confidence.pooled(by_confidence.loss)
        threshold = expected[max(k - near, 0) : k + near].mean().item() if near else value
        spread = value * (1 - value) * k / (k - 1)  # of losses 0 and 1
        error = math.sqrt((spread + (1 - share) * (value - threshold) ** 2) / k)
    return Score(value, n, error)


@register(
    CLASSIFICATION,
    "coverage_at_risk_5",
    title="coverage at 5 % risk",
    unit="fraction",
    direction="up",
    family="selective",
    summary="largest share of examples, the most confident, among which at most 5 % are wrong",
)
def coverage_at_risk(prediction: Prediction, targets: Tensor, risk: float = 0.05) -> Score:
    r"""Return the largest :math:`k/N` with :math:`r(k) \le` `risk`, in [0, 1].

    Zero if every k has a higher risk: then no example can be accepted. No standard error: the
    value jumps where the curve only touches the risk.

    Traps: the risk is not monotone in coverage, so a smaller coverage may have a higher risk. The
    threshold is chosen on the examples that are scored, so the risk on new ones is higher. Within
    ties the expected risk is compared.

    Args:
        risk: in [0, 1].

    Reference: Geifman & El-Yaniv 2017, see the module.
    """
    check_call(coverage_at_risk, locals())
    if not 0.0 <= risk <= 1.0:
        raise ValueError(f"`risk` of coverage_at_risk must be in [0, 1], got {risk}")
    by_confidence, by_loss = _judged(prediction, targets, "coverage_at_risk")
    low = (_curve(by_confidence, by_loss).risk <= risk + ROUNDING).nonzero()
    n = len(by_confidence.loss)
    return Score((int(low[-1]) + 1) / n if len(low) else 0.0, n)


def area_over_best(confidence: OnlyTensor, loss: OnlyTensor) -> Score:
    """Return the area under the risk-coverage curve above that of the best order, `e_aurc`.

    Args:
        confidence: (N,) high for what is to be accepted first. loss: (N,) finite losses.

    >>> area_over_best(torch.tensor([0.9, 0.8, 0.6]), torch.tensor([0.0, 0.1, 0.4])).value
    0.0
    """
    check_call(area_over_best, locals())
    by_confidence, by_loss = _sort(confidence, loss)
    influence = _influence_on_aurc(by_confidence) - _influence_on_aurc(by_loss)
    return _score(_curve(by_confidence, by_loss).e_aurc, influence)


def threshold_at_risk(prediction: Prediction, targets: Tensor, risk: float = 0.05) -> float:
    """Return the least confidence at which the accepted examples have at most this risk.

    That at the end of `coverage_at_risk`, for `post.bundled(threshold=...)`. All examples of
    equal confidence are accepted or none.

    Traps: chosen on these examples, so the risk on new ones is higher; take data set aside.

    Args:
        risk: in [0, 1].

    Raises:
        NotDefined: if every coverage has a higher risk.
    """
    check_call(threshold_at_risk, locals())
    if not 0.0 <= risk <= 1.0:
        raise ValueError(f"`risk` of threshold_at_risk must be in [0, 1], got {risk}")
    classes, _ = classes_and_labels(prediction, targets, "threshold_at_risk")
    by_confidence, by_loss = _judged(prediction, targets, "threshold_at_risk")
    last = by_confidence.group.diff(append=by_confidence.group[-1:] + 1) > 0
    low = ((_curve(by_confidence, by_loss).risk <= risk + ROUNDING) & last).nonzero()
    if len(low) == 0:
        raise NotDefined(
            f"no coverage of these {len(by_loss.loss):,} examples has a risk of {risk:g}"
        )
    return float(classes.confidence[by_confidence.places[int(low[-1])]])


class _Sorted(NamedTuple):
    """Sorted losses (N,).

    Attributes:
        loss: in sorted order.
        group: the number of each loss's group of ties.
        places: the position of each loss before sorting.
    """

    loss: Tensor
    group: Tensor
    places: Tensor

    def pooled(self, values: Tensor) -> Tensor:
        """Return the mean of values over each group, for each example."""
        sizes = torch.bincount(self.group).to(values)
        return (torch.zeros_like(sizes).index_add(0, self.group, values) / sizes)[self.group]


def _sort(confidence: Tensor, loss: Tensor) -> tuple[_Sorted, _Sorted]:
    """Return losses by falling confidence, ties by rising loss, and all losses by rising loss."""
    if confidence.dim() != 1 or loss.shape != confidence.shape or len(loss) == 0:
        shapes = f"{tuple(confidence.shape)} and {tuple(loss.shape)}"
        raise ValueError(f"`confidence` and `loss` must both be (N,), N >= 1, got {shapes}")
    if missing := int(confidence.isnan().sum()):
        raise ValueError(f"`confidence` has {missing} NaN of {len(confidence)}; drop these rows")
    if wrong := int((~loss.isfinite()).sum()):
        raise ValueError(f"`loss` has {wrong} NaN or infinite of {len(loss)}; drop these rows")
    low, places = loss.detach().double().sort()
    high, order = confidence.detach().double()[places].sort(descending=True, stable=True)
    by_loss = _Sorted(low, _groups(low), places)
    return _Sorted(low[order], _groups(high), places[order]), by_loss


def _groups(values: Tensor) -> Tensor:
    """Return for each of the sorted values the number of its group of equal values."""
    group = torch.zeros_like(values, dtype=torch.int64)
    group[1:] = (values[1:] != values[:-1]).cumsum(0)
    return group


def _curve(by_confidence: _Sorted, by_loss: _Sorted) -> RiskCoverage:
    loss = by_loss.loss
    k = torch.arange(1, len(loss) + 1, dtype=loss.dtype, device=loss.device)
    risk = by_confidence.pooled(by_confidence.loss).cumsum(0) / k
    return RiskCoverage(k / len(loss), risk, loss.cumsum(0) / k, loss.mean().expand_as(k))


def _area(curve: Tensor) -> float:
    """Return the mean height by trapezoids; for one point, its height."""
    if len(curve) == 1:
        return curve.item()
    return torch.trapezoid(curve).item() / (len(curve) - 1)


def _influence_on_aurc(ordered: _Sorted) -> Tensor:
    r"""Return each example's influence up to a constant, :math:`r(j) + \sum_{k \ge j}(l - r(k))/k`.

    The derivative of :math:`\int r` with respect to the example's weight, which moves the threshold
    at its rank j and the numerator and denominator of every r(k) it is in; averaged over ties. In
    the examples' order before sorting.
    """
    k = torch.arange(1, len(ordered.loss) + 1).to(ordered.loss)
    risk = ordered.pooled(ordered.loss).cumsum(0) / k
    shares = (1 / k).flip(0).cumsum(0).flip(0)
    later = (risk / k).flip(0).cumsum(0).flip(0)
    influence = torch.empty_like(risk)
    influence[ordered.places] = ordered.loss * ordered.pooled(shares) + ordered.pooled(risk - later)
    return influence


def _score(value: float, influence: Tensor) -> Score:
    """Return the value with the standard error that the influence of each example gives."""
    n = len(influence)
    error = influence.std(correction=1).item() / math.sqrt(n) if n > 1 else None
    return Score(value, n, error)


def _judged(prediction: Prediction, targets: Tensor, metric: str) -> tuple[_Sorted, _Sorted]:
    """Sort a prediction's examples by confidence and by loss, 1 for a wrong class."""
    classes, labels = classes_and_labels(prediction, targets, metric)
    return _sort(-classes.one_minus_confidence, classes.classes != labels)
