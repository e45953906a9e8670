"""Predictions of real values: a mixture of S densities, never of averaged parameters."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polymode.core.checks import Count, Seed, check_call, shown
from polymode.core.rng import generator
from polymode.likelihoods import densities
from polymode.likelihoods.components import Components
from polymode.likelihoods.densities import LAPLACE, Shape
from polymode.prediction.base import check_modes, check_samples, first_wrong, spread
from polymode.prediction.density import DensityPrediction, checked_levels, like


class MixturePrediction(DensityPrediction):
    r"""A mixture of S densities of D outputs; within one sample the outputs are independent.

    Moments need enough degrees of freedom: `variance` is inf for df <= 2, and NaN like `mean` for
    df <= 1. Quantiles, intervals, entropies and `log_prob` always exist. Entropies are differential
    (they may be negative, and shift with the units of y) and are computed per output.

    A sample may stand for a Gaussian around one network instead of a network: the share :math:`r_s`
    of its variance :math:`\sigma_s^2` comes from the weights, the remainder is noise. Then

    .. math:: \frac1S\sum_s \sigma_s^2 (1 - r_s) \quad\text{and}\quad
              \mathrm{Var}_s\,\mu_s + \frac1S\sum_s \sigma_s^2 r_s

    are the aleatoric and the epistemic variance. The expected entropy is the entropy of the noise,
    and :math:`\frac1S\sum_s \frac12\log\frac1{1 - r_s}` is added to the mutual information.

    Args:
        loc: (S, B, D) locations, in units of y; at positions of an input (S, B, *E, D), and what is
            (B, ...) otherwise is then (B, *E, ...).
        scale: scales > 0 that broadcast to (S, B, D).
        df: degrees of freedom > 0 of Student-t densities; None for Gaussian ones, "laplace" for
            Laplace ones.
        epistemic: share of scale² that comes from the weights, in [0, 1), broadcasts to (S, B, D);
            None for 0. Gaussian densities only.
        num_modes: M, with S / M samples each, mode by mode; by default each sample is a mode.
    """

    _kind = "mixture"

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        df: Shape = None,
        epistemic: Tensor | float | None = None,
        *,
        num_modes: int | None = None,
    ) -> None:
        check_call(MixturePrediction.__init__, locals(), but=("num_modes",))
        check_samples("loc", loc, at_least=1)
        self.num_modes = check_modes(num_modes, len(loc))
        scale = _expanded("scale", scale, loc)
        if where := first_wrong(loc.isfinite()):
            raise ValueError(f"`loc` must be finite, but is not at {where}. Drop diverged samples.")
        if where := first_wrong((scale > 0) & scale.isfinite()):
            raise ValueError(f"`scale` must be finite and > 0, but is not at {where}.")
        legal = df == LAPLACE if isinstance(df, str) else df is None or 0.0 < df < math.inf
        if not legal:
            raise ValueError(
                f"`df` must be a finite number > 0, None for Gaussian or 'laplace', got {shown(df)}"
            )
        self.loc, self.scale = loc, scale
        self.df = df if df is None or isinstance(df, str) else float(df)
        self.epistemic = None if epistemic is None else self._share(epistemic)

    def _share(self, epistemic: Tensor | float) -> Tensor:
        if self.df is not None:
            raise ValueError(
                "`epistemic` is a share of Gaussian densities; other ones do not add up to one"
                f" with it, got df = {self.df}. Draw samples of the network instead."
            )
        share = _expanded("epistemic", epistemic, self.loc)
        if where := first_wrong((share >= 0) & (share < 1)):
            raise ValueError(f"`epistemic` must be in [0, 1), but is not at {where}.")
        return share

    @property
    def by_mode(self) -> Components:
        """Densities by mode, (M, L, B, D), views."""
        split = (self.num_modes, self.samples_per_mode)
        loc, scale = self.loc.unflatten(0, split), self.scale.unflatten(0, split)
        share = None if self.epistemic is None else self.epistemic.unflatten(0, split)
        return Components(loc, scale, self.df, share)

    @property
    def has_epistemic(self) -> bool:
        """Whether the epistemic part is defined: by two samples, or by an epistemic share."""
        return super().has_epistemic or self.epistemic is not None

    @property
    def sample_means(self) -> Tensor:
        return self.loc * densities.moments(self.df)[0]

    @property
    def sample_variances(self) -> Tensor:
        return self._noise.square() * densities.moments(self.df)[1]

    @cached_property
    def mean(self) -> Tensor:
        return self.loc.mean(0) * densities.moments(self.df)[0]

    @cached_property
    def aleatoric_variance(self) -> Tensor:
        return self._noise.square().mean(0) * densities.moments(self.df)[1]

    @cached_property
    def epistemic_variance(self) -> Tensor:
        between = spread(self.loc) * densities.moments(self.df)[0]
        if self.epistemic is None:
            return between
        return between + (self.scale.square() * self.epistemic).mean(0)

    @cached_property
    def _noise(self) -> Tensor:
        """Scales of the noise without the epistemic share, (S, B, D)."""
        return self.scale if self.epistemic is None else self.scale * (1 - self.epistemic).sqrt()

    @cached_property
    def expected_entropy(self) -> Tensor:
        return self._noise.log().mean(0) + densities.standard_entropy(self.df)

    @cached_property
    def mutual_information(self) -> Tensor:
        """By quadrature, (B, D), to 1e-4 nats, at a cost of S^2 and without gradient."""
        between = densities.mutual_information(self.loc, self.scale, self.df).to(self.loc.dtype)
        if self.epistemic is None:
            return between
        return between - 0.5 * torch.log1p(-self.epistemic).mean(0)

    def sample_log_densities(self, values: Tensor) -> Tensor:
        return densities.log_density(values, self.loc, self.scale, self.df)

    def sample_cdf(self, values: Tensor) -> Tensor:
        return densities.standard_cdf((values - self.loc) / self.scale, self.df)

    def sample(self, num_samples: Count, *, seed: Seed = 0) -> Tensor:
        """Return draws of y, (num_samples, B, *E, D): a component of the mixture, then its noise.

        All outputs of an example in a draw come from the same component, so they depend on one
        another as the mixture says.
        """
        check_call(MixturePrediction.sample, locals())
        random = generator(seed, "prediction", "sample")
        size = (num_samples, len(self), *[1] * (self.num_axes + 1))
        which = torch.randint(self.num_samples, size, generator=random).to(self.loc.device)
        which = which.expand(-1, *self.loc.shape[1:])
        loc, scale = self.loc.gather(0, which), self.scale.gather(0, which)
        return loc + scale * densities.standard_noise(loc.shape, self.df, random).to(loc)

    def quantile(self, q: float | Tensor) -> Tensor:
        """Return the y with cdf(y) = q, (B, D) or (Q, B, D), to 1e-8 of the smallest scale."""
        probs = checked_levels(q)
        args = self.loc, self.scale, self.df
        quantiles = [densities.quantile(prob, *args) for prob in probs.reshape(-1).tolist()]
        return (torch.stack(quantiles) if probs.dim() else quantiles[0]).to(self.loc.dtype)

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> MixturePrediction:
        """Return the prediction of shift + scale * y: each one number or D of them, scale > 0."""
        shift, scale = like(shift, self.loc), like(scale, self.loc)
        if not (scale > 0).all():
            raise ValueError(f"`scale` of rescale must be > 0, got {scale.tolist()}")
        loc, wide = shift + scale * self.loc, scale * self.scale
        return MixturePrediction(loc, wide, self.df, self.epistemic, num_modes=self.num_modes)

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"loc": self.loc, "scale": self.scale}
        if self.epistemic is not None:
            tensors["epistemic"] = self.epistemic
        return tensors, {"kind": self._kind, "df": self.df, "num_modes": self.num_modes}


def _expanded(name: str, values: Tensor | float, loc: Tensor) -> Tensor:
    """Return values expanded to the shape of `loc`, or raise that they do not broadcast."""
    tensor = like(values, loc)
    try:
        return tensor.expand_as(loc)
    except RuntimeError:
        need, got = tuple(loc.shape), tuple(tensor.shape)
        raise ValueError(f"`{name}` must broadcast to shape {need}, got {got}") from None
