r"""Detecting out-of-distribution (OOD) inputs by the uncertainty of their predictions.

OOD is the positive class and a higher score means "more likely OOD"; only `aupr_in` reverses both.
With scores :math:`u_i` of the m test inputs and :math:`v_j` of the n OOD inputs, let

.. math:: F(t) = |\{i: u_i \ge t\}|, \qquad T(t) = |\{j: v_j \ge t\}|

be the false and the true alarms at threshold t. Thresholds lie between groups of equal scores, so
the order of the examples does not matter. Only the order of the scores does: they may be infinite,
and any increasing function of them gives the same numbers. The measures take scores (m,) of the
test set, `inside`, and (n,) of the OOD set, `outside`, without NaN, and return a number in [0, 1]
over m + n examples whose `each` is None.

`S` samples, `B` batch, `C` classes, `D` outputs, `K` distinct scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call
from polymode.core.registry import Registry
from polymode.likelihoods.densities import has_moment
from polymode.metrics.score import (
    OOD_CLASSIFICATION,
    OOD_REGRESSION,
    NotDefined,
    PairMetric,
    Score,
    register,
)
from polymode.prediction import CategoricalPrediction, DensityPrediction, Prediction


class Ranked(NamedTuple):
    """How many inputs have each distinct score, from the highest score down.

    Attributes:
        inside, outside: (K,) float64 counts of test and of OOD inputs; their sums are at least 1.
    """

    inside: Tensor
    outside: Tensor

    @staticmethod
    def of(inside: Tensor, outside: Tensor, metric: str) -> Ranked:
        """Sort the scores (m,) and (n,) together; errors name the `metric`."""
        inside, outside = torch.as_tensor(inside), torch.as_tensor(outside)
        for name, what, scores in (("inside", "test", inside), ("outside", "OOD", outside)):
            if scores.dim() != 1 or len(scores) == 0:
                raise ValueError(
                    f"`{name}` of {metric} must be scores of shape (n,), n >= 1, got"
                    f" {tuple(scores.shape)}; give one score for each input of the {what} set"
                )
            if missing := int(scores.isnan().sum()):
                raise ValueError(
                    f"`{name}` of {metric} has {missing} NaN of {len(scores)}; drop them"
                )
        pooled = torch.cat([inside.detach().double(), outside.detach().double()])
        scores, order = pooled.sort(descending=True)
        group = torch.zeros_like(order)
        group[1:] = (scores[1:] != scores[:-1]).cumsum(0)
        where = 2 * group + (order >= len(inside)).long()
        counts = torch.bincount(where, minlength=2 * (int(group[-1]) + 1)).view(-1, 2).double()
        return Ranked(*counts.unbind(1))

    @property
    def sizes(self) -> tuple[int, int]:
        """How many test and how many OOD inputs there are."""
        return int(self.inside.sum()), int(self.outside.sum())

    def turned(self) -> Ranked:
        """Return the ranking with the sign of the scores flipped and the two sets exchanged."""
        return Ranked(self.outside.flip(0), self.inside.flip(0))


def auroc(inside: OnlyTensor, outside: OnlyTensor) -> Score:
    r"""Return the probability that an OOD input scores above a test input, ties counted half.

    :math:`P(v > u) + \frac12 P(v = u)`, the area under :math:`T/n` over :math:`F/m`. It is the mean
    of the placements :math:`V_j = \frac{1}{m}\sum_i (1[u_i < v_j] + \frac12 1[u_i = v_j])`, and the
    standard error is DeLong's, :math:`\sqrt{var(V)/n + var(U)/m}` with U the placements the other
    way round.

    Traps: 1/2 is chance and 0 is a perfect detector with the sign flipped; constant scores give
    exactly 1/2; it does not tell which threshold to use.

    Reference: E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson, Comparing the areas under two or
    more correlated receiver operating characteristic curves, Biometrics 44 (1988).

    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])).value
    0.75
    """
    check_call(auroc, locals())
    return _auroc(Ranked.of(inside, outside, "auroc"))


def _auroc(ranked: Ranked) -> Score:
    m, n = ranked.sizes
    below = 2 * (m - ranked.inside.cumsum(0)) + ranked.inside  # twice, so that all are integers
    above = 2 * ranked.outside.cumsum(0) - ranked.outside
    value = (ranked.outside @ below).item() / (2 * m * n)
    return Score(value, m + n, _two_sample_error(ranked, above / (2 * n), below / (2 * m)))


def aupr_out(inside: OnlyTensor, outside: OnlyTensor) -> Score:
    r"""Return the average precision of finding the OOD inputs by high scores, OOD positive.

    In steps, :math:`\sum_k \frac{T_k - T_{k-1}}{n} \frac{T_k}{T_k + F_k}` over the distinct scores
    from the highest down: the mean, over OOD inputs, of the precision at their own threshold. Its
    standard error is that of the mean influence of an example, to first order in 1/m and 1/n.

    Traps: it depends on the sizes of the two sets: constant or random scores give n / (m + n), and
    published values hold for their own ratio only. Trapezoids between the points, as in some
    libraries, give more than any threshold can reach.

    Reference: J. Davis, M. Goadrich, The relationship between precision-recall and ROC curves,
    ICML 2006; D. Hendrycks, K. Gimpel, A baseline for detecting misclassified and
    out-of-distribution examples in neural networks, ICLR 2017.

    >>> round(aupr_out(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])).value, 4)
    0.75
    """
    check_call(aupr_out, locals())
    return _aupr_out(Ranked.of(inside, outside, "aupr_out"))


def aupr_in(inside: OnlyTensor, outside: OnlyTensor) -> Score:
    """Return the average precision of finding the test inputs by low scores: test set positive.

    `aupr_out` with the sets exchanged and the sign of the scores flipped; formula, standard error
    and traps are the same, and constant scores give m / (m + n). The only measure here for which
    OOD is not the positive class.

    >>> round(aupr_in(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])).value, 4)
    0.8056
    """
    check_call(aupr_in, locals())
    return _aupr_out(Ranked.of(inside, outside, "aupr_in").turned())


def fpr95(inside: OnlyTensor, outside: OnlyTensor) -> Score:
    r"""Return the share of test inputs flagged at the threshold that finds 95 % of the OOD inputs.

    :math:`F(t)/m` at the highest t with :math:`T(t) \ge 0.95\,n`; OOD positive. The standard error
    has a binomial part, and a part for the threshold by Woodruff's method: the standard deviation
    :math:`\sqrt{0.95 \cdot 0.05\, n}` of the number of OOD inputs found, times the slope of
    :math:`F/m` between the thresholds that find that many fewer and more of them; below a few
    hundred OOD inputs it tends to be too large.

    Traps: in much of the literature the test set is positive: the share of OOD inputs accepted
    where 95 % of the test inputs are. That is a different number, `fpr95(-outside, -inside)`.
    Constant scores give 1. With few OOD inputs the threshold rests on one or two of them.

    Reference: S. Liang, Y. Li, R. Srikant, Enhancing the reliability of out-of-distribution image
    detection in neural networks, ICLR 2018 (test set positive); R. S. Woodruff, Confidence
    intervals for medians and other position measures, J. Am. Stat. Assoc. 47 (1952).

    >>> fpr95(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9])).value
    0.6666666666666666
    """
    check_call(fpr95, locals())
    return _fpr95(Ranked.of(inside, outside, "fpr95"))


def _fpr95(ranked: Ranked) -> Score:
    m, n = ranked.sizes
    hits, alarms = ranked.outside.cumsum(0), ranked.inside.cumsum(0)
    needed = (19 * n + 19) // 20  # of the OOD inputs, 0.95 n rounded up
    deviation = math.sqrt(0.95 * 0.05 * n)
    low, high = max(needed - math.ceil(deviation), 1), min(needed + math.ceil(deviation), n)
    at = torch.searchsorted(hits, torch.tensor([needed, low, high]).to(hits))
    value, fewer, more = (alarms[at] / m).tolist()
    error = None
    if min(m, n) > 1:
        threshold = deviation * (more - fewer) / (high - low)
        error = math.sqrt(value * (1 - value) / (m - 1) + threshold**2)
    return Score(value, m + n, error)


def _aupr_out(ranked: Ranked) -> Score:
    """Return the average precision with `outside` positive, its error by influence functions."""
    m, n = ranked.sizes
    true, false = ranked.outside.cumsum(0), ranked.inside.cumsum(0)
    precision = true / (true + false)
    value = (ranked.outside @ precision).item() / n
    slope = ranked.outside / (true + false).square()  # of precision in the counts, over OOD inputs
    of_outside = precision + _from_here(slope * false)
    of_inside = -_from_here(slope * true) * (m / n)
    return Score(value, m + n, _two_sample_error(ranked, of_inside, of_outside))


def _from_here(values: Tensor) -> Tensor:
    """Return the sums of values from each place to the end."""
    return values.flip(0).cumsum(0).flip(0)


def _two_sample_error(ranked: Ranked, of_inside: Tensor, of_outside: Tensor) -> float | None:
    """Return the standard error of a statistic from the influence (K,) of each set's inputs."""
    total = 0.0
    for counts, influence in zip(ranked, (of_inside, of_outside), strict=True):
        size = counts.sum().item()
        if size < 2:
            return None
        centred = influence - (counts @ influence) / size
        total += (counts @ centred.square()).item() / (size * (size - 1))
    return math.sqrt(total)


