r"""Effective sample size: how many independent draws have the same error.

With :math:`\hat\rho_t` the autocorrelation at lag t over all chains, in which differences between
the chains count as correlation,

.. math:: ESS = \frac{M L}{\hat\tau},\quad \hat\tau = -1 + 2 \sum_k \hat P_k,\quad
          \hat P_k = \hat\rho_{2k} + \hat\rho_{2k+1},

the sum over the first pairs that are positive, made monotone (Geyer's initial sequence). `ess_bulk`
is that of rank-normalised draws, for means and the like; `ess_tail` the smaller of those of the 5 %
and the 95 % quantile. Both on split chains. Below 100 per chain, R-hat and the numbers here are not
to be trusted.

References: A. Vehtari et al., Bayesian Analysis 16, 2021. C. Geyer, Practical Markov chain Monte
Carlo, Statistical Science 7, 1992.

Shapes: draws (L, M, ...): `L` draws of `M` chains of any number of quantities.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.chains.autocorrelation import autocovariance
from polymode.chains.rhat import check, quantile, rank_normalised, split
from polymode.core.checks import OnlyTensor, check_call

TAILS = (0.05, 0.95)


def ess_bulk(draws: OnlyTensor) -> Tensor:
    """Return the bulk ESS of each quantity, (...); NaN where draws never change."""
    check_call(ess_bulk, locals())
    check(draws, chains=1)
    return ess_of(rank_normalised(split(draws.double())))


def ess_tail(draws: OnlyTensor) -> Tensor:
    """Return the tail ESS of each quantity, (...); NaN where draws never change."""
    check_call(ess_tail, locals())
    check(draws, chains=1)
    draws = draws.double()
    sizes = []
    for level in TAILS:
        below = split((draws <= quantile(draws, level)).double())
        sizes.append(ess_of(below).nan_to_num(nan=below.shape[0] * below.shape[1]))
    moves = draws.amax((0, 1)) > draws.amin((0, 1))
    return torch.minimum(*sizes).where(moves, torch.nan)


def ess_mean(draws: OnlyTensor) -> Tensor:
    """Return the ESS of each quantity's mean, on split chains: its standard error is √(Var/ESS)."""
    check_call(ess_mean, locals())
    check(draws, chains=1)
    return ess_of(split(draws.double()))


def ess_of(draws: Tensor) -> Tensor:
    """Return the ESS of draws (L, M, ...) as they are, (...); at most M L log10(M L)."""
    length, chains = draws.shape[:2]
    covariance = autocovariance(draws)
    within = covariance[0].mean(0) * length / (length - 1)
    total = within * (length - 1) / length
    if chains > 1:
        total = total + draws.mean(0).var(0)
    rho = 1 - (within - covariance.mean(1)) / total  # (L, ...)
    rho[0] = 1.0
    number = max((length - 1) // 2, 1)  # pairs that are looked at
    pairs = rho[: 2 * number].unflatten(0, (-1, 2)).sum(1) if length > 2 else rho[:1]
    good = torch.cumprod((pairs > 0).long(), 0)
    good[-1] = 0  # the last one counts by its first half, like the first that is not positive
    monotone = torch.cummin(pairs, 0).values
    end = good.sum(0, keepdim=True)
    last = torch.gather(rho[: 2 * number : 2], 0, end).squeeze(0).clamp_min(0.0)
    tau = -1 + 2 * (good * monotone).sum(0) + last
    size = chains * length
    tau = tau.clamp_min(1 / math.log10(size))
    return torch.where(total > 0, size / tau, torch.nan)
