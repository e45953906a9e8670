"""Priors over filters: covariances by hand, blocks of a network, components of the covariance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from polymode.core.rng import generator
from polymode.nets import unet
from polymode.tomography.filter_prior import JITTER, Block, filter_prior
from polymode.tomography.image_evidence import products


def test_matern_covariance_of_two_taps_is_the_exponential_of_their_distance() -> None:
    block = Block("b", 0, 9, (3, 3), "matern")
    found = block.covariance(torch.tensor(0.7).double(), torch.tensor(0.4).double())
    for a, b in ((0, 0), (0, 1), (0, 4), (0, 8), (1, 8), (3, 5)):
        apart = math.dist(divmod(a, 3), divmod(b, 3))
        expected = math.exp(0.7) * (math.exp(-apart / math.exp(0.4)) + JITTER * (a == b))
        assert float(found[a, b]) == pytest.approx(expected, rel=1e-7)
    assert len(block.classes()) == 6
    assert sum(matrix for _, matrix in block.classes()).eq(1).all()


def test_blocks_of_the_u_net() -> None:
    prior = filter_prior(unet((1, 28, 28), 1))
    names = {block.name: (block.kind, block.taps) for block in prior.blocks}
    assert names["down.0"] == names["up.1.conv"] == ("matern", (3, 3))
    assert names["last"] == names["up.0.skip"] == ("isotropic", (1, 1))
    assert prior.num_weights == 76_608  # filters of the published network
    assert all(name.endswith("weight") for name in prior.names)


def test_isotropic_prior_has_one_component_a_block() -> None:
    prior = filter_prior(unet((1, 28, 28), 1), "isotropic")
    hyper = prior.start(1.0, variance=0.3)
    assert prior.coefficients(hyper).tolist() == pytest.approx([0.3] * len(prior.blocks))


@pytest.mark.parametrize("taps", [(3, 3), (5, 5), (1, 3)])
def test_products_are_those_with_the_matrices_of_distances(taps) -> None:
    block = Block("b", 0, taps[0] * taps[1] * 7, taps, "matern")
    rows = torch.randn(5, block.stop, generator=generator(0), dtype=torch.float64)
    for found, (_, matrix) in zip(products(rows, block), block.classes(), strict=True):
        whole = torch.kron(torch.eye(7, dtype=torch.float64), matrix)
        torch.testing.assert_close(found, rows @ whole @ rows.T)


def test_products_and_penalty_against_the_dense_covariance(model, hyper, dense_covariance) -> None:
    prior = model.prior
    sigma = dense_covariance(prior, hyper)
    w = torch.randn(2, prior.num_weights, generator=generator(1), dtype=torch.float64)
    torch.testing.assert_close(prior.multiply(prior.covariances(hyper), w), w @ sigma)
    own = prior.penalty(hyper, prior.second_moments(w[0]))
    assert float(own) == pytest.approx(float(w[0] @ torch.linalg.solve(sigma, w[0])), rel=1e-6)


def test_draws_have_the_covariance_of_the_prior(model, hyper) -> None:
    """One filter's covariance over 4,000 draws of all filters of a block: false alarms < 1e-6."""
    prior, block = model.prior, model.prior.blocks[1]
    drawn = prior.draw(hyper, 4000, generator(0, "draw"))[:, block.start : block.stop]
    taps = drawn.reshape(-1, block.num_taps)
    found = (taps.T @ taps / len(taps)).numpy()
    true = prior.covariances(hyper)[1].numpy()
    spread = np.sqrt((true**2 + np.outer(np.diag(true), np.diag(true))) / len(taps))
    assert (np.abs(found - true) < 6 * spread).all()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="must be one of isotropic, matern, got 'rbf'"):
        filter_prior(unet((1, 28, 28), 1), "rbf")
    with pytest.raises(ValueError, match="no weights with two or more axes"):
        filter_prior(nn.BatchNorm2d(3))
    with pytest.raises(ValueError, match=r"must be > 0, the variance σ², got 0"):
        filter_prior(nn.Linear(2, 2)).start(0.0)