def predictive_entropy(prediction: Prediction) -> Tensor:
    """Return the entropy of the mean prediction, (B,) nats in [0, log C]: all the uncertainty."""
    check_call(predictive_entropy, locals())
    return _classes(prediction, "predictive_entropy").predictive_entropy


def mutual_information(prediction: Prediction) -> Tensor:
    """Return how much the samples differ, (B,) nats in [0, log S]: the epistemic part; S >= 2."""
    check_call(mutual_information, locals())
    return _several(_classes(prediction, "mutual_information")).mutual_information


def one_minus_confidence(prediction: Prediction) -> Tensor:
    """Return the probability of all classes but the most probable one, (B,) in [0, 1)."""
    check_call(one_minus_confidence, locals())
    return _classes(prediction, "one_minus_confidence").one_minus_confidence


def energy(prediction: Prediction) -> Tensor:
    r"""Return the mean over samples of :math:`-\log\sum_k e^{z_k}`, (B,), z the network's logits.

    Not defined for predictions made of probabilities. Trap: softmax does not fix the level of the
    logits, so energies of different networks cannot be compared, only ranked within one.

    Reference: W. Liu, X. Wang, J. D. Owens, Y. Li, Energy-based out-of-distribution detection,
    NeurIPS 2020.
    """
    check_call(energy, locals())
    classes = _classes(prediction, "energy")
    if not classes.has_energy:
        raise NotDefined("needs the network's logits")
    return classes.energy


