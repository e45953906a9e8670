r"""Total variation, and the reconstruction that it regularises.

.. math:: \mathrm{TV}(x) = \sum_{ij} |x_{i+1,j} - x_{ij}| + |x_{i,j+1} - x_{ij}|, \qquad
          \hat x = \arg\min_{x \ge 0}\; \tfrac1m \|A x - y\|^2 + \gamma\, \mathrm{TV}(x)

γ is `tv_weight`, the same as in the objective of the deep image prior. The minimum is found by the
primal-dual hybrid gradient method. With G the differences, λ = γ m / 2 and steps τ, σ_A, σ_G that
satisfy τ (σ_A |A|² + σ_G |G|²) < 1, one iteration is

    x⁺ = max(x - τ (Aᵀ p + Gᵀ q), 0)               x̄ = 2 x⁺ - x
    p⁺ = (p + σ_A (A x̄ - y)) / (1 + σ_A)           q⁺ = clip(q + σ_G G x̄, -λ, λ)

It stops when the residuals of both optimality conditions are below `tolerance` of the terms that
they are made of, for every image; τ and σ of each are balanced so that both fall together.

References: L. Rudin, S. Osher, E. Fatemi, "Nonlinear total variation based noise removal
algorithms", Physica D 60, 1992. A. Chambolle, T. Pock, "A first-order primal-dual algorithm for
convex problems with applications to imaging", JMIV 40, 2011. T. Goldstein, M. Li, X. Yuan,
"Adaptive primal-dual splitting methods for statistical learning and image processing", NeurIPS
2015 (balance and residuals).

Shapes: `N` images, `H`, `W` height and width, `n` = H W pixels, `m` observations, `g` differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from polymode.core.checks import OnlyTensor, Range, check_call
from polymode.core.warn import warn
from polymode.tomography.operator import LinearOperator
from polymode.tomography.projector import check_finite
from polymode.tomography.reconstruction import Reconstruction

_NORM_OF_DIFFERENCES = 8.0  # |G|² <= 8, in the plane
Stacked = Annotated[OnlyTensor, Range("and shape (..., 1, H, W)", lambda t: t.dim() >= 3)]
_CLOSE = 0.95  # of the largest steps that converge
_CHECK = 10  # iterations from one look at the residuals to the next


def total_variation(images: Stacked) -> Tensor:
    """Return the anisotropic total variation of images (..., 1, H, W), (...).

    >>> float(total_variation(torch.tensor([[[0.0, 1.0], [0.0, 3.0]]])))
    6.0
    """
    check_call(total_variation, locals())
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().sum((-1, -2, -3))
    right = (images[..., 1:] - images[..., :-1]).abs().sum((-1, -2, -3))
    return down + right


def tv_reconstruction(
    operator: LinearOperator,
    observations: OnlyTensor,
    *,
    tv_weight: float,
    positive: bool = True,
    tolerance: float = 1e-4,
    max_iterations: int = 20_000,
) -> Reconstruction:
    """Return the TV-regularised reconstructions of observations (N, m) or (m,).

    Args:
        tv_weight: γ > 0; 1e-5 to 1e-3 are usual for images in [0, 1].
        positive: whether pixels must be >= 0.
        tolerance: of the relative residuals, > 0.
        max_iterations: after which it gives up, with a warning.

    Returns:
        mean (N, 1, H, W) without standard deviations; `info` has the number of iterations, the last
        residual and the objectives (N,).
    """
    check_call(tv_reconstruction, locals())
    for name, value in (("tv_weight", tv_weight), ("tolerance", tolerance)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"`{name}` of tv_reconstruction must be > 0, got {value}")
    operator.check_observations(observations)
    check_finite(observations)
    y = observations.detach().reshape(-1, operator.num_observations)
    with torch.no_grad():
        images, iterations, residual = _primal_dual(
            operator, y, tv_weight * operator.num_observations / 2, positive, tolerance,
            max_iterations,
        )  # fmt: skip
        misfit = (operator(images) - y).square().mean(-1)
        objective = misfit + tv_weight * total_variation(images)
    if residual > tolerance:
        warn(
            f"tv_reconstruction stopped after max_iterations={max_iterations:,} at a residual of"
            f" {residual:.1e}, above tolerance={tolerance:g}; give it more iterations or a larger"
            " tolerance"
        )
    info = {"iterations": iterations, "residual": residual, "objective": objective}
    return Reconstruction(images, method="TV", info=info)


def _primal_dual(
    operator: LinearOperator, y: Tensor, bound: float, positive: bool, tolerance: float, most: int
) -> tuple[Tensor, int, float]:
    """Return images (N, 1, H, W), the number of iterations and the last residual."""
    difference, back = _differences(operator.image_shape)
    norm = squared_norm(operator, y)
    x = y.new_zeros(len(y), 1, *operator.image_shape)
    p, q = torch.zeros_like(y), torch.zeros_like(difference(x))
    balance, change = y.new_ones(len(y)), y.new_full((len(y),), 0.5)  # by how much it changes
    Ax, Gx, Kp = operator(x), difference(x), operator.adjoint(p) + back(q)
    residual = math.inf
    for iteration in range(1, most + 1):
        tau = _CLOSE * balance.view(-1, 1, 1, 1) / math.sqrt(norm)
        sigma_a = _CLOSE / (2 * balance[:, None] * math.sqrt(norm))
        sigma_g = _CLOSE * math.sqrt(norm) / (2 * balance[:, None] * _NORM_OF_DIFFERENCES)
        new = x - tau * Kp
        new = new.clamp(min=0) if positive else new
        new_Ax, new_Gx = operator(new), difference(new)
        new_p = (p + sigma_a * (2 * new_Ax - Ax - y)) / (1 + sigma_a)
        new_q = (q + sigma_g * (2 * new_Gx - Gx)).clamp(-bound, bound)
        new_Kp = operator.adjoint(new_p) + back(new_q)
        if iteration % _CHECK == 0:
            primal = _norm((x - new) / tau - (Kp - new_Kp)) / _norm(new_Kp, operator.adjoint(new_p))
            dual = torch.maximum(
                _norm((p - new_p) / sigma_a - (Ax - new_Ax)) / _norm(new_Ax, y),
                _norm((q - new_q) / sigma_g - (Gx - new_Gx)) / _norm(new_Gx, new_Ax / norm**0.5),
            )
            residual = float(torch.maximum(primal, dual).max())
            up, down = primal > 2 * dual, dual > 2 * primal
            balance = torch.where(up, balance / (1 - change), balance)
            balance = torch.where(down, balance * (1 - change), balance)
            change = torch.where(up | down, 0.95 * change, change)
        x, p, q, Ax, Gx, Kp = new, new_p, new_q, new_Ax, new_Gx, new_Kp
        if residual <= tolerance:
            return x, iteration, residual
    return x, most, residual


def _norm(*terms: Tensor) -> Tensor:
    """Return the largest norm of the terms for each image, (N,)."""
    norms = torch.stack([term.flatten(1).norm(dim=1) for term in terms])
    return norms.amax(0) + 1e-30


def _differences(shape: tuple[int, int]) -> tuple[Callable[[Tensor], Tensor], ...]:
    """Return G and its adjoint: images (N, 1, H, W) to differences down and right (N, g)."""
    height, width = shape

    def difference(x: Tensor) -> Tensor:
        down, right = x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]
        return torch.cat([down.flatten(1), right.flatten(1)], dim=1)

    def back(q: Tensor) -> Tensor:
        down = q[:, : (height - 1) * width].reshape(len(q), 1, height - 1, width)
        right = q[:, (height - 1) * width :].reshape(len(q), 1, height, width - 1)
        x = q.new_zeros(len(q), 1, height, width)
        x[..., 1:, :] += down
        x[..., :-1, :] -= down
        x[..., 1:] += right
        x[..., :-1] -= right
        return x

    return difference, back


def squared_norm(operator: LinearOperator, like: Tensor, iterations: int = 30) -> float:
    """Return |A|², the largest eigenvalue of Aᵀ A, 2 % above the estimate of a power iteration."""
    stream = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1, *operator.image_shape, generator=stream).to(like)
    value = 1.0
    for _ in range(iterations):
        x = operator.adjoint(operator(x / x.norm()))
        value = float(x.norm())
    return 1.02 * value
