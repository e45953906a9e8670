"""Distances, median bandwidth and kernel against plain loops."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from polymode.methods.particles.kernel import (
    _sorted,
    median_bandwidth,
    rbf,
    squared_distances,
)

STREAM = torch.Generator().manual_seed(0)


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.stack([(x - y).square().sum(-1) for y in b]) for x in a])


@pytest.mark.parametrize("shape", [(5, 3), (4, 6, 2), (7, 40, 1000), (3, 2, 5, 6)])
def test_distances_equal_plain_loops(shape) -> None:
    a = torch.randn(*shape, generator=STREAM, dtype=torch.float64)
    b = torch.randn(2, *shape[1:], generator=STREAM, dtype=torch.float64)
    for left, right in ((a, a), (a, b), (b, a)):
        torch.testing.assert_close(
            squared_distances(left, right), plain(left, right), rtol=1e-12, atol=1e-11
        )


@pytest.mark.parametrize("size", [3, 30_000])
def test_gradients_reach_both_sides(size) -> None:
    a = torch.randn(4, size, generator=STREAM, dtype=torch.float64).requires_grad_()
    b = torch.randn(3, size, generator=STREAM, dtype=torch.float64).requires_grad_()
    weights = torch.rand(4, 3, generator=STREAM, dtype=torch.float64)
    found = torch.autograd.grad((weights * squared_distances(a, b)).sum(), (a, b))
    expected = torch.autograd.grad((weights * plain(a, b)).sum(), (a, b))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("size", [3, 60_000])
def test_a_particle_has_no_distance_to_itself(size) -> None:
    a = torch.randn(5, size, generator=STREAM) + 100
    distances = squared_distances(a, a)
    assert (distances.diagonal() == 0).all()
    assert (distances >= 0).all()
    torch.testing.assert_close(distances.double(), plain(a.double(), a.double()), rtol=1e-5, atol=0)


def test_centring_keeps_close_particles_apart() -> None:
    """Particles far from the origin and 1e-3 apart: inner products alone would lose them."""
    a = 10 + 1e-3 * torch.randn(6, 50_000, generator=STREAM)
    exact = plain(a.double(), a.double())
    torch.testing.assert_close(squared_distances(a, a).double(), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize("number", [2, 3, 4, 5, 10])
def test_median_bandwidth_equals_pythons_median(number) -> None:
    a = torch.randn(number, 3, 4, generator=STREAM, dtype=torch.float64)
    squared = squared_distances(a, a)
    by_reference, over_all = (median_bandwidth(squared, over=o) for o in ("reference", "all"))
    assert by_reference.shape == (1, number, 3)
    assert over_all.shape == (1, 1, 3)
    for b in range(3):
        everything = squared[:, :, b].flatten().tolist()
        expected = statistics.median(everything) / math.log(number) + 1e-12
        assert over_all[0, 0, b].item() == pytest.approx(expected, rel=1e-14)
        for j in range(number):
            expected = statistics.median(squared[:, j, b].tolist()) / math.log(number) + 1e-12
            assert by_reference[0, j, b].item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("over", ["reference", "all"])
def test_one_particle_has_bandwidth_one(over) -> None:
    assert median_bandwidth(torch.zeros(1, 1, 4), over=over).tolist() == [[[1.0] * 4]]


def test_bandwidth_has_no_gradient() -> None:
    a = torch.randn(3, 2, requires_grad=True)
    assert not median_bandwidth(squared_distances(a, a)).requires_grad


def test_kernel() -> None:
    assert rbf(torch.tensor([0.0, 2.0]), 2.0).tolist() == pytest.approx([1, math.exp(-1)])


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="agree in all but the first"):
        squared_distances(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="'reference' or 'all', got 'row'"):
        median_bandwidth(torch.zeros(2, 2), over="row")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_are_sorted_as_torch_sorts(dtype) -> None:
    values = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[2, 1, 1] = math.nan
    assert torch.equal(_sorted(values).nan_to_num(9), values.sort(0).values.nan_to_num(9))
