"""Estimators of ∇ log ρ: dense twins, scores of a Gaussian, flows to a Gaussian and to a funnel."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polymode.methods.particles.estimators import (
    DENSITY_ESTIMATORS,
    ESTIMATORS,
    RIDGE,
    coefficients,
    direction,
    kde,
    lengthscale,
    median_lengthscale,
    sge,
    ssge,
    svgd,
)
from polymode.methods.particles.kernel import rbf, squared_distances

FLOAT = torch.float64
DENSITY = {"kde": kde, "sge": sge, "ssge": ssge}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ------------------------------------------------------------------------------------ dense twins


def twin(estimator: str, x: Tensor, h: float) -> Tensor:
    """The formulas of the papers, pair by pair, the gradients of the kernel by autograd."""
    size = len(x)
    kernel = torch.zeros(size, size, dtype=x.dtype)
    slopes = torch.zeros(size, size, x.shape[1], dtype=x.dtype)  # ∂k(x_i, x_j)/∂x_i
    for i in range(size):
        for j in range(size):
            a = x[i].clone().requires_grad_()
            value = torch.exp(-(a - x[j]).square().sum() / h)
            (slopes[i, j],) = torch.autograd.grad(value, a)
            kernel[i, j] = value.detach()
    if estimator == "kde":
        return slopes.sum(1) / kernel.sum(1, keepdim=True)
    if estimator == "sge":  # Li and Turner: −(K + ηI)⁻¹ Σ_j ∂k(x_i, x_j)/∂x_j
        return -torch.linalg.inv(kernel + RIDGE * torch.eye(size, dtype=x.dtype)) @ (-slopes.sum(1))
    values, vectors = torch.linalg.eigh(kernel)  # Shi et al., eigenfunction by eigenfunction
    total = torch.zeros_like(x)
    for value, vector in zip(values + RIDGE, vectors.T, strict=True):
        psi = math.sqrt(size) * kernel @ vector / value
        psi_slopes = math.sqrt(size) * torch.einsum("ijp,j->ip", slopes, vector) / value
        total += psi[:, None] * -psi_slopes.mean(0)
    return total


@pytest.mark.parametrize("estimator", DENSITY_ESTIMATORS)
def test_against_the_papers_formulas(estimator) -> None:
    x = normal(7, 3) + 5
    torch.testing.assert_close(
        DENSITY[estimator](x, 2.0), twin(estimator, x, 2.0), rtol=1e-8, atol=1e-10
    )


def test_svgd_against_its_double_sum() -> None:
    x, score, h = normal(6, 3), normal(6, 3, seed=1), 1.5
    expected = torch.zeros_like(x)
    for i in range(6):
        for j in range(6):
            other = x[j].clone().requires_grad_()
            value = torch.exp(-(x[i] - other).square().sum() / h)
            (slope,) = torch.autograd.grad(value, other)
            expected[i] += (value.detach() * score[j] + slope) / 6
    torch.testing.assert_close(svgd(x, score, h), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(direction("svgd", x, score, h), expected, rtol=1e-10, atol=1e-12)


def test_kde_is_the_gradient_of_its_log_density() -> None:
    """Finite differences of log Σ_j k(x, x_j) at x = x_i."""
    x, h, eps = normal(5, 2), 0.7, 1e-6
    for p in range(2):
        shift = eps * torch.eye(2, dtype=FLOAT)[p]
        up, down = (rbf(squared_distances(x + s, x), h).sum(1).log() for s in (shift, -shift))
        torch.testing.assert_close(kde(x, h)[:, p], (up - down) / (2 * eps), rtol=1e-7, atol=1e-7)


def test_ssge_away_from_the_particles() -> None:
    """At the particles it is what it is without `at`; far away it is 0."""
    x = normal(20, 3)
    torch.testing.assert_close(ssge(x, 2.0, at=x), ssge(x, 2.0), rtol=1e-9, atol=1e-10)
    assert (ssge(x, 2.0, at=x + 100) == 0).all()
    assert ssge(x.view(20, 3, 1), at=normal(4, 3, 1)).shape == (4, 3, 1)


def test_ssge_tends_to_sge_as_the_ridge_falls() -> None:
    x = normal(12, 4)
    torch.testing.assert_close(
        ssge(x, 0.5, ridge=1e-9), sge(x, 0.5, ridge=1e-9), rtol=1e-5, atol=1e-6
    )


# ------------------------------------------------------------------------------------ lengthscale


def test_median_lengthscale_by_hand() -> None:
    line = torch.tensor([[0.0], [1.0], [3.0]], dtype=FLOAT)  # 0 0 0 1 1 4 4 9 9: median 1
    assert median_lengthscale(squared_distances(line, line)).item() == 1
    pair = torch.tensor([[0.0], [2.0]], dtype=FLOAT)  # 0 0 4 4: median 2
    assert median_lengthscale(squared_distances(pair, pair)).item() == 2
    crowd = torch.tensor([[0.0]] * 4 + [[1.0]], dtype=FLOAT)  # median 0, mean 8/25
    assert median_lengthscale(squared_distances(crowd, crowd)).item() == pytest.approx(8 / 25)
    crowd[:4] += 1e-9 * torch.arange(4.0, dtype=FLOAT)[:, None]  # equal up to rounding
    assert median_lengthscale(squared_distances(crowd, crowd)).item() == pytest.approx(8 / 25)
    assert median_lengthscale(torch.zeros(1, 1)).item() == 1
    assert median_lengthscale(torch.zeros(3, 3)).item() == 1


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_sge_and_svgd_have_a_kernel_as_wide_as_the_median(estimator) -> None:
    x, score = normal(6, 3), normal(6, 3, seed=1)
    median = median_lengthscale(squared_distances(x, x))
    h = median if estimator in ("sge", "svgd") else median / math.log(7)
    assert lengthscale(estimator, squared_distances(x, x)) == h
    torch.testing.assert_close(direction(estimator, x, score), direction(estimator, x, score, h))


# ------------------------------------------------------------------------------------ identities


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(DENSITY_ESTIMATORS), st.integers(1, 12), st.integers(1, 5), st.integers(0, 99)
)
def test_estimates_move_with_the_particles(estimator, size, coordinates, seed) -> None:
    """A shift leaves the score as it is, a scaling by c divides it by c, order does not matter."""
    x = normal(size, coordinates, seed=seed)
    score = DENSITY[estimator](x)
    torch.testing.assert_close(DENSITY[estimator](x + 3), score, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(DENSITY[estimator](10 * x), score / 10, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(DENSITY[estimator](x.flip(0)), score.flip(0), rtol=1e-6, atol=1e-8)
    matrix = coefficients(estimator, squared_distances(x, x))
    torch.testing.assert_close(
        matrix.sum(1), torch.zeros(size, dtype=FLOAT), rtol=0, atol=1e-9 * matrix.abs().max().item()
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_type_and_shape(estimator, dtype) -> None:
    x = normal(6, 2, 5, dtype=dtype)
    phi = direction(estimator, x, -x)
    assert phi.shape == x.shape
    assert phi.dtype == dtype
    exact = direction(estimator, x.double(), -x.double())
    torch.testing.assert_close(phi.double(), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_float32_far_from_the_origin(estimator) -> None:
    """Particles on a grid of 2⁻⁶ around 1,000 are exact in float32; so is their spread."""
    near = (normal(8, 4, dtype=torch.float32) * 64).round() / 64
    score = torch.zeros_like(near)
    torch.testing.assert_close(
        direction(estimator, near + 1000, score),
        direction(estimator, near, score),
        rtol=1e-3,
        atol=1e-3,
    )


# ------------------------------------------------------------------------------------ edges


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_particle_follows_its_score(estimator) -> None:
    x, score = normal(1, 5), normal(1, 5, seed=1)
    assert torch.equal(direction(estimator, x, score), score)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("constant", [0.0, 3.7])
def test_coincident_particles_do_not_repel(estimator, constant) -> None:
    x = torch.full((5, 3), constant, dtype=torch.float32)
    assert torch.equal(direction(estimator, x, torch.zeros_like(x)), torch.zeros_like(x))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_some_coincident_particles_stay_together(estimator) -> None:
    x = normal(6, 3)
    x[3:] = x[0]
    phi = direction(estimator, x, torch.zeros_like(x))
    assert torch.isfinite(phi).all()
    torch.testing.assert_close(phi[3:], phi[:1].expand(3, 3), rtol=1e-6, atol=1e-8)
    assert phi.abs().max() > 1e-3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_particles_that_are_not_finite_are_named(estimator) -> None:
    x = normal(4, 3, dtype=torch.float32)
    x[2, 1] = math.nan
    with pytest.raises(ValueError, match="4 of 4 particles are not finite"):
        direction(estimator, x, x)
    x[2, 1] = 1e30
    with pytest.raises(ValueError, match="too far apart"):
        direction(estimator, x, x)
    with pytest.raises(ValueError, match="not finite with h = 0"):
        direction(estimator, normal(3, 2), normal(3, 2), h=0.0)


def test_unknown_estimators_name_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"got 'kd'.*'kde'"):
        coefficients("kd", torch.zeros(2, 2))


# ------------------------------------------------------------------------------------ scores


def relative_error(estimator: str, size: int, seed: int, h: float = 8.0) -> float:
    """Of the estimate from `size` draws of N(0, I) in two dimensions; kde sees the blurred one."""
    x = normal(size, 2, seed=seed)
    true = -x / (1 + h / 2) if estimator == "kde" else -x
    return ((DENSITY[estimator](x, h) - true).norm() / true.norm()).item()


@pytest.mark.parametrize(
    ("estimator", "mean", "spread"),
    [("kde", 0.041, 0.014), ("sge", 0.45, 0.054), ("ssge", 0.40, 0.047)],
)
def test_score_of_a_gaussian(estimator, mean, spread) -> None:
    """Relative error over 500 draws, kernel as wide as the Gaussian (h = 8).

    Mean and spread of the error over data sets were found from 30 seeds; the bound is six spreads
    above, a false-alarm rate under 1e-6 for a seed that was not looked at.
    """
    assert relative_error(estimator, 500, seed=1000) < mean + 6 * spread


@pytest.mark.parametrize("estimator", DENSITY_ESTIMATORS)
def test_score_is_consistent(estimator) -> None:
    """The error falls as M^(-1/2): to 0.35 from 100 to 800 draws, here below 0.6.

    The spread of a mean over four data sets is under 10 % for either size, so that 0.6 is more than
    five spreads away: false-alarm rate under 1e-6.
    """
    few, many = (
        sum(relative_error(estimator, size, 2000 + s) for s in range(4)) / 4 for size in (100, 800)
    )
    assert many < 0.6 * few


@pytest.mark.parametrize(("estimator", "mean"), [("sge", 0.98), ("ssge", 0.94)])
def test_slope_of_the_score_with_the_usual_lengthscale(estimator, mean) -> None:
    """−Σ g·x / Σ |x|² is 1 for the exact score of N(0, I).

    The estimate is noisy point by point and right on average: over 30 data sets of 200 the mean has
    a spread of 0.06. Bounds of five spreads: false alarm 1e-6.
    """
    x = normal(200, 2, seed=3000)
    slope = -(DENSITY[estimator](x) * x).sum() / x.square().sum()
    assert abs(slope - mean) < 0.31


# ------------------------------------------------------------------------------------ flows

MEAN = torch.tensor([-0.68, 0.80], dtype=FLOAT)
COVARIANCE = 5 * torch.tensor([[0.22, 0.16], [0.16, 0.67]], dtype=FLOAT)


def gaussian_score(x: Tensor) -> Tensor:
    return -torch.linalg.solve(COVARIANCE, (x - MEAN).T).T


def gaussian_draws(size: int, seed: int) -> Tensor:
    return MEAN + normal(size, 2, seed=seed) @ torch.linalg.cholesky(COVARIANCE).T


def funnel_score(x: Tensor) -> Tensor:
    """v ~ N(0, 3²), u | v ~ N(0, e^v)."""
    v, u = x.unbind(1)
    return torch.stack([-v / 9 - 0.5 + u.square() * (-v).exp() / 2, -u * (-v).exp()], 1)


def funnel_draws(size: int, seed: int) -> Tensor:
    v, u = (normal(size, 2, seed=seed) * torch.tensor([3.0, 1.0], dtype=FLOAT)).unbind(1)
    return torch.stack([v, u * (v / 2).exp()], 1)


def flow(estimator: str, start: Tensor, score, steps: int) -> Tensor:
    """Adam at 0.1, falling linearly to 0."""
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / steps)
        here = x.detach()
        x.grad = -direction(estimator, here, score(here))
        optimizer.step()
    return x.detach()


class Reference:
    """Exact draws, to which the maximum mean discrepancy is measured."""

    def __init__(self, draws: Tensor) -> None:
        self.draws = draws
        self.own = self.mean(draws, draws)

    def mean(self, a: Tensor, b: Tensor) -> Tensor:
        return rbf(squared_distances(a, b), 2.0).mean()

    def mmd(self, x: Tensor) -> float:
        square = self.mean(x, x) + self.own - 2 * self.mean(x, self.draws)
        return square.clamp_min(0).sqrt().item()


@cache
def reference_of(draws: Callable[[int, int], Tensor]) -> tuple[Reference, Tensor]:
    """Return 2,000 exact draws, and the MMD to them of 100 others, 100 times."""
    reference = Reference(draws(2000, 1))
    return reference, torch.tensor([reference.mmd(draws(100, s)) for s in range(200, 300)])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.cpu_seconds(6)
def test_flow_to_a_gaussian(estimator) -> None:
    """100 particles end at least as near the target as 100 independent exact draws usually are.

    Mean and covariance within three standard errors of 100 draws (Wishart); MMD to 2,000 exact
    draws below the mean MMD of 100 exact draws. The descent itself is deterministic. `kde` ends at
    particles too narrow by its kernel's h/2 in each direction: that is added back for it before
    the covariance is compared, and its MMD may reach the 99 % quantile of exact draws.
    """
    start = torch.tensor([-1.0, 5.0], dtype=FLOAT) + math.sqrt(0.5) * normal(100, 2)
    x = flow(estimator, start, gaussian_score, steps=600)
    assert ((x.mean(0) - MEAN).abs() < 3 * (COVARIANCE.diagonal() / 100).sqrt()).all()
    found = torch.cov(x.T)
    if estimator == "kde":
        h = lengthscale("kde", squared_distances(x, x))
        assert (found.diagonal() < COVARIANCE.diagonal() - h / 4).all()
        found = found + h / 2 * torch.eye(2, dtype=FLOAT)
    variances = COVARIANCE.diagonal()
    errors = ((variances[:, None] * variances + COVARIANCE.square()) / 100).sqrt()
    assert ((found - COVARIANCE).abs() < 3 * errors).all()
    reference, draws = reference_of(gaussian_draws)
    limit = draws.quantile(0.99) if estimator == "kde" else draws.mean()
    assert reference.mmd(x) < limit.item()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.cpu_seconds(6)
def test_flow_to_the_funnel(estimator) -> None:
    """MMD of 100 particles to 2,000 exact draws of Neal's funnel, from a start at N(0, I).

    sge, ssge and svgd end below the mean MMD of 100 independent exact draws. kde does not: its blur
    is wider than the neck, particles sink into it, and all that is reached is less than the start
    and less than half of what plain ascent ends at, more than 0.9 since it collapses to the mode.
    """
    start, (reference, draws) = normal(100, 2), reference_of(funnel_draws)
    reached = reference.mmd(flow(estimator, start, funnel_score, steps=500))
    assert reached < 0.45
    assert reached < reference.mmd(start)
    if estimator != "kde":
        assert reached < draws.mean().item()
        assert reached < reference.mmd(start) / 3


@pytest.mark.parametrize(("estimator", "ridge"), [("sge", RIDGE), ("svgd", 0.0)])
def test_variance_at_rest(estimator, ridge) -> None:
    """32 particles under N(0, I) in four dimensions; deterministic, so no false alarms.

    At rest, Σ K x_i·x_j + η Σ |x_i|² = Σ K |x_i − x_j|² / h, which is written out here. Independent
    pairs of variance s² would satisfy 1 − s² = (1 + η) (h/2) (1 + 4 s²/h)^(1 + P/2) / (M − 1);
    repelled ones lie more evenly, and end between this s² and 1.
    """
    size, dimension = 32, 4
    x = flow(estimator, normal(size, dimension), lambda x: -x, steps=800)
    squared = squared_distances(x, x)
    h = squared.flatten().median().item()
    kernel = rbf(squared, h)
    inwards = (kernel * (x @ x.T)).sum() + ridge * x.square().sum()
    assert inwards.item() == pytest.approx((kernel * squared).sum().item() / h, rel=1e-2)
    variance, width = x.var(0).mean().item(), h / x.var(0).mean().item()
    loss = (1 + ridge) * width / 2 * (1 + 4 / width) ** (1 + dimension / 2) / (size - 1)
    assert 1 / (1 + loss) < variance < 1
    assert variance > 0.9
