r"""Predictions: what S posterior samples say about B inputs, kept apart and mixed on demand.

The posterior predictive is the mixture :math:`p(y \mid x) = \frac1S\sum_s p_s(y \mid x)` of the
samples' own predictions: log-probabilities of C classes (`CategoricalPrediction`), or Gaussian or
Student-t densities of D outputs (`MixturePrediction`). Parameters are never averaged: two members
N(-5, 0.1) and N(5, 0.1) predict with a standard deviation of 5.001, not 0.1.

Both tell apart what would remain if the network were known (aleatoric) and what comes from not
knowing it (epistemic), once in nats and once by the law of total variance:

=========  =========================================================  ====================
all        `predictive_entropy`, :math:`H[\frac1S\sum_s p_s]`         `variance`
aleatoric  `expected_entropy`, :math:`\frac1S\sum_s H[p_s]`           `aleatoric_variance`
epistemic  `mutual_information`, their difference, :math:`\ge 0`      `epistemic_variance`
=========  =========================================================  ====================

Everything is computed when first asked for and then kept, in the dtype and on the device of the
samples. Variances over samples divide by S. `S` samples, `B` batch, `C` classes, `D` outputs.
"""

from __future__ import annotations

from torch import Tensor

from polymode.core.components import Categories, Components
from polymode.prediction.base import Prediction
from polymode.prediction.categorical import CategoricalPrediction
from polymode.prediction.mixture import MixturePrediction

__all__ = ["CategoricalPrediction", "MixturePrediction", "Prediction", "predict_from"]


def predict_from(components: Categories | Components) -> Prediction:
    """Return the prediction of S samples from what a likelihood made of their outputs.

    Args:
        components: (S, B, C) or (S, B, D); further leading axes, as in (M, S, B, C), are joined.
    """
    if isinstance(components, Categories):
        log_probs, log_normalizer = components
        if log_normalizer is not None:
            log_normalizer = log_normalizer.flatten(0, -2)
        return CategoricalPrediction(_join_leading(log_probs), log_normalizer)
    loc, scale, df = components
    return MixturePrediction(_join_leading(loc), _join_leading(scale), df)


def _join_leading(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, -3) if tensor.dim() > 3 else tensor
