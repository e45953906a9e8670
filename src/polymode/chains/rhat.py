r"""R-hat: the spread over all chains compared with that within them; 1 where they have mixed.

With chains of L draws, W the mean of their variances and B/L the variance of their means,

.. math:: \hat R = \sqrt{\frac{\frac{L-1}{L} W + \frac1L B}{W}}.

`rhat` splits each chain in two halves, so that a trend shows, and takes the larger of two values:
of the draws' ranks as normal scores, and of the ranks of their distances from the median, which see
chains that differ in spread alone. Above 1.01 chains are not taken as mixed. `nested_rhat` is for
many short chains: it compares groups of chains, each with a mean less noisy than that of one.

References: A. Vehtari, A. Gelman, D. Simpson, B. Carpenter, P.-C. Bürkner, Rank-normalization,
folding, and localization, Bayesian Analysis 16, 2021. C. Margossian, M. Hoffman, P. Sountsov,
L. Riou-Durand, A. Vehtari, A. Gelman, Nested R-hat, Bayesian Analysis 2024.

Shapes: draws (L, M, ...): `L` draws of `M` chains of any number of quantities.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, Range, check_call

Draws = Annotated[OnlyTensor, Range("and shape (L, M, ...)", lambda draws: draws.dim() > 1)]
FEWEST = 4  # draws of a chain: its halves need a variance


def rhat(draws: OnlyTensor) -> Tensor:
    """Return the rank-normalised split R-hat of each quantity, (...), in float64.

    NaN where all draws are the same, infinite where chains stay at different values. Two chains at
    least: one has nothing to differ from but itself.
    """
    check_call(rhat, locals())
    check(draws)
    halves = split(draws.double())
    bulk = _plain(rank_normalised(halves))
    folded = (halves - quantile(halves, 0.5)).abs()
    # fmax: distances that are all alike have no R-hat, and leave that of the draws as it is
    return torch.fmax(bulk, _plain(rank_normalised(folded)))


def check(draws: Tensor, chains: int = 2) -> None:
    """Refuse draws that are too few, with the numbers."""
    if draws.dim() < 2:
        raise ValueError(
            f"draws must be (L, M, ...), L draws of M chains, got {tuple(draws.shape)}; of one"
            " chain draws[:, None]"
        )
    length, number = draws.shape[:2]
    if number < chains:
        raise ValueError(
            f"R-hat compares chains, and there is {number}: fit with num_modes >= 4, each chain"
            " from its own initialisation"
        )
    if length < FEWEST:
        raise ValueError(
            f"R-hat and ESS need at least {FEWEST} draws per chain, got {length}: keep more"
            " samples_per_mode"
        )


def split(draws: Draws) -> Tensor:
    """Return both halves of each chain as chains of their own, (L // 2, 2 M, ...); the middle draw
    of an odd number is left out."""
    check_call(split, locals())
    half = len(draws) // 2
    return torch.cat([draws[:half], draws[-half:]], 1)


def quantile(draws: Tensor, level: float) -> Tensor:
    """Return the quantile over all chains, (...), by linear interpolation; any number of draws."""
    ordered = draws.flatten(0, 1).sort(0).values
    place = level * (len(ordered) - 1)
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], place - low)


def rank_normalised(draws: Draws) -> Tensor:
    r"""Return normal scores of the ranks among all draws of a quantity,
    :math:`\Phi^{-1}((r - 3/8) / (S + 1/4))`; equal draws share the mean of their ranks."""
    check_call(rank_normalised, locals())
    from scipy.stats import rankdata

    flat = draws.flatten(0, 1)
    ranks = torch.as_tensor(rankdata(flat.double().cpu().numpy(), axis=0))
    scores = torch.special.ndtri((ranks - 0.375) / (len(flat) + 0.25))
    return scores.reshape(draws.shape)


def _plain(draws: Tensor) -> Tensor:
    """R-hat as it was first defined, of chains as they are."""
    length = len(draws)
    within = draws.var(0).mean(0)
    between = draws.mean(0).var(0)
    return ((length - 1) / length + between / within).sqrt()


def nested_rhat(draws: Draws, superchains: int) -> Tensor:
    r"""Return the nested R-hat of each quantity, (...), in float64.

    .. math:: \sqrt{1 + B / W},\quad B = \mathrm{Var}_k\,\bar x_k,\quad
              W = \frac1K \sum_k (\mathrm{Var}_m\,\bar x_{km} + \frac1m \sum_m \mathrm{Var}_l\,
              x_{kml}).

    Args:
        draws: (L, M, ...); L = 1 is allowed where a superchain has two chains or more.
        superchains: K ≥ 2, a divisor of M; consecutive chains are one superchain. The theory has
            the chains of one begin at the same point; where all begin elsewhere, groups differ less
            and the value is nearer to 1.
    """
    check_call(nested_rhat, locals())
    length, chains = draws.shape[:2]
    if superchains < 2 or chains % superchains:
        raise ValueError(
            f"`superchains` must divide the {chains} chains into at least 2 groups, got"
            f" {superchains}"
        )
    per_group = chains // superchains
    if length == 1 and per_group == 1:
        raise ValueError("nested R-hat of one draw per chain needs two chains per superchain")
    grouped = draws.double().unflatten(1, (superchains, per_group))
    means = grouped.mean(0)  # (K, m, ...)
    within = grouped.var(0).mean(1) if length > 1 else torch.zeros_like(means[:, 0])
    if per_group > 1:
        within = within + means.var(1)
    between = means.mean(1).var(0)
    return (1 + between / within.mean(0)).sqrt()
