"""Gaussian outputs: draws against their own moments, and closed forms against draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polymode.likelihoods.components import Moments, _triangular_root
from polymode.likelihoods.kinds import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    StudentT,
)

SEEDS = [11, 12, 13]


def made_up(
    batch: int = 4, outputs: int = 3, full: bool = True, rank: int = 5, modes: int = 3
) -> Moments:
    """Return moments in float64; covariances of less than full rank if rank < outputs."""
    stream = torch.Generator().manual_seed(0)
    draw: Any = dict(generator=stream, dtype=torch.float64)
    loc = torch.randn(modes, batch, outputs, **draw)
    factors = torch.randn(modes, batch, outputs, rank, **draw)
    covariance = factors @ factors.mT
    return Moments(loc, covariance if full else covariance.diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("rank", [0, 2, 5])
@pytest.mark.parametrize("full", [True, False])
def test_draws_have_the_moments(full: bool, rank: int) -> None:
    """Means and covariances of 4,000 draws, each number within 5.5 of its standard errors.

    108 numbers are looked at, so one of 10,000 seeds would fail; the seed is fixed. Rank 0 is a
    network that is known, rank 2 a singular matrix.
    """
    moments, number = made_up(full=full, rank=rank), 4000
    samples = moments.draw(number, SEEDS)
    assert samples.shape == (3, number, 4, 3)
    covariance = moments.spread if full else torch.diag_embed(moments.spread)
    deviations = samples - moments.loc.unsqueeze(1)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    error = (variance / number).sqrt() + 1e-12
    assert (deviations.mean(1).abs() < 5.5 * error).all()
    products = deviations.unsqueeze(-1) * deviations.unsqueeze(-2)
    found, wanted = products.mean(1), covariance
    error = ((variance.unsqueeze(-1) * variance.unsqueeze(-2) + wanted**2) / number).sqrt() + 1e-12
    assert ((found - wanted).abs() < 5.5 * error).all()


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("rank", [2, 5])
def test_draws_do_not_depend_on_batch_modes_or_number(full: bool, rank: int) -> None:
    loc, spread = moments = made_up(full=full, rank=rank)
    samples = moments.draw(6, SEEDS)
    parts = [Moments(loc[:, [k]], spread[:, [k]]).draw(6, SEEDS) for k in range(4)]
    torch.testing.assert_close(torch.cat(parts, 2), samples, rtol=1e-12, atol=1e-12)
    alone = Moments(loc[1:2], spread[1:2]).draw(6, SEEDS[1:2])
    torch.testing.assert_close(alone[0], samples[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moments.draw(2, SEEDS), samples[:, :2], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(samples[0, 0] - loc[0], samples[0, 1] - loc[0])
    other = moments.draw(6, [99, *SEEDS[1:]])
    assert not torch.allclose(other[0], samples[0]) and torch.equal(other[1:], samples[1:])


def test_a_sample_is_one_function_of_the_input() -> None:
    """Equal moments at two inputs give equal outputs, in every sample."""
    loc, spread = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    samples = Moments(loc, spread).draw(5, [0])
    assert torch.equal(samples[:, :, 0], samples[:, :, 1])


@given(st.integers(1, 5), st.integers(0, 5), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_root_is_triangular_and_a_root(size: int, rank: int, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    factors = torch.randn(2, 3, size, rank, generator=stream, dtype=torch.float64)
    covariance = factors @ factors.mT
    covariance[0, 0] = torch.eye(size)  # one that is not singular among some that may be
    root = _triangular_root(covariance)
    assert torch.equal(root, root.tril())
    torch.testing.assert_close(root @ root.mT, covariance, rtol=1e-6, atol=1e-6)


def test_a_pivot_of_rounding_errors_is_zero() -> None:
    """Divided by its root, 3e-4, the 1e-3 beside it would make the last variance 8 and not 1."""
    tiny = torch.finfo(torch.float32).eps
    covariance = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0 + tiny, 1e-3], [0.0, 1e-3, 1.0]])
    root = _triangular_root(covariance[None])[0]
    torch.testing.assert_close(root @ root.T, covariance, rtol=0, atol=2e-3)


@pytest.mark.parametrize("full", [True, False])
def test_draws_have_gradients_where_nothing_is_uncertain(full: bool) -> None:
    """At a spread of 0 the gradient with respect to the spread is 0 and not infinite."""
    loc, spread = made_up(full=full, rank=2)
    spread = spread * torch.tensor([1.0, 0.0, 1.0, 1.0]).view(4, *(1,) * (spread.dim() - 2))
    spread.requires_grad_()
    Moments(loc, spread).draw(2, SEEDS).square().sum().backward()
    assert spread.grad is not None and spread.grad.isfinite().all()
    assert (spread.grad[:, 1] == 0).all() and (spread.grad[:, 0] != 0).any()


def test_what_are_not_moments_is_refused() -> None:
    loc, zeros = torch.zeros(3, 4, 2), torch.zeros(3, 4, 2)
    for moments, message in (
        (Moments(loc, zeros - 0.5), "variances >= 0, got -0.5"),
        (Moments(loc, zeros[:2]), r"shape of `loc`, \(3, 4, 2\)"),
        (Moments(loc, torch.zeros(3, 4, 2, 3)), "covariances, .*got"),
        (Moments(loc, torch.tensor([[1.0, 2.0], [2.0, 1.0]]).expand(3, 4, 2, 2)), "-1 ... 3"),
        (Moments(loc, torch.full((3, 4, 2, 2), torch.nan)), "diverged"),
        (Moments(loc, zeros * torch.nan), "diverged"),
    ):
        with pytest.raises(ValueError, match=message):
            moments.draw(1, SEEDS)
    with pytest.raises(ValueError, match="one seed per mode, 3, got 2"):
        Moments(loc, zeros).draw(1, SEEDS[:2])
    for wrong in (0, 1.5):
        with pytest.raises(ValueError, match="`samples_per_mode` must be an integer"):
            Moments(loc, zeros).draw(wrong, SEEDS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("noise", "params", "scale"),
    [
        (0.5, {}, torch.full((3, 1, 2), 0.5)),
        ((0.5, 2.0), {}, torch.tensor([0.5, 2.0]).expand(3, 1, 2)),
        ("learned", {"log_noise": torch.tensor([0.0, 1.0, -1.0])}, torch.tensor([0.0, 1.0, -1.0])),
        ("learned_per_output", {"log_noise": torch.randn(3, 2)}, None),
    ],
)
@pytest.mark.parametrize("full", [True, False])
def test_a_gaussian_of_gaussian_outputs_is_gaussian(
    full: bool, noise: Any, params: dict[str, Tensor], scale: Tensor | None
) -> None:
    moments = made_up(outputs=2, full=full)
    if scale is None:
        scale = params["log_noise"].exp().unsqueeze(1)
    elif scale.dim() == 1:
        scale = scale.exp().view(3, 1, 1)
    loc, found, df, share = Gaussian(noise=noise).closed(moments, params)
    variance = moments.spread.diagonal(dim1=-2, dim2=-1) if full else moments.spread
    total = variance + scale.double().square()
    assert df is None and share is not None and torch.equal(loc, moments.loc)
    torch.testing.assert_close(found.square(), total, rtol=1e-6, atol=0)
    torch.testing.assert_close(share, variance / total, rtol=1e-6, atol=0)


def test_a_share_that_rounds_to_one_leaves_some_noise() -> None:
    huge = Moments(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1e12))
    share = Gaussian(noise=0.1).closed(huge, {}).epistemic
    assert share is not None and 1 - 1e-6 < share.item() < 1
    with pytest.raises(ValueError, match="variances >= 0"):
        Gaussian(noise=0.1).closed(Moments(torch.zeros(1, 1, 1), -torch.ones(1, 1, 1)), {})


@pytest.mark.parametrize(
    "likelihood",
    [Categorical(), Bernoulli(), StudentT(df=4.0, scale=1.0), HeteroscedasticGaussian()],
    ids=str,
)
def test_others_have_no_closed_form(likelihood: Likelihood) -> None:
    outputs = likelihood.num_outputs(2)
    assert likelihood.closed(made_up(outputs=outputs), {}) is None


def test_learned_noise_has_the_axes_of_the_outputs() -> None:
    """Noise (M,) against outputs (M, L, B, D) would be taken for that of the samples if L = M."""
    outputs, log_noise = torch.zeros(2, 2, 5, 3), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match=r"as many leading axes as outputs, \(2, 2\), got \(2,\)"):
        Gaussian(noise="learned").components(outputs, {"log_noise": log_noise})
    scale = Gaussian(noise="learned").components(outputs, {"log_noise": log_noise[:, None]}).scale
    # exp rounds by a unit relative to e, which log makes a unit beside 1, and then rounds by one
    expected, unit = log_noise.view(2, 1, 1, 1).expand_as(outputs), torch.finfo(scale.dtype).eps
    torch.testing.assert_close(scale.log(), expected, rtol=0, atol=2 * unit)
