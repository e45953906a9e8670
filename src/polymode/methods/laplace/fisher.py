r"""Roots of a likelihood's curvature with respect to the outputs, as cotangents.

.. math:: \Lambda_n = E_{y \sim p(y \mid f_n)}[\nabla \log p \, \nabla \log p^\top]
          = \sum_r v_{rn} v_{rn}^\top

==========  ======================================================================================
exact       the Fisher information in closed form, R = K: √p_r (e_r − p) of classes, e_r / σ of
            Gaussian values; with softmax and with Gaussian noise this is the GGN
mc          R = `mc_samples` gradients at targets drawn from the prediction, unbiased
empirical   R = 1, the gradient at the target itself: not an approximation of the Fisher information
            (Kunstner et al., NeurIPS 2019), for comparison
==========  ======================================================================================

Shapes: `R` cotangents, `B` batch, `K` outputs, `D` targets.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from polymode.likelihoods.base import Params
from polymode.likelihoods.components import Categories
from polymode.likelihoods.kinds import HeteroscedasticGaussian, Likelihood

FISHERS = ("exact", "mc", "empirical")


def roots(
    likelihood: Likelihood,
    outputs: Tensor,
    targets: Tensor,
    params: Params,
    *,
    fisher: str = "exact",
    mc_samples: int = 1,
    stream: torch.Generator | None = None,
) -> Tensor:
    """Return the cotangents (R, B, K) of one network's outputs (B, K).

    Args:
        targets: as `likelihood.check` returns them; used by "empirical" alone.
        params: the likelihood's own parameters of this network.
        stream: what "mc" draws targets from.
    """
    outputs = outputs.detach()
    if fisher == "exact":
        return _exact(likelihood, outputs, params)
    if fisher == "empirical":
        return _gradient(likelihood, outputs, targets, params)[None]
    assert stream is not None
    drawn = [_drawn(likelihood, outputs, params, stream) for _ in range(mc_samples)]
    gradients = [_gradient(likelihood, outputs, y, params) for y in drawn]
    return torch.stack(gradients) / math.sqrt(mc_samples)


def _exact(likelihood: Likelihood, outputs: Tensor, params: Params) -> Tensor:
    made = likelihood.components(outputs, params)
    if isinstance(made, Categories):
        probs = made.log_probs.exp()
        if outputs.shape[-1] == 1:  # one logit for two classes
            return probs.prod(-1, keepdim=True).sqrt()[None]
        unit = torch.eye(probs.shape[-1]).to(probs)
        return (unit[:, None] - probs) * probs.sqrt().mT.unsqueeze(-1)
    scale = made.scale
    if isinstance(likelihood, HeteroscedasticGaussian):
        slope = F.logsigmoid(outputs.chunk(2, -1)[1]).exp()  # of softplus
        each = torch.cat([1 / scale, math.sqrt(2.0) * slope / scale], -1)
    else:
        df = made.df
        each = 1 / scale if df is None else math.sqrt((df + 1) / (df + 3)) / scale
    return each.mT.unsqueeze(-1) * torch.eye(outputs.shape[-1]).to(outputs)[:, None]


def _gradient(likelihood: Likelihood, outputs: Tensor, targets: Tensor, params: Params) -> Tensor:
    """Return the gradient of log p of each example with respect to its outputs, (B, K)."""
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        total = likelihood.log_prob(leaf, targets, params).sum()
    return torch.autograd.grad(total, leaf)[0]


def _drawn(
    likelihood: Likelihood, outputs: Tensor, params: Params, stream: torch.Generator
) -> Tensor:
    """Return targets drawn from the prediction."""
    made = likelihood.components(outputs, params)
    if isinstance(made, Categories):
        probs = made.log_probs.double().cpu().exp()
        return torch.multinomial(probs, 1, generator=stream)[:, 0].to(outputs.device)
    noise = torch.randn(made.loc.shape, generator=stream, dtype=torch.float64)
    if made.df is not None:  # a Student-t is a Gaussian over the root of a chi-square
        half = torch.full(made.loc.shape, made.df / 2, dtype=torch.float64)
        noise = noise * (half / torch._standard_gamma(half, generator=stream)).sqrt()
    return made.loc + made.scale * noise.to(made.loc)
