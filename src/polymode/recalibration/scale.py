r"""Scale: one factor on the width of a predictive density, for regression.

With the predictive mean :math:`m`, the density of :math:`m + k(y - m)` is

.. math:: q(y \mid x) = k^{-D}\, p\!\left(m + \tfrac{y - m}{k} \,\Big|\, x\right),

the mixture with spread and scales both times k: mean, shape, the aleatoric share of the variance
and mutual information stay, every quantile's distance from the mean and the standard deviation are
multiplied by k. A factor on the scales alone could not narrow a mixture whose members lie too far
apart. k minimises the negative log-likelihood of the mixture; for one Gaussian, D = 1, that is
:math:`k^2 = \frac1n\sum_n (y_n - m_n)^2 / \sigma_n^2`.

References: M.-H. Laves, S. Ihler, J. Fast, L. Kahrs, T. Ortmaier, Well-calibrated regression
uncertainty in medical imaging with deep learning, MIDL 2020; D. Levi, L. Gispan, N. Giladi,
E. Fetaya, Evaluating and calibrating uncertainty prediction in regression tasks, Sensors 22 (2022).
`S` samples, `n` examples, `D` outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polymode.likelihoods.densities import has_moment
from polymode.prediction import MixturePrediction
from polymode.recalibration.minimise import Slopes, least


def fit(prediction: MixturePrediction, values: Tensor) -> dict[str, Any]:
    """Return {"factor": k}, k in [0.01, 100], one for all outputs; values (n, D)."""
    exact = prediction.double()
    mean, outputs = _mean(exact).detach(), prediction.loc.shape[-1]

    def slopes(beta: float) -> Slopes:
        with torch.enable_grad():
            width = torch.tensor(beta, dtype=torch.float64, requires_grad=True)
            log_prob = exact.log_prob(mean + width * (values.to(mean) - mean)).mean()
            loss = -log_prob - outputs * width.log()
            (slope,) = torch.autograd.grad(loss, width, create_graph=True)
            (curvature,) = torch.autograd.grad(slope, width)
        return Slopes(loss.item(), slope.item(), curvature.item())

    return {"factor": 1.0 / least(slopes, convex=False)}


def apply(parameters: dict[str, Any], prediction: MixturePrediction) -> MixturePrediction:
    """Return the prediction with its distances from the mean and its scales times k."""
    factor, mean = parameters["factor"], _mean(prediction)
    loc = mean + factor * (prediction.loc - mean)
    return MixturePrediction(
        loc,
        factor * prediction.scale,
        prediction.df,
        prediction.epistemic,
        num_modes=prediction.num_modes,
    )


def _mean(prediction: MixturePrediction) -> Tensor:
    if not has_moment(prediction.df, 1):
        raise ValueError(f"A density with df = {prediction.df} has no mean to scale around.")
    return prediction.mean
