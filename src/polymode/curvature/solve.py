r"""Linear systems K x = b with a K that is given by its products with vectors, many at a time.

- `conjugate_gradients` and `descent_direction` solve them, the second for a K that may be
  indefinite.
- `nystrom` finds a preconditioner `LowRankPlusNoise` for K = B + σ² I by probing B.
- `log_quadrature` estimates log det K by Lanczos.

Shapes: `P` unknowns, `m` observations, `k` rank, `S` vectors at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    target: Tensor,
    preconditioner: Tensor | Callable[[Tensor], Tensor],
    *,
    start: Tensor | None = None,
    relative: float = 1e-5,
    most: int = 100,
) -> Tensor:
    """Return x with ‖product(x) − target‖ ≤ `relative` ‖target‖, norms by the preconditioner.

    Several right-hand sides are solved at once, rows of `target` (..., P); `product` then takes as
    many rows. Iterations end when all are solved.

    Args:
        preconditioner: diagonal, like `target`, or a function of rows.
        most: number of products after which x is returned as it is.
    """
    precondition = preconditioner if callable(preconditioner) else preconditioner.mul
    x = torch.zeros_like(target) if start is None else start
    residual = target.clone() if start is None else target - product(start)
    scaled = precondition(residual)
    direction, size = scaled, _inner_products(residual, scaled)
    goal = relative**2 * _inner_products(target, precondition(target))
    for _ in range(most):
        if bool((size <= goal).all()):
            break
        image = product(direction)
        length = _ratio(size, _inner_products(direction, image))
        x, residual = x + length * direction, residual - length * image
        scaled = precondition(residual)
        before, size = size, _inner_products(residual, scaled)
        direction = scaled + _ratio(size, before) * direction
    return x


def _inner_products(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1, keepdim=True)


def _ratio(upper: Tensor, lower: Tensor) -> Tensor:
    """Return upper / lower, 0 where a row is solved exactly and both are 0."""
    return torch.where(lower == 0, torch.zeros_like(lower), upper / lower)


def descent_direction(
    product: Callable[[Tensor], Tensor],
    gradient: Tensor,
    precondition: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return a direction in which a function falls, near -H⁻¹ g where it is convex.

    Conjugate gradients stop where the Hessian curves down, or once the residual is below
    min(0.1, √‖g‖) ‖g‖ (J. Nocedal, S. Wright, Numerical optimization, 2006, algorithm 7.1).

    Args:
        product: multiplies a vector (P,) with H, which may be indefinite.
        precondition: multiplies with a rough inverse of H, symmetric and > 0.
    """
    residual = -gradient
    norm = float(residual.norm())
    tolerance = min(0.1, math.sqrt(norm)) * norm
    step, scaled = torch.zeros_like(residual), precondition(residual)
    direction, size = scaled, float((residual * scaled).sum())
    for _ in range(2 * residual.numel()):
        image = product(direction)
        curvature = float((direction * image).sum())
        if curvature <= 0.0:
            return step if step.any() else direction
        step = step + (size / curvature) * direction
        residual = residual - (size / curvature) * image
        if residual.norm() <= tolerance:
            break
        scaled = precondition(residual)
        before, size = size, float((residual * scaled).sum())
        direction = scaled + (size / before) * direction
    return step


@dataclass(frozen=True)
class LowRankPlusNoise:
    """P = U diag(values) Uᵀ + noise · I, whose powers and determinant cost products with U.

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
        num_noise = len(self.vectors) - len(self.values)
        return float((self.values + self.noise).log().sum()) + num_noise * math.log(self.noise)

    def noise_shares(self) -> Tensor:
        """Return the eigenvalues of σ² P⁻¹, (m,): how much of each direction is noise."""
        ones = torch.ones(len(self.vectors) - len(self.values), dtype=self.values.dtype)
        return torch.cat([self.noise / (self.values + self.noise), ones])

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
    """Return P ≈ B + noise · I of a positive semi-definite B, from products with rows (S, m).

        Ω (m, k) orthonormal at random,  Y = B Ω,  B ≈ Y (Ωᵀ Y)⁻¹ Yᵀ = U Λ Uᵀ

    The Nyström approximation from one product with k vectors, computed with a small shift that is
    taken off again (Z. Frangella, J. Tropp, M. Udell, Randomized Nyström preconditioning, SIAM J.
    Matrix Anal. Appl. 44, 2023, algorithm 2.1).

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


def log_quadrature(product: Callable[[Tensor], Tensor], white: Tensor, steps: int) -> Tensor:
    """Return wᵀ log(M) w of each row w of `white` (S, m), by Lanczos with reorthogonalisation.

    `product` multiplies rows (S, m) with a positive definite M.
    """
    size = white.norm(dim=1, keepdim=True)
    steps = min(steps, white.shape[1])
    basis = [white / size]
    diagonal, beside_diagonal = [], []
    for step in range(steps):
        image = product(basis[-1])
        diagonal.append((image * basis[-1]).sum(1))
        vectors = torch.stack(basis, 1)  # (S, step + 1, m)
        for _ in range(2):
            along = (vectors @ image.unsqueeze(-1)).squeeze(-1)
            image = image - (vectors.mT @ along.unsqueeze(-1)).squeeze(-1)
        length = image.norm(dim=1)
        if step + 1 == steps or bool((length < 1e-10).all()):
            break
        beside_diagonal.append(length)
        basis.append(image / length.clamp_min(1e-30).unsqueeze(1))
    tridiagonal = torch.diag_embed(torch.stack(diagonal, 1))
    if beside_diagonal:
        off = torch.stack(beside_diagonal, 1)
        tridiagonal = (
            tridiagonal + torch.diag_embed(off, offset=1) + torch.diag_embed(off, offset=-1)
        )
    values, eigenvectors = torch.linalg.eigh(tridiagonal)
    weights = eigenvectors[:, 0].square()
    return size[:, 0].square() * (weights * values.clamp_min(1e-30).log()).sum(1)
