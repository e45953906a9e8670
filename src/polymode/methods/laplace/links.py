r"""From Gaussian logits to class probabilities.

========  =====================================================================================
mc        softmax of L draws of the logits (`Moments.draw`)
probit    :math:`\mathrm{softmax}(\mu_c / \sqrt{1 + \pi v_c / 8})`; with one logit the sigmoid
          (MacKay, Neural Computation 1992)
bridge    the Dirichlet that the Gaussian turns into under the softmax (Hobbhahn et al., UAI 2022):
          :math:`\alpha_c = v_c^{-1} (1 - 2/C + e^{\mu_c} C^{-2} \sum_j e^{-\mu_j})`, its mean
========  =====================================================================================

The bridge's Gaussian sums to zero over the classes: μ and Σ are first conditioned on that sum. Its
mean follows the variances of the classes relative to each other; of two classes these are equal, so
that the mean knows nothing of them.

Shapes: `M` modes, `B` batch, `C` classes or one logit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.likelihoods.components import Moments

LINKS = ("mc", "probit", "bridge")


def probit(moments: Moments) -> Tensor:
    """Return logits (M, B, C) whose softmax, or sigmoid, is the probit approximation."""
    return moments.loc * (1 + math.pi / 8 * moments.variance).rsqrt()


def bridge(moments: Moments) -> Tensor:
    """Return log-probabilities (M, B, C), the mean of the bridge's Dirichlet."""
    mean, spread = moments.loc, moments.spread
    if spread.dim() == mean.dim():
        spread = spread.diag_embed()
    total = spread.sum((-2, -1)).unsqueeze(-1)
    rows = spread.sum(-1)
    mean = mean - rows * mean.sum(-1, keepdim=True) / total
    variance = spread.diagonal(dim1=-2, dim2=-1) - rows.square() / total
    classes = mean.shape[-1]
    product = mean + torch.logsumexp(-mean, -1, keepdim=True)  # logarithm of e^μ Σ e^−μ
    alpha = (1 - 2 / classes + product.exp() / classes**2) / variance
    return alpha.log() - alpha.sum(-1, keepdim=True).log()
