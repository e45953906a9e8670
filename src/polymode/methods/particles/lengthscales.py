"""Lengthscales: in which directions of the inputs members are to differ.

Directions s of input gradients are compared in the metric

    |s|²_Σ = sᵀ Σ⁻¹ s,        Σ⁻¹ = (1 − α) I + α U Λ Uᵀ

with U, Λ eigenvectors and eigenvalues of the covariance of the training inputs: differences along
directions in which the data vary count more. α = 0 is "identity", α = 1 "pca". A truncated basis
keeps the largest eigenvalues and takes the others as 0; that saves time where D is large and α = 1.
Within a truncated basis, s is the direction of K coordinates Uᵀ J and Σ⁻¹ = (1 − α) I + α Λ.

This is the authors' poster. Their paper interpolates the lengthscales and not their inverses,
Σ = (1 − α) I + α Λ⁻¹, which agrees at both ends; their code has the ends alone. The paper centres
the inputs, as is done here; the code does so by channel.

Reference: T. Trinh et al., Input-gradient space particle inference for neural network ensembles,
    ICLR 2024, section 3.3 and appendix D.4.

Shapes: `D` input dimensions, `K` kept eigenvectors, `N` training inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.core.memory import free_bytes, human
from polymode.core.rows import leaves_of

LENGTHSCALES = ("identity", "pca")


class Lengthscales(NamedTuple):
    """The metric (1 − α) I + α V Vᵀ with V = U √Λ, as a linear map whose image has it as norm.

    Attributes:
        axes: V (D, K), or (D,) for a diagonal one, or None where alpha is 0.
        alpha: α in [0, 1].
    """

    axes: Tensor | None = None
    alpha: float = 0.0

    def apply(self, s: Tensor) -> Tensor:
        """Return t with |t|² = |s|²_Σ: (..., D) -> (..., D), (..., K) or (..., D + K)."""
        if self.axes is None:
            return s
        scaled = self.along_axes(s)
        if self.alpha == 1.0:
            return scaled
        return torch.cat([math.sqrt(1 - self.alpha) * s, math.sqrt(self.alpha) * scaled], -1)

    def transpose(self, t: Tensor) -> Tensor:
        """Apply the transposed map: the derivative by s from that by `apply(s)`."""
        if self.axes is None:
            return t
        if self.alpha == 1.0:
            return self.from_axes(t)
        identity, scaled = t.split([self.axes.shape[0], self.axes.shape[-1]], -1)
        return math.sqrt(1 - self.alpha) * identity + math.sqrt(self.alpha) * self.from_axes(scaled)

    def along_axes(self, s: Tensor) -> Tensor:
        """Return Vᵀ s, (..., D) -> (..., K)."""
        assert self.axes is not None
        return s * self.axes if self.axes.dim() == 1 else s @ self.axes

    def from_axes(self, t: Tensor) -> Tensor:
        """Return V t, (..., K) -> (..., D)."""
        assert self.axes is not None
        return t * self.axes if self.axes.dim() == 1 else t @ self.axes.T


IDENTITY = Lengthscales()


def principal_axes(
    batches: Iterable[Tensor], num_components: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return eigenvectors (D, K) and eigenvalues (K,) of the inputs' covariance, largest first.

    The covariance is accumulated batch by batch around the first batch's mean, in float64.

    Args:
        batches: inputs (B, ...), flattened here, N ≥ 2 in all.
        num_components: K ≤ D; None keeps all.
    """
    count, shift, sums, products = 0, None, None, None
    for x in batches:
        types = {leaf.dtype for leaf in leaves_of(x) if not leaf.is_floating_point()}
        if types:
            listed = ", ".join(sorted(map(str, types)))
            raise ValueError(
                f"lengthscales='pca' needs real-valued inputs, got {listed}; use 'identity'"
            )
        rows = torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves_of(x)], 1).double()
        if shift is None or sums is None or products is None:
            dimension = rows.shape[1]
            _check_size(dimension, num_components, rows.device)
            shift = rows.mean(0)
            sums, products = torch.zeros_like(shift), rows.new_zeros(dimension, dimension)
        rows = rows - shift
        products.addmm_(rows.T, rows)
        sums += rows.sum(0)
        count += len(rows)
    if products is None or sums is None or count < 2:
        raise ValueError(f"lengthscales='pca' needs at least 2 training inputs, got {count}")
    covariance = products.addr_(sums, sums, alpha=-1 / count).div_(count - 1)
    values, vectors = torch.linalg.eigh(covariance)
    leading = slice(None) if num_components is None else slice(len(values) - num_components, None)
    return vectors[:, leading].flip(1), values[leading].flip(0).clamp_min(0)


def _check_size(dimension: int, num_components: int | None, device: torch.device) -> None:
    if num_components is not None and num_components > dimension:
        raise ValueError(
            f"`num_components` must be at most the {dimension} input dimensions, got"
            f" {num_components}"
        )
    needed, free = 3 * 8 * dimension**2, free_bytes(device)
    if needed > free:
        raise ValueError(
            f"lengthscales='pca' needs the {dimension:,} × {dimension:,} covariance of the inputs,"
            f" {human(needed)} with its eigenvectors; {human(free)} are free. Use"
            " lengthscales='identity', or smaller inputs"
        )


def pca_lengthscales(
    batches: Iterable[Tensor],
    *,
    alpha: float = 1.0,
    num_components: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Lengthscales:
    """Return the lengthscales of the training inputs, see above; `alpha=0` is the identity."""
    if alpha == 0:
        return IDENTITY
    vectors, values = principal_axes(batches, num_components)
    return Lengthscales((vectors * values.sqrt()).to(dtype), alpha)


def component_lengthscales(
    batches: Iterable[Tensor],
    num_components: int,
    *,
    alpha: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Lengthscales]:
    """Return the basis U (D, K) of the training inputs, and the lengthscales of coordinates."""
    vectors, values = principal_axes(batches, num_components)
    return vectors.to(dtype), Lengthscales(values.sqrt().to(dtype), alpha)
