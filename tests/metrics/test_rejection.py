"""Thresholds with a bound on the risk of answers, and intervals of the risk, by simulation."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from polymode.metrics.rejection import (
    RANKS,
    certified_threshold,
    clopper_pearson,
    risk_interval,
)
from polymode.metrics.score import NotDefined
from polymode.prediction import CategoricalPrediction, MixturePrediction


def draw(n: int, seed: int, exponent: float = 2.0):
    """Two classes with a confidence c uniform on (0.5, 1) that err with probability u^e / 2 for
    u = 2 (1 - c): with e = 2 underconfident, with e = 0.5 far too confident."""
    random = torch.Generator().manual_seed(seed)
    confidence = 0.5 + 0.5 * torch.rand(n, generator=random, dtype=torch.float64)
    error = (2 * (1 - confidence)) ** exponent / 2
    labels = (torch.rand(n, generator=random, dtype=torch.float64) < error).long()
    return CategoricalPrediction.from_probs(torch.stack([confidence, 1 - confidence], -1)), labels


def true_risk(threshold: float, exponent: float) -> float:
    """The mean of u^e / 2 for u = 2 (1 - c) uniform on (0, 2 (1 - threshold))."""
    width = min(1.0, 2 * (1 - max(threshold, 0.5)))
    return width**exponent / (2 * (exponent + 1))


@pytest.mark.parametrize("exponent", [2.0, 0.5])
def test_the_bound_holds(exponent) -> None:
    """Of 400 choices at 90 %, those whose true risk is above 0.08 are at most a tenth: more than
    0.1 + 4 sqrt(0.09 / 400) happens with a chance of 6e-5. The rules answer a good part."""
    broken, coverages = 0, []
    for seed in range(400):
        prediction, labels = draw(400, seed, exponent)
        try:
            rule = certified_threshold(prediction, labels, risk=0.08, level=0.9)
        except NotDefined:
            coverages.append(0.0)
            continue
        broken += true_risk(rule.threshold, exponent) > 0.08
        coverages.append(rule.coverage)
        assert rule(prediction).double().mean().item() == pytest.approx(1 - rule.coverage)
    assert broken / 400 <= 0.1 + 4 * math.sqrt(0.09 / 400)
    if exponent == 2.0:
        assert sum(coverages) / 400 > 0.35


def test_intervals_hold_the_risk_of_their_rule() -> None:
    """Over 400 draws of 60 examples the true risk at the threshold is outside a 90 % interval in at
    most a tenth; 6e-5 false alarms."""
    outside = 0
    for seed in range(400):
        prediction, labels = draw(60, seed)
        interval = risk_interval(prediction, labels, coverage=0.5, level=0.9)
        threshold = prediction.mean.amax(-1).sort(descending=True).values[30].item()
        outside += not interval.low <= true_risk(threshold, 2.0) <= interval.high
        assert interval.n == 30 and interval.low <= interval.value <= interval.high
    assert outside / 400 <= 0.1 + 4 * math.sqrt(0.09 / 400)


def test_clopper_pearson_is_that_of_scipy() -> None:
    for count, num in ((0, 7), (3, 7), (7, 7), (40, 1000)):
        exact = stats.binomtest(count, num).proportion_ci(0.9, method="exact")
        assert clopper_pearson(count, num, 0.9) == pytest.approx((exact.low, exact.high))


def test_by_hand_and_limits() -> None:
    """Without errors everything is answered from as many examples as the message says."""
    need = math.ceil(math.log(0.05 / RANKS) / math.log(0.9))
    probs = torch.linspace(0.6, 0.99, need).double()
    prediction = CategoricalPrediction.from_probs(torch.stack([probs, 1 - probs], -1))
    zeros = torch.zeros(need).long()
    rule = certified_threshold(prediction, zeros, risk=0.1)
    assert rule.coverage == 1.0 and not rule(prediction).any()
    with pytest.raises(NotDefined, match=f"it takes {need} answered ones"):
        certified_threshold(prediction[1:], zeros[1:], risk=0.1)
    with pytest.raises(ValueError, match=r"`coverage` of risk_interval must be in \(0, 1\]"):
        risk_interval(prediction, zeros, coverage=0.0)
    with pytest.raises(ValueError, match="for predictions of classes"):
        risk_interval(MixturePrediction(torch.zeros(1, 3, 1), 1.0), torch.zeros(3))
