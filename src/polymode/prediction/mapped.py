r"""Predictions of real values whose distribution functions were recalibrated by increasing maps.

With the distribution function :math:`F_d` of output d under the mixture and a piecewise linear,
strictly increasing :math:`g_d` from 0 to 1 with the corners :math:`(x_k, h_k)`, the prediction has

.. math:: F'_d = g_d \circ F_d, \qquad p'_d(y) = g_d'(F_d(y))\,p_d(y), \qquad
          F_d'^{-1}(q) = F_d^{-1}(g_d^{-1}(q)).

Jointly, each output is moved by :math:`F_d'^{-1} \circ F_d`, which keeps the dependence between
outputs. A map belongs to the whole mixture and not to its samples: what is left of the uncertainty
counts as aleatoric, and there are no parts by mode. The mean and the CRPS are exact; variance and
entropy are integrals over the levels by Gauss-Legendre quadrature within each piece.
At positions of an input all is computed of rows, one for each position.
`S` samples, `B` batch, `D` outputs, `K` corners, `P` nodes of a quadrature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import Count, Seed, check_call
from polymode.likelihoods import densities
from polymode.likelihoods.components import Categories, Densities
from polymode.likelihoods.densities import Shape
from polymode.prediction.base import Prediction
from polymode.prediction.density import checked_levels, columns_by_output
from polymode.prediction.mixture import MixturePrediction

_CHUNK = 2**21  # densities evaluated at a time, 16 MB
_FEW = 64  # even cuts of the levels; corners up to which a piece has eight nodes, beyond it two
_LEAST = 1e-300  # level of a quantile
_TAIL_CUTS = 15  # cuts of the first and the last piece, each at a quarter of the one before

Corners = tuple[Sequence[float], Sequence[float]]


class MappedPrediction(Prediction):
    """A mixture of densities with a recalibrated distribution function; see the module.

    Args:
        loc, scale, df, epistemic, num_modes: of the mixture, as of `MixturePrediction`.
        maps: corners of each output's map: D pairs of lists (levels, heights), both strictly
            increasing from 0 to 1.
    """

    _kind = "mapped"
    _axes = "SBD"
    _summarised = ()

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        df: Shape = None,
        epistemic: Tensor | float | None = None,
        *,
        maps: Sequence[Corners],
        num_modes: int | None = None,
    ) -> None:
        self.base = MixturePrediction(loc, scale, df, epistemic, num_modes=num_modes)
        self.num_modes, self.df = self.base.num_modes, self.base.df
        self.maps = [([*map(float, levels)], [*map(float, heights)]) for levels, heights in maps]
        if len(self.maps) != self.base.num_outputs:
            raise ValueError(
                f"`maps` must have one pair per output, {self.base.num_outputs}, got {len(maps)}"
            )
        for levels, heights in self.maps:
            _check_corners(levels, heights)

    @classmethod
    def of(cls, mixture: MixturePrediction, maps: Sequence[Corners]) -> MappedPrediction:
        """Return the mixture with its distribution functions mapped."""
        return cls(
            mixture.loc,
            mixture.scale,
            mixture.df,
            mixture.epistemic,
            maps=maps,
            num_modes=mixture.num_modes,
        )

    @property
    def by_mode(self) -> Categories | Densities:
        raise ValueError("The map of a recalibrated prediction belongs to the whole mixture.")

    @property
    def has_epistemic(self) -> bool:
        """False: the map does not tell the two kinds of uncertainty apart."""
        return False

    def cdf(self, values: Tensor | float) -> Tensor:
        """Return P(y <= values) of each output, (B, D), for values (B, D) or one number."""
        if self.num_axes:
            return self._by_rows("cdf", values)
        return self._apply(self._exact.cdf(values)).to(self.base.loc.dtype)

    def pit(self, values: Tensor) -> Tensor:
        """Return numbers that are uniform in [0, 1] if the prediction is right, (B, D)."""
        return self.cdf(values)

    def density(self, values: Tensor | float) -> Tensor:
        """Return the density of each output, (B, D), at values (B, D) or one number."""
        if self.num_axes:
            return self._by_rows("density", values)
        below = self._exact.cdf(values)
        return (self._slope(below) * self._exact.density(values)).to(self.base.loc.dtype)

    def quantile(self, q: float | Tensor) -> Tensor:
        """Return the y with cdf(y) = q, (B, D) or (Q, B, D)."""
        if self.num_axes:
            return self._by_rows("quantile", q)
        probs = checked_levels(q)
        levels = self._invert(probs.reshape(-1, 1, 1).expand(-1, 1, self.num_outputs))
        values = self._base_quantile(levels)
        return (values if probs.dim() else values[0]).to(self.base.loc.dtype)

    def sample(self, num_samples: Count, *, seed: Seed = 0) -> Tensor:
        """Return draws of y, (num_samples, B, D): draws of the mixture, moved output by output."""
        check_call(MappedPrediction.sample, locals())
        if self.num_axes:
            return self.as_rows().sample(num_samples, seed=seed).unflatten(1, self._shape[1:-1])
        draws, exact = self._exact.sample(num_samples, seed=seed), self._exact
        loc, scale = exact.loc.unsqueeze(1), exact.scale.unsqueeze(1)
        levels = self._invert(densities.cdf(draws, loc, scale, self.df))
        return self._base_quantile(levels).to(self.base.loc.dtype)

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the joint log-density of targets (B, D), or (B,) if D = 1, as (B,)."""
        if self.num_axes:
            return self._by_rows("log_prob", targets)
        exact = self._exact
        values = exact._values(targets)
        below = exact.cdf(values)
        moved = self._slope(below).log()
        if self.num_outputs == 1:
            return (moved.sum(-1) + exact.log_prob(values)).to(self.base.loc.dtype)
        start = self._base_quantile(self._apply(below).unsqueeze(0))[0]
        jacobian = moved + exact.log_density(values) - exact.log_density(start)
        return (exact.log_prob(start) + jacobian.sum(-1)).to(self.base.loc.dtype)

    @cached_property
    def mean(self) -> Tensor:
        if self.num_axes:
            return self._by_rows("mean")
        columns = [self._per_column(self._mean_of, d) for d in range(self.num_outputs)]
        return torch.stack(columns, -1).to(self.base.loc.dtype)

    @property
    def aleatoric_variance(self) -> Tensor:
        return self._integrals[0]

    @property
    def epistemic_variance(self) -> Tensor:
        return torch.zeros_like(self._integrals[0])

    @property
    def predictive_entropy(self) -> Tensor:
        return self._integrals[1]

    @property
    def expected_entropy(self) -> Tensor:
        return self._integrals[1]

    @property
    def mutual_information(self) -> Tensor:
        return torch.zeros_like(self._integrals[1])

    def crps(self, values: Tensor) -> Tensor:
        r"""Return the CRPS of each output at values (B, D), (B, D) float64.

        :math:`E|X - y| - E[X (2 F'(X) - 1)]`; the first part is exact, the second by quadrature.
        """
        if self.num_axes:
            return self._by_rows("crps", values)
        y, below = self._exact._values(values), self.cdf(values).double()
        columns = []
        for d in range(self.num_outputs):
            until = self._per_column(self._mean_of, d, y[:, d])
            columns.append(y[:, d] * (2.0 * below[:, d] - 1.0) - 2.0 * until)
        return torch.stack(columns, -1) + self.mean.double() - self._integrals[2]

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> MappedPrediction:
        """Return the prediction of shift + scale * y: each one number or D of them, scale > 0."""
        return MappedPrediction.of(self.base.rescale(shift, scale), self.maps)

    def double(self) -> MappedPrediction:
        """Return the prediction in float64, without gradients."""
        return MappedPrediction.of(self._exact, self.maps)

    def _by_rows(self, name: str, values: Any = None) -> Tensor:
        """Return what rows of all positions have or answer, at their positions.

        Args:
            name: of an attribute, or of a method of `values`: one number, several levels, or
                targets, which may be NaN where there are none.
        """
        rows, sizes = self.as_rows(), self._shape[1:-1]
        if values is None:
            return getattr(rows, name).unflatten(0, sizes)  # type: ignore[no-any-return]
        queries = torch.as_tensor(values)
        if queries.dim() <= 1:
            answer = getattr(rows, name)(values)
            return answer.unflatten(-2, sizes)  # type: ignore[no-any-return]
        flat = self._exact._values(queries).flatten(0, self.num_axes)
        answer = getattr(rows, name)(flat.nan_to_num())
        absent = flat.isnan().any(-1) if answer.dim() == 1 else flat.isnan()
        return answer.masked_fill(absent, torch.nan).unflatten(0, sizes)  # type: ignore[no-any-return]

    def take_modes(self, modes: slice | Sequence[int]) -> Prediction:
        """Refused: recalibrate a prediction of these modes instead."""
        raise ValueError(
            "The map of a recalibrated prediction belongs to the whole mixture; take modes first,"
            " then recalibrate."
        )

    @cached_property
    def _exact(self) -> MixturePrediction:
        return self.base.double()

    @cached_property
    def _curves(self) -> list[tuple[Tensor, Tensor]]:
        device = self.base.loc.device
        return [
            (
                torch.tensor(levels, dtype=torch.float64, device=device),
                torch.tensor(heights, dtype=torch.float64, device=device),
            )
            for levels, heights in self.maps
        ]

    def _apply(self, levels: Tensor) -> Tensor:
        """Return g of (..., D) levels."""
        parts = [_line(levels[..., d], *curve) for d, curve in enumerate(self._curves)]
        return torch.stack(parts, -1)

    def _invert(self, heights: Tensor) -> Tensor:
        """Return the levels at which g has (..., D) heights."""
        heights = heights.to(self.base.loc.device)
        parts = [_line(heights[..., d], h, x) for d, (x, h) in enumerate(self._curves)]
        return torch.stack(parts, -1)

    def _slope(self, levels: Tensor) -> Tensor:
        """Return g' of (..., D) levels."""
        parts = []
        for d, (x, h) in enumerate(self._curves):
            parts.append((h.diff() / x.diff())[_piece(levels[..., d], x)])
        return torch.stack(parts, -1)

    def _base_quantile(self, levels: Tensor) -> Tensor:
        """Return the quantiles of the mixture at levels (P, B or 1, D), as (P, B, D)."""
        loc, scale = self._exact.loc.unsqueeze(1), self._exact.scale.unsqueeze(1)
        size = max(1, _CHUNK // max(1, self._exact.loc.numel()))
        levels = levels.clamp(_LEAST, 1.0 - 2.0**-53)  # where the quantiles are finite
        parts = [densities.quantile(part, loc, scale, self.df) for part in levels.split(size)]
        return torch.cat(parts)

    def _per_column(self, function: Callable[..., Tensor], d: int, *more: Tensor) -> Tensor:
        """Return a function of output d for parts of the batch that fit into the cache."""
        x, h = self._curves[d]
        loc, scale = self._exact.loc[..., d], self._exact.scale[..., d]
        rows = max(1, _CHUNK // (len(x) * len(loc)))
        columns = [loc.split(rows, 1), scale.split(rows, 1), *(m.split(rows) for m in more)]
        split = zip(*columns, strict=True)
        return torch.cat([function(x, h, *part) for part in split])

    def _mean_of(
        self, x: Tensor, h: Tensor, loc: Tensor, scale: Tensor, until: Tensor | None = None
    ) -> Tensor:
        """Return the mean of the mapped distribution below `until`, (b,), from (S, b)."""
        if not densities.has_moment(self.df, 1):
            return torch.full_like(loc[0], torch.nan)
        loc, scale = loc.unsqueeze(1), scale.unsqueeze(1)
        edges = densities.quantile(x[1:-1, None], loc, scale, self.df)
        ends = torch.full_like(loc[0], torch.inf)
        edges = torch.cat([-ends, edges, ends])
        if until is not None:
            edges = edges.minimum(until)
        sums = densities.partial_mean(edges, loc, scale, self.df).diff(dim=0)
        return ((h.diff() / x.diff())[:, None] * sums).sum(0)

    @cached_property
    def _integrals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Variance, entropy and half of Gini's mean difference, (B, D)."""
        if self.num_axes:
            rows, sizes = self.as_rows(), self._shape[1:-1]
            assert isinstance(rows, MappedPrediction)
            variance, entropy, gini = (part.unflatten(0, sizes) for part in rows._integrals)
            return variance, entropy, gini
        parts = [self._per_column(self._integrals_of, d) for d in range(self.num_outputs)]
        values = torch.stack(parts, -1).unbind(1)
        variance, entropy, gini = values
        if not densities.has_moment(self.df, 2):
            variance = torch.full_like(variance, torch.inf)
        dtype = self.base.loc.dtype
        return variance.to(dtype), entropy.to(dtype), gini

    def _integrals_of(self, x: Tensor, h: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Return the three integrals of one output, (b, 3)."""
        nodes, weights = _nodes(x, h)
        slopes = (h.diff() / x.diff())[_piece(nodes, x)]
        heights = _line(nodes, x, h)
        size = max(1, _CHUNK // max(1, loc.numel()))
        sums = loc.new_zeros(4, loc.shape[1])
        for at, weight, slope, height in zip(
            *(t[:, None].split(size) for t in (nodes, weights, slopes, heights)), strict=True
        ):
            values = densities.quantile(at, loc.unsqueeze(1), scale.unsqueeze(1), self.df)
            logs = densities.log_density(values, loc.unsqueeze(1), scale.unsqueeze(1), self.df)
            log_density = logs.logsumexp(0) - np.log(len(loc)) + slope.log()
            terms = (values, values.square(), -log_density, values * (2.0 * height - 1.0))
            sums += torch.stack([(weight * term).sum(0) for term in terms])
        mean, square, entropy, gini = sums
        return torch.stack([square - mean.square(), entropy, gini], -1)

    def _columns(self) -> dict[str, list[str]]:
        parts = {"mean": self.mean, "5 %": self.quantile(0.05), "95 %": self.quantile(0.95)}
        if self.num_axes:
            parts = {f"mean {title}": v.flatten(1, -2).mean(1) for title, v in parts.items()}
        return columns_by_output(parts)

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, metadata = self.base._parts()
        return tensors, {**metadata, "kind": self._kind, "maps": self.maps}


def _check_corners(levels: Sequence[float], heights: Sequence[float]) -> None:
    for name, corners in (("levels", levels), ("heights", heights)):
        rising = all(a < b for a, b in zip(corners, corners[1:], strict=False))
        if len(corners) < 2 or corners[0] != 0.0 or corners[-1] != 1.0 or not rising:
            raise ValueError(f"{name} of a map must rise strictly from 0 to 1, got {corners[:5]}")
    if len(levels) != len(heights):
        raise ValueError(f"a map has {len(levels)} levels and {len(heights)} heights")


def _piece(levels: Tensor, x: Tensor) -> Tensor:
    """Return the number of the piece in which each level lies."""
    return (torch.bucketize(levels.contiguous(), x, right=True) - 1).clamp(0, len(x) - 2)


def _line(levels: Tensor, x: Tensor, h: Tensor) -> Tensor:
    """Return the piecewise linear function through the corners."""
    k = _piece(levels, x)
    return h[k] + (levels - x[k]) / (x[k + 1] - x[k]) * (h[k + 1] - h[k])


def _nodes(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return levels and their weights under g: pieces of at most 1/64, fine towards 0 and 1."""
    cuts = 0.25 ** torch.arange(_TAIL_CUTS, 0, -1, dtype=torch.float64, device=x.device)
    tail = 1.0 - (1.0 - x[-2]) * cuts.flip(0)
    even = torch.linspace(0.0, 1.0, _FEW + 1, dtype=torch.float64, device=x.device)
    edges = torch.cat([x[:1], x[1] * cuts, x[1:-1], tail, x[-1:], even]).unique()
    per_piece = 8 if len(x) <= _FEW else 2
    places, shares = (torch.as_tensor(t).to(x) for t in np.polynomial.legendre.leggauss(per_piece))
    half = 0.5 * edges.diff()
    nodes = (edges[:-1, None] + half[:, None] * (1.0 + places)).flatten()
    weights = (half[:, None] * shares).flatten()
    return nodes, weights * (h.diff() / x.diff())[_piece(nodes, x)]
