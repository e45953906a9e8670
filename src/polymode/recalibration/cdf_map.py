r"""Maps of the predicted distribution function, for regression: isotonic and by quantiles.

If predictions are right, the values :math:`u_n = F_n(y_n)` of the distribution functions at the
targets are uniform. The map g takes the sorted ones, :math:`u_{(i)}`, to :math:`i/(n + 1)`, with
straight lines between and to (0, 0) and (1, 1); the recalibrated distribution function is
:math:`g \circ F`. These corners rise, so they are their own isotonic regression. A new example that
is exchangeable with those of the fit has :math:`P(y \le F'^{-1}(i/(n+1))) = i/(n+1)`.

- isotonic: a corner at each :math:`u_{(i)}`, of more than 512 examples at 512 of them, evenly by
  rank. Coverage follows the data closely, but the density is rough: its steps are 1/(n + 1) over
  the gap between two neighbours, so the NLL may rise.
- quantile: corners only at the ranks nearest to the levels 1/K, ..., (K - 1)/K for K =
  `num_levels`: a smoother density.

Each output has a map of its own. A map corrects what is wrong in the same way for all inputs; it
cannot tell for which of them a prediction is too sure.

Reference: V. Kuleshov, N. Fenner, S. Ermon, Accurate uncertainties for deep learning using
calibrated regression, ICML 2018. `n` examples, `D` outputs, `K` levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polymode.core.options import Config, option
from polymode.prediction import MappedPrediction, MixturePrediction

_MOST = 512  # corners of an isotonic map
_EDGE = 1e-12  # of levels: values beyond a tail's float64 are taken to lie there


def levels_of(prediction: MixturePrediction, values: Tensor) -> Tensor:
    """Return F(y) of values (n, D), (n, D) float64: all that a map is fitted to."""
    return prediction.double().cdf(values.double()).clamp(_EDGE, 1.0 - _EDGE)


def fit_isotonic(levels: Tensor, values: Tensor) -> dict[str, Any]:
    """Return {"maps": D pairs of levels and heights}, a corner for each of levels (n, D)."""
    return _fit(levels, min(len(levels), _MOST) + 1)


@dataclass(frozen=True, kw_only=True)
class Quantiles(Config):
    """Options of the map by quantiles."""

    called = "quantile_cdf"
    num_levels: int = option(20, ge=2, doc="levels, one more than the quantiles at its corners")


def fit_quantile(levels: Tensor, values: Tensor, options: Quantiles) -> dict[str, Any]:
    """Return {"maps": D pairs of levels and heights}, corners at `num_levels` - 1 quantiles."""
    return _fit(levels, min(options.num_levels, len(levels) + 1))


def apply(parameters: dict[str, Any], prediction: MixturePrediction) -> MappedPrediction:
    """Return the prediction with its distribution functions mapped."""
    return MappedPrediction.of(prediction, parameters["maps"])


def _fit(levels: Tensor, num_levels: int) -> dict[str, Any]:
    levels, n = levels.sort(0).values, len(levels)
    steps = torch.arange(1, num_levels, dtype=torch.float64) / num_levels * (n + 1)
    ranks = steps.round().long().clamp(1, n).unique()
    return {"maps": [_corners(column, ranks) for column in levels.cpu().T]}


def _corners(ordered: Tensor, ranks: Tensor) -> list[list[float]]:
    """Return levels and heights from 0 to 1; of tied levels the mean of their heights counts."""
    levels, place, count = ordered[ranks - 1].unique(return_inverse=True, return_counts=True)
    heights = torch.zeros_like(levels).index_add(0, place, ranks.double() / (len(ordered) + 1))
    return [[0.0, *levels.tolist(), 1.0], [0.0, *(heights / count).tolist(), 1.0]]
