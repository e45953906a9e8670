r"""A randomised preconditioner for K = B + σ² I: the largest eigenvalues of B, found by probing it.

    Ω (m, k) orthonormal at random,  Y = B Ω,  B ≈ Y (Ωᵀ Y)⁻¹ Yᵀ = U Λ Uᵀ,   P = U Λ Uᵀ + σ² I

The Nyström approximation of a positive semi-definite B from one product with k vectors, computed
with a small shift that is taken off again (Z. Frangella, J. Tropp, M. Udell, Randomized Nyström
preconditioning, SIAM J. Matrix Anal. Appl. 44, 2023, algorithm 2.1). P⁻¹, P^{±½}, log det P and
draws from N(0, P) cost products with U.

Shapes: `m` observations, `k` rank, `S` vectors at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LowRankPlusNoise:
    """P = U diag(values) Uᵀ + noise · I.

    Attributes:
        vectors: U, (m, k), orthonormal. values: (k,) >= 0. noise: σ² > 0.
    """

    vectors: Tensor
    values: Tensor
    noise: float

    def power(self, rows: Tensor, exponent: float) -> Tensor:
        """Return P to a power times each row, (S, m)."""
        change = (self.values + self.noise) ** exponent - self.noise**exponent
        return rows @ self.vectors * change @ self.vectors.T + self.noise**exponent * rows

    def solve(self, rows: Tensor) -> Tensor:
        """Return P⁻¹ times each row, (S, m)."""
        return self.power(rows, -1.0)

    def logdet(self) -> float:
        """Return log det P."""
        rest = len(self.vectors) - len(self.values)
        return float((self.values + self.noise).log().sum()) + rest * _log(self.noise)

    def noise_shares(self) -> Tensor:
        """Return the eigenvalues of σ² P⁻¹, (m,): how much of each direction is noise."""
        rest = torch.ones(len(self.vectors) - len(self.values), dtype=self.values.dtype)
        return torch.cat([self.noise / (self.values + self.noise), rest])

    def with_noise(self, noise: float) -> LowRankPlusNoise:
        """Return the same eigenvalues with another σ²."""
        return LowRankPlusNoise(self.vectors, self.values, noise)


def nystrom(
    product: Callable[[Tensor], Tensor],
    size: int,
    rank: int,
    noise: float,
    stream: torch.Generator,
) -> LowRankPlusNoise:
    """Return P of a positive semi-definite B, given by its products with rows (S, m).

    Args:
        size: m. rank: k, at most m.
    """
    rank = min(rank, size)
    white = torch.randn(size, rank, generator=stream, dtype=torch.float64)
    test = torch.linalg.qr(white)[0]
    image = product(test.T).double().T
    shift = 1e-7 * float(image.norm())
    image = image + shift * test
    inner = test.T @ image
    values, turned = torch.linalg.eigh((inner + inner.T) / 2)
    values = values.clamp_min(shift * 1e-3)  # rounding of single-precision products
    half = image @ (turned * values.rsqrt())
    vectors, roots, _ = torch.linalg.svd(half, full_matrices=False)
    return LowRankPlusNoise(vectors, (roots.square() - shift).clamp_min(0.0), noise)


def _log(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).log())