def variance(prediction: Prediction) -> Tensor:
    """Return the predictive variance, summed over classes or outputs, (B,).

    Trap: the output with the largest unit dominates the sum; standardise outputs of several units.
    """
    check_call(variance, locals())
    if isinstance(prediction, DensityPrediction):
        if not has_moment(prediction.df, 2):
            raise NotDefined(f"a Student-t with df = {prediction.df:g} <= 2 has no variance")
    return prediction.variance.sum(-1)


def epistemic_variance(prediction: Prediction) -> Tensor:
    """Return the variance over samples of their probabilities or means, summed as in `variance`.

    (B,), for S >= 2; of classes in [0, 1], of outputs in their units squared.
    """
    check_call(epistemic_variance, locals())
    if isinstance(prediction, DensityPrediction):
        if not has_moment(prediction.df, 1):
            raise NotDefined(f"a Student-t with df = {prediction.df:g} <= 1 has no mean")
    several = _several(prediction)
    if isinstance(several, CategoricalPrediction):
        return several.total_epistemic_variance
    return several.epistemic_variance.sum(-1)


SCORES: dict[str, Callable[[Prediction], Tensor]] = {
    "predictive_entropy": predictive_entropy,
    "mutual_information": mutual_information,
    "one_minus_confidence": one_minus_confidence,
    "energy": energy,
    "variance": variance,
    "epistemic_variance": epistemic_variance,
}
"""Functions from a prediction to (B,) scores, high for inputs that look OOD."""
MEASURES: dict[str, Callable[[Tensor, Tensor], Score]] = {
    "auroc": auroc,
    "aupr_in": aupr_in,
    "aupr_out": aupr_out,
    "fpr95": fpr95,
}
"""Functions from the scores of the test set and of the OOD set to a measure of separation."""
_OF_RANKED: dict[str, Callable[[Ranked], Score]] = {
    "auroc": _auroc,
    "aupr_in": lambda ranked: _aupr_out(ranked.turned()),
    "aupr_out": _aupr_out,
    "fpr95": _fpr95,
}


def _classes(prediction: Prediction, score: str) -> CategoricalPrediction:
    if not isinstance(prediction, CategoricalPrediction):
        raise ValueError(
            f"`{score}` is a score of class probabilities, got a {type(prediction).__name__};"
            " use `variance` or `epistemic_variance`"
        )
    return prediction


