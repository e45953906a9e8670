"""Total variation: by hand, and the reconstruction against its dual solved by another method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from polymode.tomography import LinearOperator, parallel_beam, total_variation, tv_reconstruction
from polymode.tomography.tv import _differences, squared_norm


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_variation_is_the_norm_of_the_differences_and_these_have_their_adjoint() -> None:
    difference, back = _differences((5, 4))
    x, q = noise(2, 1, 5, 4), noise(2, 31, seed=1)
    torch.testing.assert_close(total_variation(x), difference(x).abs().sum(1))
    torch.testing.assert_close((difference(x) * q).sum(), (x * back(q)).sum())
    assert torch.linalg.matrix_norm(difference(torch.eye(20).reshape(20, 1, 5, 4)), 2) ** 2 < 8


def test_two_pixels_move_towards_each_other() -> None:
    """½ |x - y|² + λ |x₁ - x₂|: each moves by λ, and no further than where they meet."""
    eye = LinearOperator.from_matrix(torch.eye(2), (1, 2))
    y = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    for weight, expected in ((0.25, [1.25, 2.75]), (5.0, [2.0, 2.0])):
        found = tv_reconstruction(eye, y, tv_weight=weight, tolerance=1e-9)  # λ = weight m / 2
        torch.testing.assert_close(found.mean.flatten(), torch.tensor(expected).double())
    below = tv_reconstruction(eye, y - 2, tv_weight=0.25, tolerance=1e-9)
    torch.testing.assert_close(below.mean.flatten(), torch.tensor([0.0, 0.75]).double())


def test_minimum_is_that_of_the_dual() -> None:
    """Without bounds, q minimises |L⁻¹ (Aᵀ y - Gᵀ q)|² in a box, with Aᵀ A = L Lᵀ; a bounded least
    squares problem for scipy."""
    A, y, weight = noise(40, 36).numpy(), noise(40, seed=1).numpy(), 0.2
    operator = LinearOperator.from_matrix(A, (6, 6))
    G = _differences((6, 6))[0](torch.eye(36).reshape(36, 1, 6, 6)).T.double().numpy()
    L = np.linalg.cholesky(A.T @ A)
    bound = weight * 40 / 2
    dual = lsq_linear(
        np.linalg.solve(L, G.T), np.linalg.solve(L, A.T @ y), (-bound, bound), tol=1e-14
    )
    expected = np.linalg.solve(A.T @ A, A.T @ y - G.T @ dual.x)
    found = tv_reconstruction(
        operator, torch.from_numpy(y), tv_weight=weight, positive=False, tolerance=1e-8
    )
    np.testing.assert_allclose(found.mean.flatten().numpy(), expected, atol=1e-6)
    misfit = np.mean((A @ expected - y) ** 2)
    least = misfit + weight * np.abs(G @ expected).sum()
    assert float(found.info["objective"]) == pytest.approx(least, rel=1e-8)


def test_several_images_are_those_one_by_one() -> None:
    projector = parallel_beam(8, 6)
    y = projector(noise(2, 1, 8, 8).abs())
    both = tv_reconstruction(projector, y, tv_weight=0.01, tolerance=1e-7)
    for k in range(2):
        one = tv_reconstruction(projector, y[k], tv_weight=0.01, tolerance=1e-7)
        torch.testing.assert_close(both.mean[k : k + 1], one.mean, atol=1e-4, rtol=0)
    assert float(both.mean.min()) >= 0


def test_norm_is_just_above_the_largest_singular_value() -> None:
    operator = LinearOperator.from_matrix(noise(40, 36).abs(), (6, 6))
    largest = float(torch.linalg.matrix_norm(operator.matrix(), 2)) ** 2
    assert largest <= squared_norm(operator, noise(1)) <= 1.03 * largest


def test_wrong_input_is_refused_and_few_iterations_warn() -> None:
    projector = parallel_beam(8, 6)
    y = projector(noise(1, 1, 8, 8).abs())
    with pytest.raises(ValueError, match="`tv_weight` of tv_reconstruction must be > 0, got 0"):
        tv_reconstruction(projector, y, tv_weight=0)
    with pytest.warns(UserWarning, match="stopped after max_iterations=20"):
        tv_reconstruction(projector, y, tv_weight=0.1, max_iterations=20)
