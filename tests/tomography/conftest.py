"""A small linear model: a U-Net with 8 x 8 pixels in float64 and a random operator."""

from __future__ import annotations

import pytest
import torch

from polymode.nets import unet
from polymode.tomography.linearised import Linearised
from polymode.tomography.operator import LinearOperator

SIDE, SEEN = 8, 24


@pytest.fixture(scope="session")
def small():
    """(net, x, operator, y): a network of 354 filter weights, 24 observations of 64 pixels."""
    torch.manual_seed(0)
    net = unet((1, SIDE, SIDE), 1, channels=(3, 3), skips=(2,), sigmoid=True).double()
    x = torch.randn(1, 1, SIDE, SIDE, dtype=torch.float64)
    matrix = torch.randn(SEEN, SIDE * SIDE, dtype=torch.float64) / SIDE
    operator = LinearOperator.from_matrix(matrix, (SIDE, SIDE))
    truth = torch.zeros(1, SIDE, SIDE, dtype=torch.float64)
    truth[:, 2:6, 2:5] = 0.7
    y = operator(truth) + 0.02 * torch.randn(SEEN, dtype=torch.float64)
    rate = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        rate.zero_grad()
        (operator(net(x)) - y).square().mean().backward()
        rate.step()
    return net, x, operator, y


@pytest.fixture(scope="session")
def model(small):
    net, x, operator, _ = small
    return Linearised(net, x, operator)


@pytest.fixture
def hyper(model):
    """Different numbers for each block."""
    start = model.prior.start(4e-4, variance=0.05)
    groups = torch.arange(len(start.log_variance), dtype=torch.float64)
    return start._replace(
        log_variance=start.log_variance + 0.3 * groups, log_lengthscale=0.5 * groups - 1.0
    )


@pytest.fixture(scope="session")
def dense(small, model):
    """The Jacobian (n, P) by autograd, column blocks in the order of the model's weights."""
    net, x, _, _ = small
    named = dict(net.named_parameters())
    image = net(x).flatten()
    rows = []
    for pixel in image:
        grads = torch.autograd.grad(pixel, [named[n] for n in model.prior.names], retain_graph=True)
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


@pytest.fixture(scope="session")
def dense_covariance():
    """The function from a prior and hyperparameters to Σ (P, P), written out."""

    def written_out(prior, hyper) -> torch.Tensor:
        parts = []
        for block, one in zip(prior.blocks, prior.covariances(hyper), strict=True):
            parts.append(torch.kron(torch.eye(block.num_filters, dtype=torch.float64), one))
        return torch.block_diag(*parts)

    return written_out
