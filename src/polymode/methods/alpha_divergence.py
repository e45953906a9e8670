"""The α-divergence loss of K noisy passes, for methods and for training loops of one's own.

    l_α = −(1/α) Σ_n log (1/K) Σ_k p(y_n | f_k(x_n))^α,        α > 0
    l_0 = −(1/K) Σ_k Σ_n log p(y_n | f_k(x_n)),                its limit

f_k is the network under the k-th noise. α = 0 is variational inference, 0.5 the Hellinger value,
1 the log predictive likelihood of each point (expectation propagation). The papers leave out the
constant (N/α) log K; it is kept here: without it the loss depends on K and does not tend to l_0.
For K = 1 the loss does not depend on α. The estimate is biased: E[log of a mean] is below the log
of the expectation, and the gap shrinks as 1/K.

For regression, log p has its normalising constant with the noise precision τ in it. Equation 10 of
the paper prints + (N D/2) log τ in an objective that is minimised; with that sign a learned τ runs
to 0. The Gaussian log-likelihood gives − (N D/2) log τ, whatever α is.

Reference: Y. Li, Y. Gal, Dropout inference in Bayesian neural networks with alpha-divergences, ICML
    2017, equations 8 to 10.

Shapes: `K` passes, `N` examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, check_call, is_number, shown

_LEAST = 1e-30  # below, α times a difference may underflow; the loss is that of 0 to 1e-30


def alpha_loss(log_likelihoods_KN: OnlyTensor, alpha: float) -> Tensor:
    """Return the loss per example, the mean over N, in nats.

    Args:
        log_likelihoods_KN: log p(y_n | f_k(x_n)), (..., K, N); one row for each pass.
        alpha: ≥ 0.

    Returns:
        the loss, (...). It is infinite, with gradients that are not numbers, where all K
        likelihoods of an example are 0.

    For a loop of one's own, with a network in training mode and x (B, D)::

        outputs = net(x.repeat(K, 1)).unflatten(0, (K, -1))             # masks of their own
        log_likelihoods = -F.cross_entropy(outputs.flatten(0, 1), y.repeat(K), reduction="none")
        loss = alpha_loss(log_likelihoods.unflatten(0, (K, -1)), alpha=0.5)

    >>> two_passes = torch.tensor([[-1.0, -0.5], [-3.0, -0.5]])
    >>> [round(alpha_loss(two_passes, alpha).item(), 4) for alpha in (0.0, 1e-6, 0.5, 1.0)]
    [1.25, 1.25, 1.1299, 1.0331]
    """
    check_alpha("alpha_loss", alpha)
    check_call(alpha_loss, locals())
    if log_likelihoods_KN.dim() < 2 or log_likelihoods_KN.shape[-2] < 1:
        raise ValueError(
            "`log_likelihoods_KN` of alpha_loss must be (..., K, N) with K ≥ 1 passes, got"
            f" {tuple(log_likelihoods_KN.shape)}"
        )
    if alpha < _LEAST:
        return -log_likelihoods_KN.mean((-2, -1))
    # log (1/K) Σ exp(α l) = α m + log(1 + (1/K) Σ (exp(α (l − m)) − 1)), exact also for small α
    most = log_likelihoods_KN.detach().amax(-2, keepdim=True)
    most = most.masked_fill(most.isinf(), 0.0)
    below = torch.expm1(alpha * (log_likelihoods_KN - most)).mean(-2)
    return -(most.squeeze(-2) + torch.log1p(below) / alpha).mean(-1)


def check_alpha(who: str, alpha: float) -> None:
    """Refuse what is not a finite number of at least 0."""
    if not is_number(alpha) or alpha < 0:
        raise ValueError(f"`alpha` of {who} must be finite and ≥ 0, got {shown(alpha)}")
