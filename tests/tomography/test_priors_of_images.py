"""Phantoms, and samples of the total variation prior and its Gaussian surrogate."""

from __future__ import annotations

import math

import pytest
import torch

from polymode.core.rng import generator
from polymode.tomography.phantoms import random_ellipses, shepp_logan
from polymode.tomography.tv import total_variation
from polymode.tomography.tv_samples import (
    _conditional,
    factorised_samples,
    predcp_samples,
    tv_samples,
)


def test_shepp_logan_has_the_values_of_its_formula() -> None:
    head = shepp_logan(256)
    assert float(head[128, 10]) == 0.0 and float(head[128, 42]) == pytest.approx(1.0)  # skull
    assert float(head[64, 128]) == pytest.approx(0.3, abs=1e-6)  # 1 − 0.8 + 0.1
    assert float(head[128, 100]) == pytest.approx(0.0, abs=1e-6)  # 1 − 0.8 − 0.2
    coarse = torch.nn.functional.avg_pool2d(shepp_logan(128, points=2)[None, None], 2)
    torch.testing.assert_close(coarse[0, 0], shepp_logan(64, points=4))


def test_random_ellipses_are_images_of_their_seed() -> None:
    first, again, other = (random_ellipses(32, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert 0 <= float(first.min()) < float(first.max()) <= 1
    with pytest.raises(ValueError, match="must be an integer from 1 to 10,000, got 0"):
        shepp_logan(0)


def test_a_pixel_is_drawn_from_its_conditional_density() -> None:
    """Mean and variance of 20,000 draws against quadrature; five standard errors."""
    beside = torch.tensor([[0.2, 0.7], [0.4, 0.7], [0.9, math.nan], [0.5, 0.1]]).double()
    uniform = torch.rand(20_000, 2, generator=generator(0), dtype=torch.float64)
    drawn = _conditional(beside[:, None].expand(4, 20_000, 2), 3.0, uniform)
    grid = torch.linspace(0, 1, 4001).double()
    for k in range(2):
        around = beside[:, k][~beside[:, k].isnan()]
        density = torch.exp(-3 * (grid[:, None] - around).abs().sum(1))
        density = density / density.sum()
        mean = float((grid * density).sum())
        variance = float(((grid - mean) ** 2 * density).sum())
        assert float(drawn[:, k].mean()) == pytest.approx(mean, abs=5 * (variance / 2e4) ** 0.5)
        assert float(drawn[:, k].var()) == pytest.approx(variance, rel=0.06)


def test_two_pixels_have_the_total_variation_of_their_density() -> None:
    """E |a − b| under exp(−λ |a − b|) on the square, λ = 4: 2,000 chains, five standard errors."""
    drawn = tv_samples((1, 2), 4.0, 2000, sweeps=30)
    found = (drawn[:, 0, 0] - drawn[:, 0, 1]).abs()
    grid = torch.linspace(0, 1, 100_001).double()
    density = (1 - grid) * torch.exp(-4 * grid)  # of |a − b|
    mean = float((grid * density).sum() / density.sum())
    assert float(found.mean()) == pytest.approx(mean, abs=5 * float(found.std()) / 2000**0.5)


def test_predcp_samples_have_the_total_variation_of_their_lengthscale() -> None:
    """TV over κ(ℓ) has mean 1: 400 images, five standard errors."""
    images, lengths = predcp_samples((6, 7), 0.05, 0.1, 400)
    pairs = 6 * 6 + 7 * 5
    share = 2 * 0.05 * -torch.expm1(-1 / lengths)
    kappa = pairs * (2 * share / math.pi).sqrt()
    ratio = total_variation(images[:, None]) / kappa
    assert float(ratio.mean()) == pytest.approx(1, abs=5 * float(ratio.std()) / 20)
    # κ itself is exponential of rate 0.1, below what independent pixels reach
    most = pairs * math.sqrt(4 * 0.05 / math.pi)
    expected = 10 - most * math.exp(-0.1 * most) / -math.expm1(-0.1 * most)
    assert float(kappa.mean()) == pytest.approx(expected, abs=5 * float(kappa.std()) / 20)
    rough = total_variation(factorised_samples((6, 7), 0.05, 400)[:, None]).mean()
    assert float(rough) == pytest.approx(most, rel=0.05)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="`rate` of tv_samples must be > 0"):
        tv_samples((2, 2), 0.0, 1)
    with pytest.raises(ValueError, match="of predcp_samples must be > 0, got 1.0, 0.0"):
        predcp_samples((2, 2), 0.0, 1.0, 1)
