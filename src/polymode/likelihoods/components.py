"""What a network's outputs are, what a likelihood makes of them, and a prediction is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.likelihoods.densities import Shape


class Categories(NamedTuple):
    """Predicted class log-probabilities, (..., B, C), normalised over the last axis.

    `log_normalizer` (..., B) is what was subtracted from the network's outputs, where it gave C.
    """

    log_probs: Tensor
    log_normalizer: Tensor | None = None


class Components(NamedTuple):
    """Predicted densities by location and scale, (..., B, D).

    Gaussian where `df` is None, Student-t where it is a number, Laplace where it is "laplace".

    `epistemic` (..., B, D) is the share of scale² that comes from the weights, in [0, 1); the rest
    is noise. None stands for 0: each density is that of a known network.
    """

    loc: Tensor
    scale: Tensor
    df: Shape
    epistemic: Tensor | None = None


class Counts(NamedTuple):
    """Predicted counts, (..., B, D): Poisson, or negative binomial where `dispersion` is given.

    Attributes:
        rate: means μ > 0. dispersion: r > 0, the variance is μ + μ²/r; None is Poisson.
    """

    rate: Tensor
    dispersion: Tensor | None = None

    @property
    def loc(self) -> Tensor:
        """The means."""
        return self.rate


class Quantiles(NamedTuple):
    """Predicted quantiles.

    Attributes:
        values: (..., B, D, Q) increasing over the last axis. levels: Q increasing, in (0, 1).
    """

    values: Tensor
    levels: tuple[float, ...]

    @property
    def loc(self) -> Tensor:
        """The middle one of the quantiles."""
        return self.values[..., len(self.levels) // 2]


Densities = Components | Counts | Quantiles


class Moments(NamedTuple):
    """Gaussian outputs of M modes: means, and what not knowing the weights adds around them.

    Attributes:
        loc: (M, B, K) means.
        spread: (M, B, K) variances of outputs that are independent, or (M, B, K, K) covariances.
            Zero, and semi-definite matrices, are allowed: what is known has no spread.
    """

    loc: Tensor
    spread: Tensor

    @property
    def variance(self) -> Tensor:
        """Variance of each output by itself, (M, B, K), all >= 0."""
        variance = self.spread.diagonal(dim1=-2, dim2=-1) if self._full else self.spread
        if not (variance >= 0).all():
            raise ValueError(
                f"`spread` must hold variances >= 0, got {variance.min().item():.4g} as the least;"
                " nan if the weights diverged"
            )
        return variance

    def draw(self, samples_per_mode: int, seeds: Sequence[int]) -> Tensor:
        r"""Return L samples of the outputs of each mode, (M, L, B, K).

        .. math:: f_{ml}(x) = \mu_m(x) + R_m(x)\,\epsilon_{ml}, \quad
                  R R^\top = \Sigma, \quad \epsilon_{ml} \sim N(0, I_K)

        The noise is the same at all inputs, so a sample is a function of x, and what it says about
        an input does not depend on the batch. Sample l of mode m is a function of (seeds[m], l)
        alone. R is the lower triangular root, which has a column of zeros where an output is known
        given those before it.

        Args:
            samples_per_mode: L, at least 1.
            seeds: the seed of a stream for each of the M modes.
        """
        modes, _, outputs = self.loc.shape
        if not isinstance(samples_per_mode, int) or samples_per_mode < 1:
            raise ValueError(
                f"`samples_per_mode` must be an integer of at least 1, got {samples_per_mode!r}"
            )
        if len(seeds) != modes:
            raise ValueError(f"`seeds` must have one seed per mode, {modes}, got {len(seeds)}")
        noise = torch.stack(
            [
                torch.randn(outputs, generator=generator(seed, number), dtype=torch.float64)
                for seed in seeds
                for number in range(samples_per_mode)  # each its own stream: L does not matter
            ]
        )
        noise = noise.view(modes, samples_per_mode, outputs).to(self.loc)
        if self._full:
            deviations = torch.einsum("mbij,mlj->mlbi", _triangular_root(self.spread), noise)
        else:
            deviations = _root(self.variance).unsqueeze(1) * noise.unsqueeze(2)
        return self.loc.unsqueeze(1) + deviations

    @property
    def _full(self) -> bool:
        """Whether the spread has covariances; checks its shape."""
        shape = self.loc.shape
        if self.spread.shape not in (shape, (*shape, shape[-1])):
            raise ValueError(
                f"`spread` must have the shape of `loc`, {tuple(shape)}, or one more axis for"
                f" covariances, {(*shape, shape[-1])}; got {tuple(self.spread.shape)}"
            )
        return self.spread.dim() > self.loc.dim()


def _root(variance: Tensor) -> Tensor:
    """Return the root of variances >= 0; where they are 0 its gradient is 0, not infinite."""
    positive = variance > 0
    return variance.where(positive, 1.0).sqrt() * positive


def _triangular_root(covariance: Tensor) -> Tensor:
    """Return the lower triangular R with R Rᵀ = covariance, (..., K, K), also semi-definite."""
    root, failed = torch.linalg.cholesky_ex(covariance)
    singular = failed > 0
    if not singular.any():
        return root
    identity = torch.eye(covariance.shape[-1]).to(covariance)  # else gradients would be nan
    root = torch.linalg.cholesky(identity.where(singular[..., None, None], covariance))
    return root.index_put((singular,), _semidefinite_root(covariance[singular]))


def _semidefinite_root(covariance: Tensor) -> Tensor:
    """Return the triangular roots of singular matrices (N, K, K) column by column.

    A pivot within rounding of 0 gives a column of zeros: what is left of that column of a
    semi-definite matrix is 0 as well.
    """
    eps, size = torch.finfo(covariance.dtype).eps, covariance.shape[-1]
    if not covariance.isfinite().all():
        raise ValueError("`spread` must be finite, but is not: the weights have diverged")
    eigenvalues = torch.linalg.eigvalsh(covariance.detach())
    least, largest = eigenvalues[:, 0], eigenvalues[:, -1].clamp(min=0.0)
    if not (least >= -(eps**0.5) * largest).all():
        place = int((least + eps**0.5 * largest).argmin())
        raise ValueError(
            "`spread` must hold covariances, but a matrix has the eigenvalues"
            f" {least[place].item():.4g} ... {largest[place].item():.4g}; none may be below 0"
        )
    rest, columns = covariance, []
    for k in range(size):
        pivot = rest[:, k, k]
        usable = pivot > size * eps * largest
        scale = pivot.where(usable, 1.0).sqrt()
        column = rest[:, :, k] / scale[:, None] * usable[:, None]
        column = column * (torch.arange(size, device=column.device) >= k)
        columns.append(column)
        rest = rest - column[:, :, None] * column[:, None, :]
    return torch.stack(columns, -1)
