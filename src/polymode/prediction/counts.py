r"""Predictions of counts: mixtures of S Poisson or negative binomial laws.

With the means :math:`\mu_s` and the dispersions :math:`r_s`, a sample has the variance
:math:`\mu_s + \mu_s^2/r_s`, or :math:`\mu_s` if it is Poisson. Entropies, the mutual information
and the CRPS are sums over counts, exact where all samples together reach over at most 4,096 of
them; beyond that, blocks of equal length are represented by their middle, which costs about
:math:`h^2/24\sigma^2` of the value for blocks of length h, more where a law begins steeply at 0.
`S` samples, `B` batch, `D` outputs, `N` elements, that is examples times outputs, `G` counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import Count, Seed, check_call
from polymode.core.rng import generator
from polymode.likelihoods.components import Counts
from polymode.prediction.base import check_modes, check_samples, first_wrong
from polymode.prediction.density import DensityPrediction, checked_levels

_GRID = 4096  # counts, or blocks of counts, that a sum runs over
_TAIL = 1e-12  # probability beyond the counts that a sum runs over
_CHUNK = 2**20  # probabilities computed at a time, 8 MB


class CountPrediction(DensityPrediction):
    r"""A mixture of S laws of D counts; within one sample the outputs are independent.

    `density` is the probability of a count, `quantile` the smallest count whose distribution
    function is at least q, so a central interval covers at least its level. `pit` is randomised,
    :math:`F(y - 1) + u\,p(y)` with the same uniform u at each call: uniform for a right prediction,
    which the distribution function of a count is not.

    Args:
        rate: (S, B, D) means > 0; at positions (S, B, *E, D).
        dispersion: r > 0 of negative binomial laws, broadcasts to (S, B, D); None for Poisson ones.
        num_modes: M, with S / M samples each, mode by mode; by default each sample is a mode.

    Reference: C. Czado, T. Gneiting, L. Held, Predictive model assessment for count data,
    Biometrics 65 (2009).
    """

    _kind = "counts"

    def __init__(
        self, rate: Tensor, dispersion: Tensor | float | None = None, *,
        num_modes: int | None = None,
    ) -> None:  # fmt: skip
        check_call(CountPrediction.__init__, locals(), but=("num_modes",))
        check_samples("rate", rate, at_least=1)
        self.num_modes = check_modes(num_modes, len(rate))
        if dispersion is not None:
            dispersion = torch.as_tensor(dispersion, dtype=rate.dtype, device=rate.device)
            dispersion = dispersion.expand_as(rate)
        for name, tensor in (("rate", rate), ("dispersion", dispersion)):
            if tensor is not None and (where := first_wrong((tensor > 0) & tensor.isfinite())):
                raise ValueError(
                    f"`{name}` must be finite and > 0, but is not at {where}; an infinite rate is a"
                    " diverged sample"
                )
        self.rate, self.dispersion = rate, dispersion

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        return self.rate

    @property
    def by_mode(self) -> Counts:
        """Laws by mode, (M, L, B, D), views."""
        split = (self.num_modes, self.samples_per_mode)
        r = None if self.dispersion is None else self.dispersion.unflatten(0, split)
        return Counts(self.rate.unflatten(0, split), r)

    @property
    def sample_means(self) -> Tensor:
        return self.rate

    @property
    def sample_variances(self) -> Tensor:
        if self.dispersion is None:
            return self.rate
        return self.rate + self.rate.square() / self.dispersion

    def sample_log_densities(self, values: Tensor) -> Tensor:
        legal = (values >= 0) & (values == values.round())
        logs = log_probability(values.where(legal, 0.0), self.rate, self.dispersion)
        return logs.where(legal | values.isnan(), -math.inf)

    def sample_cdf(self, values: Tensor) -> Tensor:
        return _below(values.floor(), self.rate, self.dispersion).to(self.rate.dtype)

    def pit(self, values: Tensor) -> Tensor:
        y = self._values(values)
        stream = generator(0, "prediction", "pit")
        u = torch.rand(y.shape, generator=stream, dtype=torch.float64).to(y)
        return self.cdf(y - 1.0) + u * self.density(y)

    @cached_property
    def expected_entropy(self) -> Tensor:
        return self._entropies[0]

    @cached_property
    def mutual_information(self) -> Tensor:
        """By summation, (B, D), without gradient, in [0, log S]."""
        return self._entropies[1]

    @cached_property
    def _entropies(self) -> tuple[Tensor, Tensor]:
        parts = []
        for rate, r, grid, weight, _ in self._sums():
            logs = log_probability(grid, rate, r)
            mixture = logs.logsumexp(0) - math.log(len(logs))
            probs = logs.exp() * weight
            entropy = -(probs * logs).sum(-1).mean(0)
            information = (probs * (logs - mixture)).sum(-1).mean(0)
            parts.append(torch.stack([entropy, information.clamp(0.0, math.log(len(logs)))]))
        both = torch.cat(parts, -1).view(2, *self.rate.shape[1:])
        entropy, information = both.to(self.rate.dtype)
        return entropy, information

    def crps(self, targets: Tensor, fair: bool = False) -> Tensor:
        """Return the CRPS of counts (B, D), float64 (B, D).

        Args:
            fair: that of infinitely many such samples, on average; see `metrics.crps.fair_crps`.
        """
        parts = []
        for rate, r, grid, weight, places in self._sums(targets):
            y = targets.flatten().double()[places].unsqueeze(-1)
            each = _below(grid, rate, r)
            below = each.mean(0)
            first = grid - 0.5 * (weight - 1.0)
            share = ((y - first) / weight).clamp(0.0, 1.0)  # of a block's counts, those below y
            terms = share * below.square() + (1.0 - share) * (1.0 - below).square()
            if fair:
                terms = terms - each.var(0, correction=1) / len(each)
            parts.append((terms * weight).sum(-1))
        return torch.cat(parts).view(targets.shape)

    def sample(self, num_samples: Count, *, seed: Seed = 0) -> Tensor:
        """Return draws of y, (num_samples, B, *E, D): a component of the mixture, then its count.

        All outputs of an example in a draw come from the same component.
        """
        check_call(CountPrediction.sample, locals())
        random = generator(seed, "prediction", "sample")
        size = (num_samples, len(self), *[1] * (self.num_axes + 1))
        which = torch.randint(self.num_samples, size, generator=random)
        which = which.expand(-1, *self.rate.shape[1:])
        return drawn_counts(self.by_index(which), random).to(self.rate)

    def by_index(self, which: Tensor) -> Counts:
        """Return the laws of samples by number, on the processor."""
        rate = self.rate.cpu().gather(0, which)
        r = None if self.dispersion is None else self.dispersion.cpu().gather(0, which)
        return Counts(rate, r)

    @torch.no_grad()
    def quantile(self, q: float | Tensor) -> Tensor:
        probs = checked_levels(q)
        quantiles = [self._quantile(prob) for prob in probs.reshape(-1).tolist()]
        return (torch.stack(quantiles) if probs.dim() else quantiles[0]).to(self.rate.dtype)

    def _quantile(self, prob: float) -> Tensor:
        """Return the smallest count with F >= prob, float64 (B, *E, D), by bisection."""
        rate, r = _wide(self.rate), _wide(self.dispersion)
        target = prob - 1e-12  # F is a sum of rounded numbers
        low = torch.full_like(rate[0], -1.0)
        high = rate.amax(0).ceil() + 1.0
        while (short := _below(high, rate, r).mean(0) < target).any():
            high = torch.where(short, 2.0 * high, high)
        while (high - low > 1).any():
            middle = ((low + high) / 2).floor()
            enough = _below(middle, rate, r).mean(0) >= target
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> CountPrediction:
        """Raise: a count in another unit is no count."""
        raise ValueError("Counts have no unit to change: shift and scale are for real values.")

    @torch.no_grad()
    def _sums(
        self, include: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]]:
        """Yield laws (S, n, 1), counts (n, G) and how many each stands for, and the elements.

        Args:
            include: counts (B, D) that the sums must reach.
        """
        rate, r = (_wide(t) for t in (self.rate, self.dispersion))
        assert rate is not None
        rate, r = rate.flatten(1), None if r is None else r.flatten(1)
        low, high = _reach(rate, r)
        if include is not None:
            y = include.flatten().double().to(low.device)
            low, high = torch.minimum(low, y), torch.maximum(high, y)
        order = (high - low).argsort()
        width = (high - low)[order] + 1
        start = 0
        while start < len(order):
            stop = start + 1
            most = max(1, _CHUNK // (len(rate) * min(_GRID, int(width[start]))))
            stop = min(len(order), start + most)
            while stop - start > 1 and width[stop - 1] > 2 * width[start] + 16:
                stop = (start + stop + 1) // 2  # elements of like reach share a grid
            places = order[start:stop]
            span = width[stop - 1].item()
            block = math.ceil(span / _GRID)
            steps = torch.arange(math.ceil(span / block), dtype=torch.float64, device=low.device)
            grid = low[places].unsqueeze(-1) + steps * block + (block - 1) / 2
            some = None if r is None else r[:, places].unsqueeze(-1)
            yield (
                rate[:, places].unsqueeze(-1), some, grid,
                torch.full_like(steps, float(block)), places,
            )  # fmt: skip
            start = stop

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"rate": self.rate}
        if self.dispersion is not None:
            tensors["dispersion"] = self.dispersion
        return tensors, {"kind": self._kind, "num_modes": self.num_modes}


def log_probability(counts: Tensor, rate: Tensor, dispersion: Tensor | None) -> Tensor:
    """Return the log-probability of counts >= 0, elementwise; the arguments broadcast."""
    if dispersion is None:
        return torch.xlogy(counts, rate) - rate - torch.lgamma(counts + 1.0)
    y, mu, r = counts.double(), rate.double(), dispersion.double()
    ways = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1.0)
    logs = ways - r * torch.log1p(mu / r) - y * torch.log1p(r / mu)
    return logs.to(rate.dtype)


def drawn_counts(laws: Counts, random: torch.Generator) -> Tensor:
    """Return one draw from each law, float64 on the processor."""
    rate = laws.rate.double().cpu()
    if laws.dispersion is not None:  # a Poisson count of a Gamma mean
        r = laws.dispersion.double().cpu()
        rate = torch._standard_gamma(r.contiguous(), generator=random) * rate / r
    return torch.poisson(rate, generator=random)


def _wide(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().double()


def _below(counts: Tensor, rate: Tensor, dispersion: Tensor | None) -> Tensor:
    """Return P(Y <= counts) for whole numbers >= -1, float64; the arguments broadcast."""
    from scipy.special import betainc, gammaincc

    k, mu = (t.detach().double().cpu().numpy() for t in (counts, rate))
    if dispersion is None:
        values = gammaincc(np.maximum(k, 0) + 1.0, mu)
    else:
        r = dispersion.detach().double().cpu().numpy()
        values = betainc(r, np.maximum(k, 0) + 1.0, r / (r + mu))
    return torch.as_tensor(np.where(k < 0, 0.0, values)).to(rate.device)


def _reach(rate: Tensor, dispersion: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return counts (N,) between which all samples have all but `_TAIL` of their probability."""
    from scipy.special import nbdtrik, pdtrik

    mu = rate.cpu().numpy()
    if dispersion is None:
        ends = [pdtrik(level, mu) for level in (_TAIL, 1.0 - _TAIL)]
    else:
        r = dispersion.cpu().numpy()
        ends = [nbdtrik(level, r, r / (r + mu)) for level in (_TAIL, 1.0 - _TAIL)]
    low, high = (np.nan_to_num(end, nan=0.0) for end in ends)
    low, high = np.floor(low.min(0)), np.ceil(high.max(0)) + 1
    return tuple(torch.as_tensor(np.maximum(end, 0.0)).to(rate.device) for end in (low, high))  # type: ignore[return-value]
