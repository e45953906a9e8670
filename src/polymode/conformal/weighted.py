r"""Weighted conformal prediction: coverage on inputs that are distributed differently.

If only the distribution of the inputs changes (covariate shift), with the ratio of densities
:math:`w(x) = q_{new}(x) / q_{calibration}(x)`, the scores are weighted by it. The bound for a new
input x is the smallest score :math:`s_{(k)}` with

.. math:: \sum_{i \le k} w(x_{(i)}) \ge level \cdot \Big(\sum_i w(x_i) + w(x)\Big),

or infinity if there is none: the weight of x itself stands for a score of infinity. Coverage of new
inputs is then at least `level` for the true ratio; it may be known up to a factor. With equal
weights this is split conformal prediction. Few effective examples, :math:`(\sum w)^2 / \sum w^2`,
make the bounds wide and their coverage very variable.

Reference: R. Tibshirani, R. Foygel Barber, E. Candès, A. Ramdas, Conformal prediction under
covariate shift, NeurIPS 2019. `n`, `B` examples, `D` outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from polymode.conformal.prediction_intervals import PredictionIntervals
from polymode.conformal.prediction_sets import PredictionSets
from polymode.conformal.region import Region, region_of
from polymode.core.checks import Seed, Share, as_numbers, check_call
from polymode.likelihoods.targets import check_as_many
from polymode.prediction import Prediction

_ROUNDING = 1e-12  # of sums of weights, relative


@dataclass(frozen=True)
class WeightedRule:
    """A rule for shifted inputs: call it on a prediction and the weights of its inputs.

    Attributes:
        region: the score and its method.
        scores: of calibration, sorted, (n, Q).
        sums: running sums of their weights, (n, Q).
        effective_n: effective number of calibration examples.
    """

    region: Region
    scores: Tensor = field(repr=False)
    sums: Tensor = field(repr=False)
    effective_n: float

    def __call__(
        self, prediction: Prediction, weights: Tensor, *, seed: Seed = 0
    ) -> PredictionSets | PredictionIntervals:
        """Return sets or intervals of B inputs with the ratios of densities `weights`, (B,)."""
        ratio = check_weights(weights, len(prediction)).to(self.sums.device)
        columns = []
        for scores, sums in zip(self.scores.T, self.sums.T, strict=True):
            need = self.region.level * (sums[-1] + ratio) * (1.0 - _ROUNDING)
            place = torch.searchsorted(sums.contiguous(), need)
            ends = torch.cat([scores, scores.new_full((1,), torch.inf)])
            columns.append(ends[place])
        return self.region.within(prediction, torch.stack(columns, -1), seed=seed)


def weighted(
    prediction: Prediction,
    targets: Tensor,
    weights: Tensor,
    level: Share = 0.9,
    method: str | None = None,
    *,
    joint: bool = False,
    seed: Seed = 0,
) -> WeightedRule:
    """Return a rule whose sets or intervals cover inputs of another distribution.

    Args:
        prediction: of n >= 1 examples that the user sets aside for this.
        targets: their labels (n,), or values (n, D).
        weights: ratio of densities, new over calibration, at each example, (n,), >= 0, known up to
            a factor. Fitted ratios must come from other data.
        level: in (0, 1).
        method: of `conformal_sets` ("thr" if None) or `conformal_intervals` ("scaled" if None).
        joint: whether all D outputs are to be covered at once.
        seed: of the draws of aps and raps.
    """
    check_call(weighted, locals(), but=("method",))
    region = region_of(prediction, method, level, joint=joint)
    scores = region.scores(prediction, targets, seed=seed)
    ratio = check_weights(weights, len(scores)).to(scores.device)
    if not ratio.sum() > 0:
        raise ValueError("`weights` are all 0: no calibration example resembles the new inputs")
    ordered, order = scores.sort(0)
    effective = (ratio.sum().square() / ratio.square().sum()).item()
    return WeightedRule(region, ordered, ratio[order].cumsum(0), effective)


def check_weights(weights: Tensor, size: int) -> Tensor:
    """Return weights as float64 (n,), or say what is wrong with them."""
    values = as_numbers("`weights`", weights).double()
    if values.dim() != 1:
        raise ValueError(f"`weights` must have shape (n,), got {tuple(values.shape)}")
    check_as_many(len(values), size, "weight(s)")
    if not ((values >= 0) & values.isfinite()).all():
        row = int((~((values >= 0) & values.isfinite())).int().argmax())
        raise ValueError(f"`weights` must be finite and >= 0, got {values[row]:g} in row {row}")
    return values
