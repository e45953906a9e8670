r"""Adaptive conformal prediction: the stated coverage along a stream, whatever changes.

After each target the level is moved: with the miss :math:`e_t \in \{0, 1\}` of the interval at time
t and the rate :math:`\gamma`,

.. math:: \alpha_{t+1} = \alpha_t + \gamma\,(1 - level - e_t),

and the next interval is that of the level :math:`1 - \alpha_{t+1}` from the latest `window` scores:
infinite if :math:`\alpha \le 0`, empty if :math:`\alpha \ge 1`. Whatever the data,

.. math:: \Big|\frac1T\sum_{t \le T} e_t - (1 - level)\Big|
          \le \frac{\max(\alpha_1, 1 - \alpha_1) + \gamma}{\gamma\,T},

which is a statement about the average over time, not about each interval. A large rate follows
changes faster, and gives intervals that are infinite more often.

Reference: I. Gibbs, E. Candès, Adaptive conformal inference under distribution shift, NeurIPS 2021,
proposition 4.1. `D` = 1 output.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.conformal.prediction_intervals import PredictionIntervals
from polymode.conformal.prediction_sets import PredictionSets
from polymode.conformal.quantile import conformal_quantile
from polymode.conformal.region import Region, region_of
from polymode.core.checks import Count, Positive, Share, check_call
from polymode.prediction import Prediction


class Step(NamedTuple):
    """What one step of a stream gave.

    Attributes:
        region: the set or interval of this input, from the targets before it.
        covered: whether it holds the target.
        alpha: 1 - the level that it was made for; outside [0, 1] it is infinite or empty.
    """

    region: PredictionSets | PredictionIntervals
    covered: bool
    alpha: float


class AdaptiveRule:
    """A rule that moves its level with every target: `predict` an input, then `update` it.

    Attributes:
        alpha: 1 - the level of the next interval. num_steps, num_missed: so far.
    """

    def __init__(self, region: Region, scores: Tensor, rate: float, window: int) -> None:
        self.region, self.rate = region, rate
        self.alpha = 1.0 - region.level
        self.num_steps = self.num_missed = 0
        self._scores: deque[float] = deque(scores[-window:, 0].tolist(), maxlen=window)

    @property
    def miss_rate(self) -> float:
        """Share of targets missed so far."""
        return self.num_missed / max(1, self.num_steps)

    @property
    def bound(self) -> float:
        """How far the miss rate can be from 1 - level by now, whatever the data."""
        start = max(self.region.level, 1.0 - self.region.level)
        return (start + self.rate) / (self.rate * max(1, self.num_steps))

    def predict(self, prediction: Prediction) -> PredictionSets | PredictionIntervals:
        """Return sets or intervals of inputs whose targets come next."""
        return self.region.within(prediction, self._quantile())

    def update(self, prediction: Prediction, target: Tensor) -> Step:
        """Return the set or interval of one input, and learn from its target (1,) or (1, 1)."""
        if len(prediction) != 1:
            raise ValueError(f"A stream is updated by one input at a time, got {len(prediction)}")
        score = self.region.scores(prediction, target)
        bound, alpha = self._quantile(), self.alpha
        missed = bool((score > bound).any())
        self._scores.append(float(score[0, 0]))
        self.num_steps, self.num_missed = self.num_steps + 1, self.num_missed + missed
        self.alpha = alpha + self.rate * (1.0 - self.region.level - missed)
        return Step(self.region.within(prediction, bound), not missed, alpha)

    def _quantile(self) -> Tensor:
        if self.alpha <= 0.0 or not self._scores:
            return torch.full((1, 1), torch.inf, dtype=torch.float64)
        if self.alpha >= 1.0:
            return torch.full((1, 1), -torch.inf, dtype=torch.float64)
        scores = torch.tensor(self._scores, dtype=torch.float64)
        return conformal_quantile(scores, 1.0 - self.alpha).view(1, 1)


def adaptive(
    prediction: Prediction,
    targets: Tensor,
    level: Share = 0.9,
    method: str | None = None,
    *,
    rate: Positive = 0.01,
    window: Count = 1000,
) -> AdaptiveRule:
    """Return a rule for a stream, started on labelled examples in the order of time.

    Args:
        prediction: of n >= 1 examples before the stream.
        targets: their labels (n,), or values (n,).
        level: in (0, 1), to hold on average over time.
        method: of `conformal_sets` ("thr" if None) or `conformal_intervals` ("scaled" if None).
        rate: gamma > 0, how fast the level moves; the paper uses 0.005.
        window: latest scores that count.
    """
    check_call(adaptive, locals(), but=("method",))
    region = region_of(prediction, method, level)
    if not region.classes and region.outputs > 1:
        region = region_of(prediction, method, level, joint=True)
    return AdaptiveRule(region, region.scores(prediction, targets), float(rate), window)
