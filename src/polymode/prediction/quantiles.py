r"""Predictions of quantiles: mixtures of S distributions that are interpolated between them.

Between the quantiles :math:`q_1 < \dots < q_Q` of the levels :math:`\tau_k` a sample's distribution
function is linear. Beyond the outermost ones lie exponential tails,

.. math:: F(y) = \tau_1 e^{(y - q_1)/a}, \quad a = \tau_1 \frac{q_2 - q_1}{\tau_2 - \tau_1},
          \qquad y < q_1,

and alike above :math:`q_Q`: as dense at the outermost quantile as next to it. So there is a
density, with moments and an entropy in closed form. It is that of the interpolation: quantiles
alone have none. `S` samples, `B` batch, `D` outputs, `Q` levels, `N` elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import Count, Seed, check_call
from polymode.core.rng import generator
from polymode.likelihoods.components import Quantiles
from polymode.likelihoods.densities import find_root
from polymode.prediction.base import check_modes, check_samples, first_wrong
from polymode.prediction.density import DensityPrediction, checked_levels, like

_CHUNK = 2**19  # densities computed at a time, 4 MB
_TAIL_NODES = (0.25, 0.6, 1.0, 1.6, 2.4, 3.5, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0)  # in scales
_POINTS = ((-(0.6**0.5), 5 / 9), (0.0, 8 / 9), (0.6**0.5, 5 / 9))  # Gauss-Legendre, weights


class QuantilePrediction(DensityPrediction):
    """A mixture of S interpolated distributions of D outputs, independent within one sample.

    Args:
        values: (S, B, D, Q) quantiles, increasing over the last axis; or (S, B, *E, D, Q).
        levels: Q >= 2 increasing numbers in (0, 1).
        num_modes: M, with S / M samples each, mode by mode; by default each sample is a mode.
    """

    _kind = "quantiles"

    def __init__(
        self, values: Tensor, levels: Sequence[float], *, num_modes: int | None = None
    ) -> None:
        check_call(QuantilePrediction.__init__, locals(), but=("num_modes", "levels"))
        self.levels = tuple(map(float, levels))
        rising = all(a < b for a, b in zip((0.0, *self.levels), (*self.levels, 1.0), strict=True))
        if len(self.levels) < 2 or not rising:
            raise ValueError(
                f"`levels` must be at least two increasing numbers in (0, 1), got {levels}"
            )
        check_samples("values", values, at_least=2)
        if values.dim() < 4 or values.shape[-1] != len(self.levels):
            raise ValueError(
                f"`values` must have axes (S, B, D, Q) with Q = {len(self.levels)} levels, got"
                f" {tuple(values.shape)}"
            )
        self.num_modes = check_modes(num_modes, len(values))
        legal = values.isfinite().all(-1) & (values.diff(dim=-1) > 0).all(-1)
        if where := first_wrong(legal):
            raise ValueError(f"`values` must be finite and increase, but do not at {where}.")
        self.values = values

    @property
    def _shape(self) -> torch.Size:
        return self.values.shape[:-1]

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        """The middle one of the quantiles, (S, B, D)."""
        return self.values[..., len(self.levels) // 2]

    @property
    def by_mode(self) -> Quantiles:
        """Quantiles by mode, (M, L, B, D, Q), views."""
        split = (self.num_modes, self.samples_per_mode)
        return Quantiles(self.values.unflatten(0, split), self.levels)

    @property
    def _tau(self) -> Tensor:
        return torch.tensor(self.levels, dtype=self.values.dtype, device=self.values.device)

    @property
    def _tails(self) -> tuple[Tensor, Tensor]:
        """Scales of the lower and the upper tail, (S, B, *E, D)."""
        tau, gaps = self._tau, self.values.diff(dim=-1)
        slopes = gaps / tau.diff()
        return slopes[..., 0] * tau[0], slopes[..., -1] * (1.0 - tau[-1])

    @cached_property
    def sample_means(self) -> Tensor:  # type: ignore[override]
        return self._moment(1)

    @cached_property
    def sample_variances(self) -> Tensor:  # type: ignore[override]
        return self._moment(2)

    def _moment(self, order: int) -> Tensor:
        """Return the mean of each sample, or its variance."""
        tau, (a, b) = self._tau, self._tails
        q = self.values if order == 1 else self.values - self.sample_means.unsqueeze(-1)
        first, last, mass = q[..., 0], q[..., -1], tau.diff()
        left, right = q[..., :-1], q[..., 1:]
        if order == 1:
            pieces, below, above = (left + right) / 2, first - a, last + b
        else:
            pieces = (left.square() + left * right + right.square()) / 3
            below, above = (first - a).square() + a.square(), (last + b).square() + b.square()
        return (mass * pieces).sum(-1) + tau[0] * below + (1.0 - tau[-1]) * above

    def sample_log_densities(self, values: Tensor) -> Tensor:
        y = values.expand(self._shape[1:]).expand(self._shape)
        tau, (a, b) = self._tau, self._tails
        inside = (tau.diff() / self.values.diff(dim=-1)).log()
        place = self._place(y)
        logs = inside.gather(-1, (place - 1).clamp(0, len(tau) - 2).unsqueeze(-1)).squeeze(-1)
        below = inside[..., 0] + (y - self.values[..., 0]) / a
        above = inside[..., -1] - (y - self.values[..., -1]) / b
        return torch.where(place == 0, below, torch.where(place == len(tau), above, logs))

    def sample_cdf(self, values: Tensor) -> Tensor:
        y = values.expand(self._shape[1:]).expand(self._shape)
        tau, (a, b) = self._tau, self._tails
        place = self._place(y)
        k = (place - 1).clamp(0, len(tau) - 2).unsqueeze(-1)
        left, gap = (t.gather(-1, k).squeeze(-1) for t in (self.values, self.values.diff(dim=-1)))
        k = k.squeeze(-1)
        line = tau[k] + (tau[k + 1] - tau[k]) * (y - left) / gap
        below = tau[0] * ((y - self.values[..., 0]) / a).clamp(max=0.0).exp()
        above = 1.0 - (1.0 - tau[-1]) * (-(y - self.values[..., -1]) / b).clamp(max=0.0).exp()
        return torch.where(place == 0, below, torch.where(place == len(tau), above, line))

    def _place(self, y: Tensor) -> Tensor:
        """Return how many quantiles are at most y, (S, B, *E, D); NaN counts as above all."""
        return (~(self.values > y.unsqueeze(-1))).sum(-1)

    def _inverse(self, probs: Tensor) -> Tensor:
        """Return the quantile of each sample at probabilities that broadcast to (S, B, *E, D)."""
        tau, (a, b) = self._tau, self._tails
        u = probs.to(self.values).expand(self._shape)
        k = (torch.searchsorted(tau, u.contiguous(), right=True) - 1).clamp(0, len(tau) - 2)
        left, gap = (
            t.gather(-1, k.unsqueeze(-1)).squeeze(-1)
            for t in (self.values, self.values.diff(dim=-1))
        )
        line = left + gap * (u - tau[k]) / (tau[k + 1] - tau[k])
        below = self.values[..., 0] + a * (u / tau[0]).log()
        above = self.values[..., -1] - b * ((1.0 - u) / (1.0 - tau[-1])).log()
        return torch.where(u < tau[0], below, torch.where(u > tau[-1], above, line))

    @cached_property
    def expected_entropy(self) -> Tensor:
        tau = self._tau
        inside = (tau.diff() / self.values.diff(dim=-1)).log()
        tails = tau[0] * (1.0 - inside[..., 0]) + (1.0 - tau[-1]) * (1.0 - inside[..., -1])
        return (tails - (tau.diff() * inside).sum(-1)).mean(0)

    @cached_property
    def mutual_information(self) -> Tensor:
        """By quadrature, (B, D), to about 1e-5 nats, at a cost of S² and without gradient."""
        parts = []
        for some, points, weights in self._cells():
            logs = some.sample_log_densities(points)
            mixture = logs.logsumexp(0) - math.log(len(logs))
            gains = (logs.exp() * (logs - mixture)).mean(0)
            parts.append((gains * weights).sum(0))
        total = torch.cat(parts).clamp(0.0, math.log(self.num_samples))
        return total.view(self._shape[1:]).to(self.values.dtype)

    def crps(self, targets: Tensor, fair: bool = False) -> Tensor:
        """Return the CRPS of targets (B, D), float64 (B, D), to about 1e-6 of its value.

        Args:
            fair: that of infinitely many such samples, on average; see `metrics.crps.fair_crps`.
        """
        parts, start = [], 0
        values = targets.flatten().double()
        for some, points, weights in self._cells(values):
            y = values[start : start + points.shape[1]]
            each = some.sample_cdf(points)
            below = each.mean(0)
            terms = torch.where(points < y, below, 1.0 - below).square()
            if fair:
                terms = terms - each.var(0, correction=1) / len(each)
            parts.append((terms * weights).sum(0))
            start += len(y)
        return torch.cat(parts).view(targets.shape)

    @torch.no_grad()
    def _cells(
        self, include: Tensor | None = None
    ) -> Iterator[tuple[QuantilePrediction, Tensor, Tensor]]:
        """Yield a few elements as (S, G, n, Q) with the nodes and weights (G, n) of a quadrature.

        The line is cut at the quantiles of all samples, in their tails and at `include` (N,).
        """
        wide = self.values.detach().double().flatten(1, -2)
        nodes = torch.tensor(_TAIL_NODES, dtype=torch.float64, device=wide.device)
        per_sample = wide.shape[-1] + 2 * len(nodes)
        rows = max(1, _CHUNK // (3 * len(wide) ** 2 * per_sample))
        for start in range(0, wide.shape[1], rows):
            part = QuantilePrediction(wide[:, start : start + rows].unsqueeze(1), self.levels)
            a, b = (tail.unsqueeze(-1) * nodes for tail in part._tails)
            cuts = torch.cat([part.values[..., :1] - a, part.values, part.values[..., -1:] + b], -1)
            edges = cuts.squeeze(1).movedim(-1, 0).flatten(0, 1)  # (cuts, n)
            if include is not None:
                edges = torch.cat([edges, include[None, start : start + rows]])
            edges = edges.sort(0).values
            half = 0.5 * edges.diff(dim=0)
            points = torch.cat([edges[:-1] + half * (1.0 + x) for x, _ in _POINTS])
            weights = torch.cat([half * weight for _, weight in _POINTS])
            many = part.values.expand(-1, len(points), -1, -1)
            yield QuantilePrediction(many, self.levels), points, weights

    @torch.no_grad()
    def quantile(self, q: float | Tensor) -> Tensor:
        probs = checked_levels(q)
        wide = QuantilePrediction(self.values.detach().double(), self.levels)
        quantiles = [wide._quantile(prob) for prob in probs.reshape(-1)]
        return (torch.stack(quantiles) if probs.dim() else quantiles[0]).to(self.values.dtype)

    def _quantile(self, prob: Tensor) -> Tensor:
        each = self._inverse(prob)
        if self.num_samples == 1:
            return each[0]
        low, high = each.amin(0), each.amax(0)
        least = self.values.diff(dim=-1).amin((0, -1))
        return find_root(lambda y: self.sample_cdf(y).mean(0) - prob, low, high, 1e-9 * least)

    def sample(self, num_samples: Count, *, seed: Seed = 0) -> Tensor:
        """Return draws of y, (num_samples, B, *E, D): a sample of the mixture, then its y.

        All outputs of an example in a draw come from the same sample.
        """
        check_call(QuantilePrediction.sample, locals())
        random = generator(seed, "prediction", "sample")
        size = (num_samples, len(self), *[1] * (self.num_axes + 2))
        which = torch.randint(self.num_samples, size, generator=random).to(self.values.device)
        chosen = self.values.gather(0, which.expand(-1, *self.values.shape[1:]))
        u = torch.rand(chosen.shape[:-1], generator=random, dtype=torch.float64)
        return QuantilePrediction(chosen, self.levels)._inverse(u.to(chosen.device))

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> QuantilePrediction:
        shift, scale = (like(t, self.values) for t in (shift, scale))
        if not (scale > 0).all():
            raise ValueError(f"`scale` of rescale must be > 0, got {scale.tolist()}")
        shift, scale = (t.unsqueeze(-1) if t.dim() else t for t in (shift, scale))
        return QuantilePrediction(
            shift + scale * self.values, self.levels, num_modes=self.num_modes
        )

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        metadata = {"kind": self._kind, "levels": [*self.levels], "num_modes": self.num_modes}
        return {"values": self.values}, metadata
