"""Iterative solvers, preconditioners and quadrature against dense linear algebra in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polymode.core.rng import generator
from polymode.curvature.solve import (
    LowRankPlusNoise,
    conjugate_gradients,
    descent_direction,
    log_quadrature,
    nystrom,
)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def gram(size: int, rank: int, seed: int = 1) -> Tensor:
    """Return a positive semi-definite matrix of this rank."""
    root = normal(size, rank, seed=seed)
    return root @ root.T


@pytest.mark.parametrize("preconditioner", ["diagonal", "nystrom", "none"])
@pytest.mark.parametrize("warm", [False, True])
def test_conjugate_gradients_solve_all_rows(preconditioner, warm) -> None:
    """Several right-hand sides, one of them 0, from 0 and from a point near the solution."""
    matrix = gram(12, 12) + torch.eye(12, dtype=torch.float64)
    near = {
        "diagonal": 1 / matrix.diagonal(),
        "nystrom": nystrom(lambda rows: rows @ gram(12, 12), 12, 6, 1.0, generator(2)).solve,
        "none": lambda rows: rows,
    }[preconditioner]
    targets = normal(4, 12, seed=3)
    targets[2] = 0.0  # solved from the beginning
    solution = torch.linalg.solve(matrix, targets.T).T
    start = solution + 0.1 * normal(4, 12, seed=4) if warm else None
    x = conjugate_gradients(
        lambda rows: rows @ matrix, targets, near, start=start, relative=1e-10, most=40
    )
    torch.testing.assert_close(x, solution)


def test_conjugate_gradients_stop_when_told() -> None:
    """The accuracy asked for ends the products, and so does their largest number."""
    matrix, target = gram(30, 30) + torch.eye(30, dtype=torch.float64), normal(30, seed=3)
    counts = []
    for relative, most in ((1e-1, 100), (1e-8, 100), (1e-8, 3)):
        calls: list[Tensor] = []

        def product(v: Tensor, calls: list[Tensor] = calls) -> Tensor:
            calls.append(v)
            return matrix @ v

        x = conjugate_gradients(product, target, torch.ones(30), relative=relative, most=most)
        counts.append(len(calls))
        if most == 100:
            assert (matrix @ x - target).norm() <= 1.01 * relative * target.norm()
    assert counts[0] < counts[1] and counts[2] == 3


def test_descent_direction_is_newtons_where_the_function_is_convex() -> None:
    """Within the accuracy of a truncated step, min(0.1, √‖g‖) ‖g‖; a small gradient needs more."""
    matrix = gram(9, 9) + torch.eye(9, dtype=torch.float64)
    for size in (1.0, 1e-12):
        gradient = size * normal(9, seed=2)
        step = descent_direction(lambda v: matrix @ v, gradient, lambda v: v / matrix.diagonal())
        norm = gradient.norm()
        assert (matrix @ step + gradient).norm() <= min(0.1, norm.sqrt()) * norm
    torch.testing.assert_close(step, -torch.linalg.solve(matrix, gradient), rtol=1e-4, atol=0)


@pytest.mark.parametrize("negative", [1, 5, 9])
def test_descent_direction_falls_where_the_function_curves_down(negative) -> None:
    vectors = torch.linalg.qr(normal(9, 9, seed=1))[0]
    values = torch.linspace(1.0, 3.0, 9, dtype=torch.float64)
    values[:negative] *= -1
    matrix, gradient = vectors * values @ vectors.T, normal(9, seed=2)
    step = descent_direction(lambda v: matrix @ v, gradient, lambda v: v)
    assert float(step @ gradient) < 0


def test_nystrom_of_full_rank_is_the_matrix() -> None:
    matrix = gram(10, 7)
    near = nystrom(lambda rows: rows @ matrix, 10, 10, 0.3, generator(2))
    dense = matrix + 0.3 * torch.eye(10, dtype=torch.float64)
    rows = normal(2, 10, seed=3)
    torch.testing.assert_close(near.power(rows, 1.0), rows @ dense, rtol=1e-5, atol=1e-5)
    inverse = torch.linalg.solve(dense, rows.T).T
    torch.testing.assert_close(near.solve(rows), inverse, rtol=1e-4, atol=1e-4)
    assert near.logdet() == pytest.approx(float(torch.logdet(dense)), abs=1e-4)


def test_shares_of_the_noise_are_eigenvalues() -> None:
    vectors = torch.linalg.qr(normal(6, 2, seed=0))[0]
    near = LowRankPlusNoise(vectors, torch.tensor([3.0, 0.5], dtype=torch.float64), 0.2)
    dense = near.power(torch.eye(6, dtype=torch.float64), 1.0)
    shares = 0.2 / torch.linalg.eigvalsh(dense)
    torch.testing.assert_close(near.noise_shares().sort().values, shares.sort().values)
    doubled = near.with_noise(0.4).power(torch.eye(6, dtype=torch.float64), 1.0)
    torch.testing.assert_close(doubled, dense + 0.2 * torch.eye(6, dtype=torch.float64))


def test_log_quadrature_is_exact_after_as_many_steps_as_rows() -> None:
    matrix = gram(9, 9) + 0.5 * torch.eye(9, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(matrix)
    white = normal(3, 9, seed=2)
    expected = ((white @ vectors).square() * values.log()).sum(1)
    torch.testing.assert_close(log_quadrature(lambda r: r @ matrix, white, 9), expected)
