"""The repulsion against a slow, plain twin under autograd in float64, and finite differences."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from polymode.methods.particles.lengthscales import IDENTITY, Lengthscales
from polymode.methods.particles.repulsion import _by_differences, _by_products, repulsion

STREAM = torch.Generator().manual_seed(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=STREAM, dtype=torch.float64)


def twin(own: torch.Tensor, others: torch.Tensor, metric: torch.Tensor, over: str) -> torch.Tensor:
    """R (M,) of `own` (M, B, D) against the constant `others`, pair by pair."""
    num_modes, batch, dimension = own.shape

    def direction(j: torch.Tensor) -> torch.Tensor:
        j = torch.cat([j.new_ones(1), j]) if dimension == 1 else j
        return j / torch.sqrt(j @ j + 1e-24)

    values = []
    distances = [
        [
            [
                ((s := direction(own[i, b]) - direction(others[j, b])) @ metric @ s)
                for b in range(batch)
            ]
            for j in range(num_modes)
        ]
        for i in range(num_modes)
    ]
    for i in range(num_modes):
        total = torch.zeros((), dtype=own.dtype)
        for j in range(num_modes):
            for b in range(batch):
                pool = [
                    distances[a][c][b].item()
                    for a in range(num_modes)
                    for c in (range(num_modes) if over == "all" else [j])
                ]
                h = statistics.median(pool) / math.log(num_modes) + 1e-12 if num_modes > 1 else 1.0
                total = total + torch.exp(-distances[i][j][b] / h) / batch
        values.append(total.log())
    return torch.stack(values)


def scales(dimension: int, alpha: float) -> tuple[Lengthscales, torch.Tensor]:
    eye = torch.eye(max(dimension, 2), dtype=torch.float64)
    if alpha == 0 or dimension == 1:
        return IDENTITY, eye
    axes = draw(dimension, 2)
    return Lengthscales(axes, alpha), (1 - alpha) * eye + alpha * axes @ axes.T


@pytest.mark.parametrize("over", ["reference", "all"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("num_modes", "dimension"), [(2, 3), (3, 4), (4, 2), (5, 6), (4, 1)])
def test_equals_the_slow_twin(num_modes, dimension, alpha, over) -> None:
    gradients = draw(num_modes, 3, dimension)
    lengthscales, metric = scales(dimension, alpha)
    value, derivative = repulsion(gradients, lengthscales=lengthscales, bandwidth=over)
    own = gradients.clone().requires_grad_()
    expected = twin(own, gradients, metric, over)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-12)
    slope = torch.autograd.grad(expected.sum(), own)[0]
    torch.testing.assert_close(derivative, slope, rtol=1e-8, atol=1e-10)


def test_large_problems_take_the_same_value() -> None:
    """Above the size at which differences are written out, distances come from products."""
    gradients = draw(6, 20, 500)
    whole, derivative = repulsion(gradients)
    parts = torch.stack([repulsion(gradients[:, b : b + 1])[0] for b in range(20)])
    torch.testing.assert_close(whole, parts.exp().mean(0).log(), rtol=1e-10, atol=1e-12)
    single, slope = repulsion(gradients.float())
    torch.testing.assert_close(single.double(), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slope.double(), derivative, rtol=1e-3, atol=1e-7)


def test_finite_differences() -> None:
    """Member 1 moves, the references and the bandwidth stay: central differences of the twin."""
    gradients = draw(3, 2, 3)
    derivative = repulsion(gradients, bandwidth="all")[1]
    distances = (gradients / gradients.norm(dim=-1, keepdim=True)).unsqueeze(1)
    distances = (distances - distances.transpose(0, 1)).square().sum(-1)
    h = distances.flatten(0, 1).sort(0).values[4] / math.log(3) + 1e-12

    def value(own: torch.Tensor) -> float:
        s, t = (j / j.norm(dim=-1, keepdim=True) for j in (own, gradients))
        squared = (s[1] - t).square().sum(-1)  # (M, B)
        return torch.exp(-squared / h).mean(1).sum().log().item()

    for b in range(2):
        for d in range(3):
            step = torch.zeros_like(gradients)
            step[1, b, d] = 1e-5
            slope = (value(gradients + step) - value(gradients - step)) / 2e-5
            assert derivative[1, b, d].item() == pytest.approx(slope, rel=1e-7, abs=1e-9)


def test_members_move_apart() -> None:
    """A small step against the derivative lowers the repulsion, but for draws in which the
    bandwidth, a constant in the derivative, shrinks more: 161 of the first 200 seeds."""
    lower = 0
    for seed in range(50):
        stream = torch.Generator().manual_seed(seed)
        gradients = torch.randn(5, 4, 6, generator=stream, dtype=torch.float64)
        value, derivative = repulsion(gradients)
        assert ((value >= 0) & (value <= math.log(5) + 1e-12)).all()
        moved = repulsion(gradients - 1e-3 * derivative)[0]
        lower += bool(moved.sum() < value.sum())
    assert lower >= 35


def test_scale_of_a_gradient_does_not_matter() -> None:
    gradients = draw(4, 3, 5)
    factors = torch.rand(4, 3, 1, generator=STREAM, dtype=torch.float64) + 0.1
    (value, derivative), (same, scaled) = repulsion(gradients), repulsion(factors * gradients)
    torch.testing.assert_close(value, same)
    torch.testing.assert_close(derivative, scaled * factors)
    torch.testing.assert_close(
        (derivative * gradients).sum(-1), torch.zeros(4, 3, dtype=torch.float64)
    )


def test_one_member_is_not_repelled() -> None:
    value, derivative = repulsion(draw(1, 3, 4))
    assert value.tolist() == [pytest.approx(0.0, abs=1e-15)]
    assert not derivative.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 3, 4), (10, 32, 784)])
def test_coincident_members_feel_no_force(shape, dtype) -> None:
    gradients = torch.randn(1, *shape[1:], generator=STREAM, dtype=dtype).repeat(shape[0], 1, 1)
    value, derivative = repulsion(gradients)
    assert torch.isfinite(value).all()
    assert derivative.abs().max() == 0
    if shape[0] * shape[0] * shape[1] * shape[2] < 2**18:
        torch.testing.assert_close(value, torch.full_like(value, math.log(shape[0])))


@pytest.mark.parametrize("num_modes", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("dimension", [1, 2, 700])
def test_zero_gradients_give_finite_results(num_modes, dimension) -> None:
    gradients = torch.randn(num_modes, 60, dimension, generator=STREAM)
    gradients[0] = 0
    gradients[:, 0] = 0
    for over in ("reference", "all"):
        value, derivative = repulsion(gradients, bandwidth=over)
        assert torch.isfinite(value).all()
        assert torch.isfinite(derivative).all()
        if dimension > 1:
            assert not derivative[0].any()
    assert torch.isfinite(repulsion(torch.zeros_like(gradients))[1]).all()


@pytest.mark.parametrize("over", ["reference", "all"])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("num_modes", "size"), [(5, 9), (16, 300), (17, 300), (35, 9), (35, 300)])
def test_inner_products_equal_differences(num_modes, size, alpha, over) -> None:
    """The two ways to the same numbers; a member with zero gradients is among them. Long gradients
    of more than 16 members are multiplied by blocks."""
    gradients = draw(num_modes, 7, size)
    gradients[2, 3] = 0
    scales_, _ = scales(size, alpha)
    found = _by_products(gradients, scales_, over)
    assert found is not None
    for one, other in zip(found, _by_differences(gradients, scales_, over), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


def test_close_members_are_left_to_differences() -> None:
    """Directions 1e-4 apart in float32: products have lost them, the result has not."""
    gradients = draw(1, 20, 500) + 1e-4 * draw(6, 20, 500)
    assert _by_products(gradients.float(), IDENTITY, "reference") is None
    exact, single = (repulsion(g)[1] for g in (gradients, gradients.float()))
    torch.testing.assert_close(single.double(), exact, rtol=0.02, atol=1e-3 * exact.abs().max())


def test_memory_layout_does_not_matter() -> None:
    gradients = draw(5, 40, 300)
    turned = gradients.transpose(1, 2).contiguous().transpose(1, 2)
    assert turned.stride(-1) != 1
    for one, other in zip(repulsion(turned), repulsion(gradients), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize("shape", [(4, 3, 5), (9, 40, 200)], ids=["differences", "products"])
def test_a_diagonal_metric_is_one_vector(shape, alpha) -> None:
    gradients = draw(*shape)
    roots = torch.linspace(2, 0, shape[2], dtype=torch.float64)
    found, expected = (
        repulsion(gradients, lengthscales=Lengthscales(axes, alpha))
        for axes in (roots, roots.diag())
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)
