from __future__ import annotations

import math

import pytest
import torch
from scipy import special
from torch import Tensor

from polymode.tasks.toy import quadrature
from polymode.tasks.toy.quadrature import climb, moments, trapezoid


def float64(*rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gaussian_is_integrated_exactly_even_from_a_poor_centre(size):
    stream = torch.Generator().manual_seed(size)
    root = torch.randn(size, size, generator=stream, dtype=torch.float64)
    precision = root @ root.T + torch.eye(size, dtype=torch.float64)
    mean = torch.randn(size, generator=stream, dtype=torch.float64)

    def log_density(points: Tensor) -> Tensor:
        return -((points - mean) @ precision * (points - mean)).sum(1) / 2

    nodes = trapezoid(log_density, mean + 0.3, 1.5 * precision)
    expected = size / 2 * math.log(2 * math.pi) - torch.logdet(precision).item() / 2
    found_mean, found_covariance = moments(nodes)
    assert nodes.log_integral == pytest.approx(expected, abs=1e-11) and nodes.error < 1e-9
    torch.testing.assert_close(found_mean, mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(found_covariance, torch.linalg.inv(precision), rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [0.7, 3.0, 20.0])
def test_skewed_density_and_its_error_estimate(shape):
    """The logarithm of a Gamma variable: integral, mean and variance by special functions."""

    def log_density(points: Tensor) -> Tensor:
        return (shape * points - points.exp())[:, 0]

    mode, precision = climb(log_density, float64(0.0))
    nodes = trapezoid(log_density, mode, precision)
    mean, covariance = moments(nodes)
    assert float(mode) == pytest.approx(math.log(shape), abs=1e-9)
    assert float(precision) == pytest.approx(shape, rel=1e-9)
    wrong = abs(nodes.log_integral - special.gammaln(shape))
    assert wrong < 1e-9 and wrong < nodes.error + 1e-12
    assert float(mean) == pytest.approx(special.digamma(shape), abs=1e-9)
    assert float(covariance) == pytest.approx(special.polygamma(1, shape), abs=1e-8)


def test_climb_leaves_a_saddle():
    """-x^4 + 2 x^2 - y^2 is convex in x at the start; its maxima are (-1, 0) and (1, 0)."""

    def log_density(points: Tensor) -> Tensor:
        return -(points[:, 0] ** 4) + 2 * points[:, 0] ** 2 - points[:, 1] ** 2

    mode, precision = climb(log_density, float64(0.1, 3.0))
    torch.testing.assert_close(mode, float64(1.0, 0.0), rtol=0, atol=1e-8)
    torch.testing.assert_close(precision, torch.diag(float64(8.0, 2.0)), rtol=1e-6, atol=1e-6)


def test_no_maximum_and_no_end_are_told(monkeypatch):
    with pytest.raises(RuntimeError, match="no maximum found in 200 steps"):
        climb(lambda points: points.sum(1), float64(0.0))
    monkeypatch.setattr(quadrature, "MAX_NODES", 10_000)
    with pytest.raises(ValueError, match="nodes, more than 10,000.*larger `prior_precision`"):
        flat = torch.eye(3, dtype=torch.float64)
        trapezoid(lambda points: -points.square().sum(1) / 2e4, torch.zeros(3).double(), flat)