def _several(prediction: Prediction) -> Prediction:
    if not prediction.has_epistemic:
        raise NotDefined(f"needs at least 2 samples, got {prediction.num_samples}")
    return prediction


def _kind_of(prediction: Prediction) -> type[Prediction]:
    """Return the class of predictions; averages are those of classes, too."""
    classes = isinstance(prediction, CategoricalPrediction)
    return CategoricalPrediction if classes else type(prediction)


def _check_alike(inside: Prediction, outside: Prediction) -> None:
    """Refuse empty predictions, and two that cannot come from one posterior."""
    for what, prediction in (("test", inside), ("OOD", outside)):
        if len(prediction) == 0:
            raise ValueError(f"the {what} set is empty: 0 inputs; leave it out")
    sides = [
        f"a {_kind_of(side).__name__} of {side.num_samples} sample(s) and {side.mean.shape[-1]}"
        f" {'classes' if isinstance(side, CategoricalPrediction) else 'output(s)'}"
        for side in (inside, outside)
    ]
    if sides[0] != sides[1]:
        raise ValueError(
            f"the test set has {sides[0]}, the OOD set {sides[1]}; predict both with one posterior"
        )


_RANKED: WeakKeyDictionary[Prediction, dict[str, Ranked]] = WeakKeyDictionary()
_AGAINST: WeakKeyDictionary[Prediction, ReferenceType[Prediction]] = WeakKeyDictionary()


def _ranked(score: str, inside: Prediction, outside: Prediction) -> Ranked:
    """Return the ranked scores, sorted once for all measures; cached with the OOD prediction."""
    before = _AGAINST.get(outside)
    if before is None or before() is not inside:
        _check_alike(inside, outside)
        _AGAINST[outside], _RANKED[outside] = ref(inside), {}
    by_score = _RANKED[outside]
    if score not in by_score:
        by_score[score] = Ranked.of(SCORES[score](inside), SCORES[score](outside), score)
    return by_score[score]


def _metric(measure: str, score: str) -> PairMetric:
    def metric(inside: Prediction, outside: Prediction) -> Score:
        return _OF_RANKED[measure](_ranked(score, inside, outside))

    metric.__name__ = f"{measure}_{score}"
    metric.__doc__ = f"Return `{measure}` of `{score}`, of the test set and an OOD set."
    return metric


_FACTS = {  # title, unit, direction and summary of each measure
    "auroc": (
        "AUROC",
        "probability",
        "up",
        "probability that an OOD input has a higher {} than a test input (OOD positive)",
    ),
    "aupr_in": (
        "AUPR-in",
        "fraction",
        "up",
        "average precision of finding the test inputs by low {} (test set positive; all other OOD"
        " numbers have OOD positive)",
    ),
    "aupr_out": (
        "AUPR-out",
        "fraction",
        "up",
        "average precision of finding the OOD inputs by high {} (OOD positive)",
    ),
    "fpr95": (
        "FPR95",
        "fraction",
        "down",
        "share of test inputs flagged where 95 % of the OOD inputs are, by high {} (OOD positive)",
    ),
}


def measure_facts() -> dict[str, tuple[str, str, str, str]]:
    """Return title, unit, direction and summary of each of `MEASURES`."""
    return _FACTS


def _register(table: Registry[PairMetric], scores: dict[str, tuple[str, str, bool]]) -> None:
    """Register every measure of these scores: title, words for the summary, whether epistemic."""
    headlines = ("auroc_predictive_entropy", "auroc_mutual_information", "fpr95_predictive_entropy")
    for measure, (title, unit, direction, summary) in _FACTS.items():
        for score, (short, words, epistemic) in scores.items():
            name = f"{measure}_{score}"
            register(
                table,
                name,
                title=f"{title}, {short}",
                unit=unit,
                direction=direction,
                family="ood",
                headline=name in headlines or (table is OOD_REGRESSION and measure == "auroc"),
                epistemic=epistemic,
                summary=summary.format(words),
            )(_metric(measure, score))


_register(
    OOD_CLASSIFICATION,
    {
        "predictive_entropy": ("entropy", "predictive entropy", False),
        "mutual_information": ("MI", "mutual information", True),
        "one_minus_confidence": ("1 − max p", "1 − largest class probability", False),
        "energy": ("energy", "energy", False),
        "epistemic_variance": ("epistemic variance", "epistemic variance", True),
    },
)
_register(
    OOD_REGRESSION,
    {
        "variance": ("variance", "predictive variance", False),
        "epistemic_variance": ("epistemic variance", "epistemic variance", True),
    },
)
