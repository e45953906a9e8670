"""LP-BNN: the divergence against quadrature, a step against autograd, and draws of codes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods.lp_bnn import divergence, latent_loss
from polymode.stack.common import train_in_common

STREAM = torch.Generator().manual_seed(0)
ROWS = torch.randn(32, 4, generator=STREAM)
CLASSES = (ROWS[:, 0] > 0).long()
SHORT = {"num_modes": 3, "batch_size": 16, "dtype": torch.float64, "progress": "silent"}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def rows() -> pm.Task:
    return pm.Task(train=(ROWS, CLASSES), likelihood="categorical")


@pytest.mark.parametrize(("mean", "log_variance"), [(0.0, 0.0), (1.3, -2.0), (-0.4, 1.1)])
def test_divergence_is_that_of_quadrature(mean, log_variance) -> None:
    """E_q[log q − log p] by Gauss-Hermite quadrature, exact for polynomials, to 1e-12; over
    several entries it is the sum."""
    points, weights = np.polynomial.hermite_e.hermegauss(20)
    z = mean + math.exp(0.5 * log_variance) * points
    log_q = -0.5 * points**2 - 0.5 * log_variance
    expected = float(np.sum(weights * (log_q + 0.5 * z**2)) / math.sqrt(2 * math.pi))
    pair = torch.tensor([[mean, 0.0], [log_variance, 0.0]], dtype=torch.float64)
    assert divergence(*pair).item() == pytest.approx(expected, abs=1e-12)


def test_latent_loss_is_that_of_the_members_modules() -> None:
    """Over layers as modules, in float64 to 1e-12."""
    stack = pm.fit("lp_bnn", net=mlp, task=rows(), epochs=1, **SHORT).stack
    expected = []
    for member in stack.members():
        total = torch.zeros((), dtype=torch.float64)
        for layer in (member[0], member[2]):
            h = torch.relu(layer.latent.encoder(layer.r))
            mean, log_variance = layer.latent.mean(h), layer.latent.log_variance(h)
            total += divergence(mean, log_variance)
            total += (layer.latent.decoder(mean) - layer.r).square().sum()
        expected.append(total)
    names = [n for n in stack.frozen if "latent" in n]
    assert len(names) == 16
    train_in_common(stack, names)
    torch.testing.assert_close(latent_loss(stack), torch.stack(expected), rtol=1e-12, atol=0)


def test_without_data_codes_go_to_the_prior() -> None:
    """With a large weight, divergence and error fall far below where they start."""
    losses = [
        pm.fit("lp_bnn", net=mlp, task=rows(), epochs=n, kl_weight=1e3, lr=0.01, holdout=0,
               hidden=4, **SHORT).history.train_loss
        for n in (60,)
    ]  # fmt: skip
    first, last = (torch.tensor(losses[0][k]).mean() for k in (0, -1))
    assert last < 0.2 * first


def test_draws_are_of_codes_and_saved(tmp_path) -> None:
    post = pm.fit("lp_bnn", net=mlp, task=rows(), epochs=2, std_factor=1.0, **SHORT)
    assert post.weights.kind == "noisy"
    pred = post.predict(ROWS)
    assert pred.num_samples == 12
    first, second = (post.weights.draw(n, 3)(ROWS.double()) for n in (0, 1))
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    post.save(tmp_path)
    assert torch.equal(pm.load(tmp_path, net=mlp).predict(ROWS).log_probs, pred.log_probs)


@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_networks_of_convolutions(name) -> None:
    x = torch.randn(8, 3, 16, 16, generator=STREAM)
    task = pm.Task(train=(x, torch.arange(8) % 3), likelihood="categorical")
    options = {**SHORT, "batch_size": 4, "epochs": 1, "num_modes": 2, "hidden": 4}
    net = getattr(pm.nets, name)
    first, second = (
        pm.fit("lp_bnn", net=net, task=task, execution=way, **options).predict(x).log_probs
        for way in ("loop", "batched")
    )
    torch.testing.assert_close(first, second, rtol=1e-7, atol=1e-9)
