r"""Predictions of S posterior samples for B inputs, stored separately and mixed on demand.

The posterior predictive is the mixture :math:`p(y \mid x) = \frac1S\sum_s p_s(y \mid x)` of the
samples' predictions: log-probabilities of C classes (`categorical`), or laws of D numbers
(`density`): Gaussian, Student-t or Laplace densities (`mixture`), which recalibration may map
(`mapped`), counts (`counts`), distributions between quantiles (`quantiles`); `base` holds what all
can do. Parameters are never averaged:
two members N(-5, 0.1) and N(5, 0.1) predict with a standard deviation of 5.001, not 0.1.

Both separate the uncertainty that would remain if the network were known (aleatoric) from that of
not knowing it (epistemic), once in nats and once by the law of total variance:

=========  =========================================================  ====================
all        `predictive_entropy`, :math:`H[\frac1S\sum_s p_s]`         `variance`
aleatoric  `expected_entropy`, :math:`\frac1S\sum_s H[p_s]`           `aleatoric_variance`
epistemic  `mutual_information`, their difference, :math:`\ge 0`      `epistemic_variance`
=========  =========================================================  ====================

The S samples are L of each of M modes, mode by mode; `by_mode` separates them, `within_modes` and
`between_modes` split the mutual information (chain rule), `join` makes one mixture of several, and
`take_modes` a smaller one. A sample of a regression may also stand for a Gaussian around a network,
as from Laplace's approximation: `epistemic` is then the share of its variance that comes from the
weights, which counts as epistemic.

Predictions at positions of an input (pixels, tokens, labels) have the axes `E` of positions behind
B, so that means, entropies and variances are maps; `observations` makes rows of the positions that
have a target.

Everything is computed once, on demand, in the dtype and on the device of the samples. Variances
over samples divide by S. `M` modes, `L` samples per mode, `S` = M L samples, `B` batch, `E`
axes of positions, `C` classes, `D` outputs.
"""

from __future__ import annotations

from torch import Tensor

from polymode.core.checks import check_call
from polymode.likelihoods.components import Categories, Counts, Densities, Quantiles
from polymode.prediction.base import Prediction
from polymode.prediction.categorical import CategoricalPrediction
from polymode.prediction.counts import CountPrediction
from polymode.prediction.density import DensityPrediction
from polymode.prediction.mapped import MappedPrediction
from polymode.prediction.mixture import MixturePrediction
from polymode.prediction.quantiles import QuantilePrediction

__all__ = [
    "CategoricalPrediction",
    "CountPrediction",
    "DensityPrediction",
    "MappedPrediction",
    "MixturePrediction",
    "Prediction",
    "QuantilePrediction",
    "predict_from",
]


def predict_from(components: Categories | Densities, axes: int = 0) -> Prediction:
    """Return the prediction of S samples from the components that a likelihood derives.

    Args:
        components: (M, L, B, *E, C) or (M, L, B, *E, D), as `by_mode` gives, for L samples of each
            of M modes; or (S, B, *E, C) or (S, B, *E, D), each sample a mode of its own.
        axes: how many axes E of positions there are; `likelihood.num_axes`.
    """
    check_call(predict_from, locals())
    samples = components[0]
    by_mode = samples.dim() > 3 + axes + isinstance(components, Quantiles)
    num_modes = len(samples) if by_mode else None
    joined = [
        part.flatten(0, 1) if by_mode and isinstance(part, Tensor) else part for part in components
    ]
    if isinstance(components, Categories):
        return CategoricalPrediction(*joined, num_modes=num_modes)  # type: ignore[arg-type]
    if isinstance(components, Counts):
        return CountPrediction(*joined, num_modes=num_modes)  # type: ignore[arg-type]
    if isinstance(components, Quantiles):
        return QuantilePrediction(*joined, num_modes=num_modes)  # type: ignore[arg-type]
    return MixturePrediction(*joined, num_modes=num_modes)  # type: ignore[arg-type]
