r"""The divergence of a mean-field Gaussian from its prior, in closed form or by quadrature.

    gaussian   KL = Σ ½ [λ (μ² + σ²) − 1 − log λσ²]
    mixture    KL = −Σ [½ log 2πeσ² + E_q log(π N(w; 0, 1/λ) + (1 − π) N(w; 0, r²/λ))]

The sum is over all weights; libraries that average it over layers have a weight of the KL that
depends on the architecture. The expectation under a scale mixture (Blundell et al.) is that of the
log of its wide part, in closed form, and of

    log(1 + ρ exp(−w²/2v)),    ρ = (1 − π)/(π r),    1/v = λ (1/r² − 1),

an integral in one dimension for each weight: Gauss-Legendre quadrature where both the bump and q
are above 0, good to 1e-4 nats for narrow and for wide q.

Shapes: `M` modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_TAIL, _FADED = 5.5, 12.0  # standard deviations of q, and nats, beyond which nothing is left


def kl_divergence(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    prior_precision: float,
    mixture: tuple[float, float] | None = None,
) -> Tensor:
    """Return the divergence of every member, (M,) nats, differentiable.

    Args:
        means, log_stds: μ and log σ, (M, ...) each.
        prior_precision: λ, > 0. mixture: (π, r) of a scale mixture, or None.
    """
    total = means[0].new_zeros(len(means[0]))
    for mean, log_std in zip(means, log_stds, strict=True):
        number = mean[0].numel()  # 1 for a parameter without axes, of which `flatten` makes no rows
        mean, log_std = (tensor.reshape(len(tensor), number) for tensor in (mean, log_std))
        std, entropies = log_std.exp(), log_std.sum(1)  # up to a constant
        if mixture is None:
            squares = (torch.linalg.vector_norm(tensor, dim=1).square() for tensor in (mean, std))
            cost = 0.5 * prior_precision * sum(squares)
            constant = -0.5 * number * (1 + math.log(prior_precision))
        else:
            cost = -_expected_log_mixture(mean, std, prior_precision, *mixture).sum(1)
            constant = -0.5 * number * math.log(2 * math.pi * math.e)
        total = total + cost - entropies + constant
    return total


def entropy(log_stds: Sequence[Tensor]) -> Tensor:
    """Return H(q) = Σ ½ log 2πeσ² of every member, (M,) nats, differentiable."""
    total = log_stds[0].new_zeros(len(log_stds[0]))
    for log_std in log_stds:
        number = log_std[0].numel()
        total = (
            total
            + log_std.reshape(len(log_std), -1).sum(1)
            + 0.5 * number * math.log(2 * math.pi * math.e)
        )
    return total


@torch.no_grad()
def add_kl_gradient(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    prior_precision: float,
    strength: float,
    temperature: float = 1.0,
) -> None:
    """Add `strength` times the gradient of the Gaussian prior's KL + (1 − T) H to `.grad`."""
    slopes = [mean.grad for mean in means if mean.grad is not None]
    torch._foreach_add_(slopes, list(means), alpha=strength * prior_precision)
    slopes = [log_std.grad for log_std in log_stds if log_std.grad is not None]
    squares = torch._foreach_exp(torch._foreach_mul(list(log_stds), 2.0))
    torch._foreach_add_(slopes, squares, alpha=strength * prior_precision)
    torch._foreach_sub_(slopes, strength * temperature)


def _expected_log_mixture(
    mean: Tensor, std: Tensor, prior_precision: float, share: float, ratio: float
) -> Tensor:
    """Return E log(π N(w; 0, 1/λ) + (1 − π) N(w; 0, r²/λ)) under w ~ N(mean, std²)."""
    height = math.log((1 - share) / (share * ratio))
    variance = 1 / (prior_precision * (1 / ratio**2 - 1))
    reach = math.sqrt(2 * variance * (max(height, 0.0) + _FADED))
    with torch.no_grad():  # limits of z = (w − mean) / std, within which both factors count
        low, high = (((end - mean) / std).clamp_(-_TAIL, _TAIL) for end in (-reach, reach))
        middle, half = (low + high) / 2, (high - low) / 2
    bump = torch.zeros_like(mean)
    for point, weight in zip(_POINTS.tolist(), _WEIGHTS.tolist(), strict=True):
        z = middle + half * point
        density = torch.exp(-0.5 * z.square()).mul_(half).mul_(weight / math.sqrt(2 * math.pi))
        bump = bump + density * F.softplus(height - (mean + std * z).square() / (2 * variance))
    wide = math.log(share) + 0.5 * math.log(prior_precision / (2 * math.pi))
    return wide - 0.5 * prior_precision * (mean.square() + std.square()) + bump
