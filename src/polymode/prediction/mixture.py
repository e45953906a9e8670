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
from polymode.prediction.base import (
    Prediction,
    check_levels,
    check_modes,
    check_samples,
    first_wrong,
    spread,
)


class MixturePrediction(Prediction):
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
        df: degrees of freedom > 0 of Student-t densities; None for Gaussian ones.
        epistemic: share of scale² that comes from the weights, in [0, 1), broadcasts to (S, B, D);
            None for 0. Gaussian densities only.
        num_modes: M, with S / M samples each, mode by mode; by default each sample is a mode.
    """

    _kind = "mixture"
    _axes = "SBD"
    _summarised = ("aleatoric_variance", "epistemic_variance")

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        df: float | None = None,
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
        if df is not None and not 0.0 < df < math.inf:
            raise ValueError(f"`df` must be a finite number > 0, or None for Gaussian, got {df}")
        self.loc, self.scale, self.df = loc, scale, None if df is None else float(df)
        self.epistemic = None if epistemic is None else self._share(epistemic)

    def _share(self, epistemic: Tensor | float) -> Tensor:
        if self.df is not None:
            raise ValueError(
                "`epistemic` is a share of Gaussian densities; Student-t ones do not add up to one"
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

    @cached_property
    def mean(self) -> Tensor:
        return self.loc.mean(0) * _moments(self.df)[0]

    @cached_property
    def aleatoric_variance(self) -> Tensor:
        return self._noise.square().mean(0) * _moments(self.df)[1]

    @cached_property
    def epistemic_variance(self) -> Tensor:
        between = spread(self.loc) * _moments(self.df)[0]
        if self.epistemic is None:
            return between
        return between + (self.scale.square() * self.epistemic).mean(0)

    @cached_property
    def _noise(self) -> Tensor:
        """Scales of the noise without the epistemic share, (S, B, D)."""
        return self.scale if self.epistemic is None else self.scale * (1 - self.epistemic).sqrt()

    @cached_property
    def predictive_entropy(self) -> Tensor:
        return self.expected_entropy + self.mutual_information

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

    def log_prob(self, targets: Tensor) -> Tensor:
        """Return the joint log-density of targets (B, *E, D), or (B, *E) if D = 1, as (B, *E)."""
        return self.sample_log_probs(targets).logsumexp(0) - math.log(self.num_samples)

    def joint_log_prob(self, targets: Tensor) -> Tensor:
        logs = self.sample_log_probs(targets)
        if self.num_axes:
            logs = logs.nan_to_num(nan=0.0).flatten(2).sum(-1)
        return logs.logsumexp(0) - math.log(self.num_samples)

    def sample_log_probs(self, targets: Tensor) -> Tensor:
        """Return the joint log-density of targets under each sample, (S, B, *E)."""
        values = self._values(targets)
        return densities.log_density(values, self.loc, self.scale, self.df).sum(-1)

    def cdf(self, values: Tensor | float) -> Tensor:
        """Return P(y <= values) of each output, (B, D), for values (B, D) or one number."""
        return densities.cdf(self._values(values), self.loc, self.scale, self.df)

    def density(self, values: Tensor | float) -> Tensor:
        """Return the density of each output, (B, D), at values (B, D) or one number.

        Outputs are taken one by one; `log_prob` is the joint density of all of them.
        """
        return self.log_density(values).exp()

    def log_density(self, values: Tensor | float) -> Tensor:
        """Return the log-density of each output, (B, D), at values (B, D) or one number."""
        logs = densities.log_density(self._values(values), self.loc, self.scale, self.df)
        return logs.logsumexp(0) - math.log(self.num_samples)

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
        probs = check_levels(q)
        args = self.loc, self.scale, self.df
        quantiles = [densities.quantile(prob, *args) for prob in probs.reshape(-1).tolist()]
        return (torch.stack(quantiles) if probs.dim() else quantiles[0]).to(self.loc.dtype)

    def rescale(self, shift: Tensor | float, scale: Tensor | float) -> MixturePrediction:
        """Return the prediction of shift + scale * y: each one number or D of them, scale > 0."""
        shift, scale = _like(shift, self.loc), _like(scale, self.loc)
        if not (scale > 0).all():
            raise ValueError(f"`scale` of rescale must be > 0, got {scale.tolist()}")
        loc, wide = shift + scale * self.loc, scale * self.scale
        return MixturePrediction(loc, wide, self.df, self.epistemic, num_modes=self.num_modes)

    def double(self) -> MixturePrediction:
        """Return the prediction in float64, without gradients."""
        tensors = {key: tensor.double() for key, tensor in self.to_arrays()[0].items()}
        return MixturePrediction(**tensors, df=self.df, num_modes=self.num_modes)

    def _values(self, values: Tensor | float) -> Tensor:
        """Return values as a tensor (B, *E, D), or one number for all inputs."""
        y = _like(values, self.loc)
        if y.dim() == self.loc.dim() - 2 and self.loc.shape[-1] == 1:
            y = y.unsqueeze(-1)
        if y.dim() and y.shape != self.loc.shape[1:]:
            need = tuple(self.loc.shape[1:])
            form = "(B, *E, D)" if self.num_axes else "(B, D)"
            raise ValueError(f"Values must have shape {form} = {need}, got {tuple(y.shape)}.")
        if self.num_axes == 0 and y.isnan().any():
            raise ValueError(f"Values must be numbers, got {int(y.isnan().sum())} NaN.")
        return y

    def _columns(self) -> dict[str, list[str]]:
        parts = {"mean": self.mean, "s.d.": self.std}
        if self.has_epistemic:
            parts["epistemic s.d."] = self.epistemic_variance.sqrt()
        if self.num_axes:
            parts = {f"mean {title}": v.flatten(1, -2).mean(1) for title, v in parts.items()}
        return columns_by_output(parts)

    def _parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {"loc": self.loc, "scale": self.scale}
        if self.epistemic is not None:
            tensors["epistemic"] = self.epistemic
        return tensors, {"kind": self._kind, "df": self.df, "num_modes": self.num_modes}


def _expanded(name: str, values: Tensor | float, loc: Tensor) -> Tensor:
    """Return values expanded to the shape of `loc`, or raise that they do not broadcast."""
    tensor = _like(values, loc)
    try:
        return tensor.expand_as(loc)
    except RuntimeError:
        need, got = tuple(loc.shape), tuple(tensor.shape)
        raise ValueError(f"`{name}` must broadcast to shape {need}, got {got}") from None


def _like(values: Any, tensor: Tensor) -> Tensor:
    """Return `values` with dtype and device of `tensor`; Python numbers are not rounded twice."""
    try:
        return torch.as_tensor(values, dtype=tensor.dtype, device=tensor.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"Values must be numbers, got {shown(values)}") from None


def _moments(df: float | None) -> tuple[float, float]:
    """Return 1 if the mean exists, and the variance at scale 1; NaN and inf where they do not."""
    if df is None:
        return 1.0, 1.0
    if df <= 1.0:
        return math.nan, math.nan
    return 1.0, df / (df - 2.0) if df > 2.0 else math.inf


def columns_by_output(parts: dict[str, Tensor]) -> dict[str, list[str]]:
    """Return the columns of a table, by heading, from values (B, D) of up to three outputs."""
    size = next(iter(parts.values())).shape[-1]
    return {
        title if size == 1 else f"{title}, output {place}": [
            f"{number:.4g}" for number in values[:, place].tolist()
        ]
        for place in range(min(size, 3))
        for title, values in parts.items()
    }
