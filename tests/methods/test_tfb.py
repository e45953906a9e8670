"""The widest spread that costs ε: exact on a linear model, and what it is measured on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import polymode as pm
from polymode.methods import TFB
from polymode.methods.method import Problem
from polymode.methods.tfb import cost, widest
from polymode.stack.stack import Stack
from polymode.training.data import Arrays

NOISE, EPSILON = 0.3, 0.02
STREAM = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=STREAM).double()
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 0.1 * torch.randn(60, 1, generator=STREAM)


def least_squares(x: Tensor, y: Tensor) -> nn.Module:
    phi = torch.cat([x, x.new_ones(len(x), 1)], 1)
    theta = torch.linalg.lstsq(phi, y).solution
    layer = nn.Linear(3, 1).double()
    with torch.no_grad():
        layer.weight.copy_(theta[:3].T)
        layer.bias.copy_(theta[3])
    return layer


@pytest.mark.parametrize("modes", [1, 2])
def test_the_spread_of_a_linear_model_is_in_closed_form(modes) -> None:
    """At least squares the linear term of the cost is 0 on the same data: E_q[ℓ] − ℓ(θ̃) is
    s² mean (z φ)² / 2σ², with the method's own z; s² = 2 ε σ² / mean (z φ)²."""
    likelihood = pm.likelihoods.Gaussian(noise=NOISE)
    stack = Stack([least_squares(X, Y) for _ in range(modes)], seed=3)
    problem = Problem(likelihood, 60, 1, 1, Arrays(X, Y))
    config = TFB(epsilon=EPSILON, anchor_draws=7, batch_size=25)
    found = widest(config, problem, stack, Arrays(X, Y))
    squares = torch.zeros(modes, dtype=torch.float64)
    for draw in range(7):
        z = stack.normal("tfb", draw)
        moved = torch.einsum("nf,mkf->mnk", X, z["weight"]) + z["bias"][:, None]
        squares += moved.square().mean((1, 2)) / 7
    torch.testing.assert_close(found, (2 * EPSILON * NOISE**2 / squares).sqrt(), rtol=3e-4, atol=0)
    before = cost(config, problem, stack, Arrays(X, Y), torch.zeros(modes).double())
    after = cost(config, problem, stack, Arrays(X, Y), found)
    assert (after - before <= EPSILON).all() and (after - before > 0.99 * EPSILON).all()


def test_it_is_measured_on_validation_data_where_there_are_some() -> None:
    """Validation inputs ten times as long allow a tenth of the spread."""
    likelihood = pm.likelihoods.Gaussian(noise=NOISE)
    spreads = {}
    for name, scale in (("none", None), ("same", 1.0), ("long", 10.0)):
        y = None if scale is None else least_squares(X, Y)(scale * X).detach()
        val = None if scale is None else (scale * X, y)
        task = pm.Task(
            train=(X, Y), val=val, likelihood=likelihood, target_scaling=None, input_scaling=None
        )
        net = least_squares(X, Y)
        nn.init.zeros_(net.bias)
        post = pm.fit("tfb", net=net, task=task, epsilon=EPSILON, progress="silent")
        spreads[name] = float(post.weights.std["weight"].flatten()[0])
        assert len({*post.weights.std["weight"].flatten().tolist()}) == 1
    assert spreads["none"] == pytest.approx(spreads["same"], rel=0.1)
    assert spreads["long"] == pytest.approx(spreads["same"] / 10, rel=0.15)


def test_more_may_be_spent_on_a_wider_spread() -> None:
    task = pm.task("two_moons")
    net = pm.fit("map", net=pm.nets.mlp, task=task, epochs=20, progress="silent").members[0]
    posts = [
        pm.fit("tfb", net=net, task=task, epsilon=epsilon, progress="silent")
        for epsilon in (0.001, 0.01, 0.1)
    ]
    stds = [float(post.weights.std["0.weight"].max()) for post in posts]
    assert 0 < stds[0] < stds[1] < stds[2]
    assert torch.equal(posts[0].members[0][0].weight, net[0].weight)  # taken as it is
    with pytest.raises(ValueError, match="`epsilon` of TFB must be > 0, got 0"):
        pm.fit("tfb", net=net, task=task, epsilon=0)
