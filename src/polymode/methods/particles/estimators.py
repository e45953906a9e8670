"""Gradient of the log-density of particles, known only by the particles themselves.

Wasserstein gradient descent moves M particles along φ_i = ∇ log p(x_i) − ∇ log ρ(x_i), where ρ is
the density of the particles. With the kernel K_ij = exp(−|x_i − x_j|² / h) and
(∇K)_i = Σ_j ∂K_ij/∂x_i (the other particle held fixed) the estimates of ∇ log ρ at the particles
are, X (M, P) being the particles,

    kde     (∇K)_i / Σ_j K_ij                           score of the kernel density estimate
    sge     (K + η I)⁻¹ ∇K                              Stein gradient estimator
    ssge    K U (Λ + η I)⁻² Uᵀ ∇K,  K = U Λ Uᵀ          spectral Stein gradient estimator
    svgd    φ_i = (1/M) Σ_j [ K_ij ∇ log p(x_j) + ∂K_ij/∂x_j ] instead of a density estimate

For this kernel ∇K = −(2/h) (D − K) X with D = diag(Σ_j K_ij). So each estimate is A X with a matrix
A (M, M) of the distances alone, whose rows add up to 0: the estimate does not see where the origin
is, and costs two M × M × P products whatever the estimator. A is computed in float64.

`ssge` expands ∇ log ρ in the eigenfunctions ψ_j(x) = √M k(x, X) u_j / μ_j of the kernel (Nyström's
method), with coefficients β_j = −(1/M) Σ_m ∇ψ_j(x_m); so it is defined away from the particles too.
All M eigenvectors are kept, with μ_j = λ_j + η: the ridge η takes the part of a truncation. At
η → 0 it equals `sge` at the particles. Both are right on average and noisy point by point where the
kernel is narrow compared with the density: their error falls as M^(−1/2), and with a wider kernel.
`kde` estimates the score of ρ blurred by the kernel, whose variance is h/2 per direction; descent
with it ends at particles that are too narrow by as much.

Kernel width. With m = median_ij |x_i − x_j|² over all M² ordered pairs, the M zeros of the diagonal
among them, even counts averaged: h = m for sge and svgd; h = m / ln(M + 1) for kde and ssge, as the
released code of repulsive ensembles has it for all (their notebook has ln M, and 0.5 for a
demonstration). For sge and svgd that is too narrow. At rest both have, with target N(0, I),

    Σ_ij K_ij x_i·x_j + η Σ_i |x_i|² = (1/h) Σ_ij K_ij |x_i − x_j|²        (svgd: η = 0)

Pairs i ≠ j drawn from N(0, s² I) balance at s² = 1, which is Stein's identity. The M terms i = j
pull inwards and push nothing apart. With them, and pairs that are independent,

    1 − s² = (1 + η) (h/2) (1 + 4 s²/h)^(1 + P/2) / (M − 1).

The right-hand side is least at h = 2 P s², the mean squared distance of two particles, which m is
nearly; at P ≫ M it then is e P s² / M, and with a width ln M times smaller P s² / ln M, however
many particles there are. Particles at rest lie more evenly than independent draws, so they are less
narrow than this says. Measured variances at rest under N(0, I), sge with h = m, in brackets with
m / ln(M + 1); svgd has the same to 0.01 with h = m:

    P        M = 10          M = 32          M = 128
    2     0.95 (0.66)     0.99 (0.86)     1.00 (0.94)
    4     0.83 (0.46)     0.93 (0.65)     0.99 (0.82)
    10    0.58 (0.24)     0.88 (0.33)     0.92 (0.48)
    100   0.06 (0.02)     0.19 (0.04)     0.65 (0.05)

Ridge. With so wide a kernel, the released η = 0.01 hides what is narrower than it, such as the neck
of Neal's funnel (MMD of 100 particles to exact draws 0.14 with sge, where 100 exact draws have
0.096); η = 0.001 gives 0.074. `ssge` divides by it twice and keeps the narrow kernel.

References: F. D'Angelo, V. Fortuin, Repulsive deep ensembles are Bayesian, NeurIPS 2021. Y. Li,
R. Turner, Gradient estimators for implicit models, ICLR 2018. J. Shi, S. Sun, J. Zhu, A spectral
approach to gradient estimation for implicit distributions, ICML 2018. Q. Liu, D. Wang, Stein
variational gradient descent, NeurIPS 2016.
Shapes: `M` particles, `P` coordinates of one; particles (M, ...) are flattened to (M, P).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.core.registry import suggest
from polymode.methods.particles.kernel import rbf, squared_distances

DENSITY_ESTIMATORS = ("kde", "sge", "ssge")
ESTIMATORS = (*DENSITY_ESTIMATORS, "svgd")
RIDGE = 0.001

# of repulsive deep ensembles, for the methods that are such
BIBTEX = """@inproceedings{dangelo2021repulsive,
  title={Repulsive deep ensembles are {Bayesian}},
  author={D'Angelo, Francesco and Fortuin, Vincent},
  booktitle={Advances in Neural Information Processing Systems}, year={2021}}"""


def median_lengthscale(squared: Tensor) -> Tensor:
    """Return the median of `squared` (M, M), a number.

    Where more than half of the pairs coincide up to rounding (median under a millionth of the mean)
    the mean takes its place, lest rounding errors be driven apart; 1 where all coincide or M = 1.
    """
    values = squared.detach().flatten().sort().values
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    mean = values.mean()
    typical = torch.where(middle > 1e-6 * mean, middle, mean)
    return torch.where(typical > 0, typical, torch.ones_like(typical))


def lengthscale(estimator: str, squared: Tensor) -> Tensor:
    """Return h of exp(−d²/h), a number: the median, for kde and ssge over ln(M + 1)."""
    h = median_lengthscale(squared)
    return h / math.log(len(squared) + 1) if estimator in ("kde", "ssge") else h


def coefficients(
    estimator: str, squared: Tensor, h: Tensor | float | None = None, *, ridge: float = RIDGE
) -> Tensor:
    """Return A (M, M) in float64 such that A X estimates ∇ log ρ at the particles X (M, P).

    Args:
        estimator: "kde", "sge" or "ssge".
        squared: squared distances of the particles, (M, M), ≥ 0.
        h: of the kernel exp(−d²/h), > 0; by default `lengthscale`.
        ridge: η of sge and ssge, > 0.
    """
    kernel, slope = kernel_and_slope(estimator, squared, h)
    if estimator == "kde":
        return slope / kernel.sum(1, keepdim=True)
    if estimator == "sge":
        return torch.linalg.solve(_with_ridge(kernel, ridge), slope)
    if estimator == "ssge":
        return kernel @ _spectral(kernel, slope, ridge)
    raise ValueError(
        f"`estimator` must be one of {', '.join(DENSITY_ESTIMATORS)}, got {estimator!r}."
        + suggest(str(estimator), DENSITY_ESTIMATORS)
    )


def kernel_and_slope(
    estimator: str, squared: Tensor, h: Tensor | float | None = None
) -> tuple[Tensor, Tensor]:
    """Return K (M, M) and G = −(2/h)(D − K), with which ∇K = G X; both float64.

    Raises:
        ValueError: where K is not finite: particles that hold NaN or infinity, or lie so far apart
            that their squared distance is not a number of the type.
    """
    squared = squared.detach().double()
    _require_finite(squared)
    h = lengthscale(estimator, squared) if h is None else h
    kernel = rbf(squared, h)
    if not torch.isfinite(kernel).all():
        raise ValueError(f"the kernel is not finite with h = {float(h):g}; h must be > 0")
    slope = (2 / h) * (kernel - torch.diag(kernel.sum(1)))
    return kernel, slope


def kde(particles: Tensor, h: Tensor | float | None = None) -> Tensor:
    """Return the score of the kernel density estimate at the particles, of their shape.

    >>> kde(torch.tensor([[-1.0], [1.0]]), h=2.0)
    tensor([[ 0.2384],
            [-0.2384]])
    """
    return _estimate("kde", particles, h, RIDGE)


def sge(particles: Tensor, h: Tensor | float | None = None, *, ridge: float = RIDGE) -> Tensor:
    """Return the Stein gradient estimate of ∇ log ρ at the particles, of their shape."""
    return _estimate("sge", particles, h, ridge)


def ssge(
    particles: Tensor,
    h: Tensor | float | None = None,
    *,
    at: Tensor | None = None,
    ridge: float = RIDGE,
) -> Tensor:
    """Return the spectral Stein gradient estimate of ∇ log ρ, ρ the density of `particles`.

    Args:
        at: where, (Q, ...); by default at the particles. Far from all of them it falls to 0.
    """
    if at is None:
        return _estimate("ssge", particles, h, ridge)
    centre = particles.flatten(1).mean(0)
    rows, queries = particles.flatten(1) - centre, at.flatten(1) - centre
    squared = squared_distances(rows, rows).double()
    h = lengthscale("ssge", squared) if h is None else h
    kernel, slope = kernel_and_slope("ssge", squared, h)
    across = squared_distances(queries, rows).double()
    _require_finite(across)
    matrix = rbf(across, h) @ _spectral(kernel, slope, ridge)
    return (matrix.to(rows.dtype) @ rows).view(at.shape)


def svgd(particles: Tensor, score: Tensor, h: Tensor | float | None = None) -> Tensor:
    """Return the Stein variational direction φ at the particles, of their shape.

    Args:
        score: ∇ log p at the particles, of their shape.
    """
    rows = _centred(particles)
    kernel, slope = kernel_and_slope("svgd", squared_distances(rows, rows), h)
    attraction = kernel.to(rows.dtype) @ score.flatten(1)
    repulsion = slope.to(rows.dtype) @ rows
    return ((attraction - repulsion) / len(rows)).view(particles.shape)


def direction(
    estimator: str, particles: Tensor, score: Tensor, h: Tensor | float | None = None
) -> Tensor:
    """Return φ, along which the particles flow to the density whose score is `score`.

    Args:
        estimator: "kde", "sge", "ssge" (Wasserstein gradient) or "svgd".
        particles: (M, ...). score: ∇ log p at the particles, of their shape.
    """
    if estimator == "svgd":
        return svgd(particles, score, h)
    return score - _estimate(estimator, particles, h, RIDGE)


def _estimate(estimator: str, particles: Tensor, h: Tensor | float | None, ridge: float) -> Tensor:
    rows = _centred(particles)
    matrix = coefficients(estimator, squared_distances(rows, rows), h, ridge=ridge)
    return (matrix.to(rows.dtype) @ rows).view(particles.shape)


def _centred(particles: Tensor) -> Tensor:
    """Return (M, P) with mean 0: A does not see the mean, and rounding grows with it."""
    rows = particles.detach().flatten(1)
    return rows - rows.mean(0)


def _with_ridge(kernel: Tensor, ridge: float) -> Tensor:
    return kernel + ridge * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)


def _spectral(kernel: Tensor, slope: Tensor, ridge: float) -> Tensor:
    """Return U (Λ + η)⁻² Uᵀ G: what k(x, X) is multiplied with."""
    values, vectors = torch.linalg.eigh(kernel)
    return (vectors / (values.clamp_min(0) + ridge).square()) @ (vectors.T @ slope)


def _require_finite(squared: Tensor) -> None:
    if not torch.isfinite(squared).all():
        bad = int((~torch.isfinite(squared)).any(1).sum())
        raise ValueError(
            f"squared distances of {bad} of {len(squared)} particles are not finite: the particles"
            " hold NaN or infinity, or are too far apart for their type; lower the step size, or"
            " use float64"
        )
