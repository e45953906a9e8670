r"""Fine histograms: ranks and quantiles of millions of pixels in bounded memory.

A number >= 0 goes into the bin of its float32 bits without the lower ones: 512 bins for each factor
of two from 2⁻⁴⁰ to 2⁸, so that a bin is 0.2 % wide; zero and all below share the first one. The
order of pixels is known but for those in one bin, which count as tied. So a rank statistic is that
of scores rounded to 0.2 %, and `auroc_slack` bounds what the rounding may have changed.

`K` bins, `R` histograms at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

_KEPT_BITS = 9  # of the 23 of a float32's fraction
_LOWEST, _HIGHEST = -40, 8  # powers of two
_DROPPED = 23 - _KEPT_BITS
_FIRST = (_LOWEST + 127) << _KEPT_BITS
NUM_BINS = ((_HIGHEST - _LOWEST) << _KEPT_BITS) + 1


def bins_of(values: Tensor) -> Tensor:
    """Return the bin of each number >= 0, int64, rising with the number."""
    bits = values.to(torch.float32).view(torch.int32) >> _DROPPED
    return (bits - (_FIRST - 1)).clamp_(0, NUM_BINS - 1).long()


def edges() -> Tensor:
    """Return the lower edges of the bins, (K,) float64; the first is 0."""
    bits = (torch.arange(NUM_BINS, dtype=torch.int32) + (_FIRST - 1)) << _DROPPED
    lower = bits.view(torch.float32).double()
    lower[0] = 0.0
    return lower


def histogram(values: Tensor, positive: Tensor) -> Tensor:
    """Return how many numbers lie in each bin, (K, 2): those that are not positive, those that are.

    Args:
        values: (n,) >= 0. positive: (n,) bool.
    """
    cells = bins_of(values).mul_(2).add_(positive)
    return torch.bincount(cells, minlength=2 * NUM_BINS).view(NUM_BINS, 2)


def auroc(counts: Tensor) -> Tensor:
    """Return the probability that a positive is above another, ties half, from (R, K, 2): (R,).

    NaN where one of the two kinds is missing.
    """
    negatives, positives = counts.unbind(-1)
    below = negatives.cumsum(-1) - 0.5 * negatives
    return (positives * below).sum(-1) / (positives.sum(-1) * negatives.sum(-1))


def auroc_slack(counts: Tensor) -> Tensor:
    """Return by how much the order within bins can change `auroc`, at most, (R,)."""
    negatives, positives = counts.unbind(-1)
    return 0.5 * (positives * negatives).sum(-1) / (positives.sum(-1) * negatives.sum(-1))


def aurc(counts: Tensor) -> Tensor:
    r"""Return the area under the risk-coverage curve of pixels in rising order of bins, (R,).

    `counts` (R, K, 2) are right and wrong pixels. As in `selective`: the risk of the first k is the
    expectation over orders of the tied. Within a bin of n pixels, e of them wrong, after k₀ pixels
    with e₀ wrong, it is the integral of :math:`(e_0 + e t / n) / (k_0 + t)` over t from 0 to n,
    which replaces the sum over n ranks: exact to O(1 / pixels).
    """
    right, wrong = counts.unbind(-1)
    size = right + wrong
    ends, errors = size.cumsum(-1), wrong.cumsum(-1)
    starts, before = ends - size, errors - wrong
    slope = wrong / size.clamp(min=1)
    # (before + slope t) / (starts + t) = slope + (before - slope starts) / (starts + t)
    growth = torch.where(starts > 0, torch.log(ends.clamp(min=1) / starts.clamp(min=1)), 0.0)
    area = slope * size + (before - slope * starts) * growth
    return area.sum(-1) / ends[..., -1]


def best_aurc(counts: Tensor) -> Tensor:
    """Return the area of the best order, all wrong pixels last: e + (1 - e) log(1 - e), (R,)."""
    error = counts[..., 1].sum(-1) / counts.sum((-1, -2))
    rest = 1 - error
    return error + torch.special.xlogy(rest, rest)


def mass_bins(counts: Tensor, num_bins: int) -> Tensor:
    """Return to which of `num_bins` bins of equal mass each fine bin belongs, (R, K).

    As `calibration` has it for equal numbers: the rank of the first pixel decides, counted from the
    highest number down, since these are 1 - confidence. A fine bin is never divided.
    """
    size = counts.sum(-1)
    earlier = size.flip(-1).cumsum(-1).flip(-1) - size
    return (earlier * num_bins / size.sum(-1, keepdim=True)).floor().long().clamp(0, num_bins - 1)
