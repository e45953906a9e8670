"""Concrete dropout: masks, the divergence from the prior, and rates that move the right way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.concrete import ConcreteDropout
from polymode.likelihoods.kinds import Gaussian
from polymode.methods.concrete_dropout import (
    Layer,
    divergences,
    init,
    layers_of,
    stack_with_rates,
    step,
)
from polymode.methods.dropout import loss_of_passes
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(12, 6, generator=STREAM, dtype=torch.float64)
Y = X[:, :1].sin()


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Dropout(0.1), nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(5, 1)
    )


def images() -> nn.Module:
    """Channels are dropped before a convolution, units before a dense layer."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Dropout2d(0.2), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Dropout(0.2),
        nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip


@pytest.mark.parametrize("rate", [0.1, 0.7])
def test_masks_fall_on_the_dropped_side_with_the_rate(rate) -> None:
    """z > 1/2 exactly where logit u > −a, so with probability p, for every relaxation.

    40,000 masks: 5 standard errors, one false alarm for two million seeds; the seed is fixed.
    """
    layer = ConcreteDropout(rate).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        scaled = layer(torch.ones(40_000)).detach() * (1 - rate)  # 1 − z
    share = (scaled < 0.5).double().mean().item()
    assert share == pytest.approx(rate, abs=5 * math.sqrt(rate * (1 - rate) / 40_000))
    assert ((scaled < 0.01) | (scaled > 0.99)).double().mean() > 0.5  # near 0 and 1, most of them


def test_channels_share_a_mask() -> None:
    layer = ConcreteDropout(0.5, shared=2, relaxation=1.0).train()  # so no two masks are equal
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropped = layer(torch.ones(2, 3, 4, 4)).detach()
    assert torch.equal(dropped, dropped[:, :, :1, :1].expand_as(dropped))
    assert len(dropped[:, :, 0, 0].unique()) == 6
    assert torch.equal(layer.eval()(dropped), dropped)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, math.nan])
def test_rates_outside_their_range_are_refused(rate) -> None:
    with pytest.raises(ValueError, match=r"`rate` of ConcreteDropout must be in \(0, 1\), got"):
        ConcreteDropout(rate)


def test_weights_and_masks_of_each_layer() -> None:
    """Units before dense layers, channels for Dropout2d; through activations and flattening."""
    found = layers_of(Stack(mlp, dtype=torch.float64), X)
    assert found == {"0": Layer(("1.weight",), 6), "3": Layer(("4.weight",), 5)}
    found = layers_of(Stack(images), torch.randn(2, 1, 6, 6))
    assert found == {"1": Layer(("3.weight",), 3), "4": Layer(("6.weight",), 16)}


def test_the_divergence_is_the_papers() -> None:
    """l² (1 − p)/2 ‖M‖² − D H(p) with M = θ/(1 − p), written out; in the code's terms
    weight_regularizer ‖W‖²/(1 − p) with l²/2 and dropout_regularizer 1, all before dividing by N.
    """
    weight = torch.tensor([[[1.0, -2.0]], [[0.5, 0.0]]], dtype=torch.float64)
    bias = torch.tensor([[3.0], [1.0]], dtype=torch.float64)
    rate, prior = torch.tensor([0.1, 0.4], dtype=torch.float64), 2.0
    found = divergences(
        {"w": weight, "b": bias}, {"0": rate.logit()}, {"0": Layer(("w",), 7)}, prior
    )
    for k in range(2):
        p, square = rate[k].item(), weight[k].square().sum().item()
        acting = square / (1 - p) ** 2  # ‖M‖²
        entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
        wanted = prior * (1 - p) / 2 * acting - 7 * entropy + prior / 2 * bias[k].item() ** 2
        assert found[k].item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"alpha": 0.5, "num_passes": 3}])
def test_a_step_follows_the_gradient_of_the_objective(options) -> None:
    """Plain SGD with rate 1 moves every parameter by minus the slope of L/N with fixed masks."""
    law, prior = Gaussian(noise=0.5), 0.7
    config = pm.methods.ConcreteDropout(
        optimizer="sgd", lr=1.0, prior_precision=prior, batch_size=12, **options
    )
    problem = pm.methods.Problem(law, 12, 1, 1, pm.Task(train=(X, Y), likelihood=law).train)
    state = init(config, problem, Stack(mlp, 2, dtype=torch.float64).train())
    stack, odds = state.stack, state.odds
    leaves = {**stack.params, **odds}
    before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    loss = loss_of_passes(law, config.passes, config.alpha)

    def objective() -> torch.Tensor:
        rows, body = X.repeat(config.passes, 1), stack_with_rates(stack, odds, 0.1)
        data = loss(body(rows, step=0), Y, {})
        return data + divergences(stack.params, odds, layers_of(stack, X), prior) / 12

    slopes = {}
    with torch.no_grad():
        for name, leaf in leaves.items():
            place = (1, *(0,) * (leaf.dim() - 1))
            values = []
            for shift in (1e-6, -1e-6):
                leaf[place] += shift
                values.append(objective()[1].item())
                leaf[place] -= shift
            slopes[name] = (values[0] - values[1]) / 2e-6
    step(config, problem, state, Batch(X, Y))
    for name, leaf in leaves.items():
        place = (1, *(0,) * (leaf.dim() - 1))
        moved = (leaf - before[name])[place].item()
        assert moved == pytest.approx(-slopes[name], rel=1e-5, abs=1e-7), name
        assert abs(moved) > 1e-5


def fitted(x: torch.Tensor, y: torch.Tensor, noise: float, **options) -> pm.Posterior:
    task = pm.Task(train=(x, y), likelihood=Gaussian(noise=noise), target_scaling=None)
    usual = {"net": mlp, "task": task, "epochs": 60, "lr": 1e-2, "progress": "silent"}
    return pm.fit("concrete_dropout", **(usual | {"num_modes": 2} | options))


def test_data_push_rates_down_and_their_absence_pulls_them_up() -> None:
    """Many data with little noise leave no room for dropout; few with much noise leave the prior,
    whose best rate with small weights is 1/2."""
    x = torch.randn(600, 6, generator=torch.Generator().manual_seed(1))
    sure = fitted(x, x[:, :1].sin(), 0.05).weights.rates
    unsure = fitted(x[:8], x[:8, :1].sin(), 3.0, epochs=400).weights.rates
    assert all((rate < 0.1).all() for rate in (sure["0"], sure["3"]))
    assert all((rate > 0.35).all() for rate in (unsure["0"], unsure["3"]))
    assert sure["0"][0] != sure["0"][1]  # a rate for each member


def test_predictions_are_made_with_the_learned_rates() -> None:
    """A stack with other rates predicts otherwise; each sample equals its draw."""
    post = fitted(X.float(), Y.float(), 0.3)
    outputs = post.weights.outputs(4, seed=3)
    with torch.no_grad():
        found = outputs(X.float())
        for number in range(4):
            drawn = post.weights.draw(number, 3)(X.float())
            torch.testing.assert_close(found[:, number], drawn, rtol=1e-4, atol=1e-5)
        for each in post.weights.odds.values():
            each += 2.0
        assert (post.weights.outputs(4, seed=3)(X.float()) - found).abs().max() > 1e-3


def test_networks_without_layers_to_learn_are_refused() -> None:
    x, y = X.float(), Y.float()
    with pytest.raises(ValueError, match=r"this Linear has none with a rate in \(0, 1\)"):
        fitted(x, y, 0.3, net=lambda: nn.Linear(6, 1))
    rates = [nn.Sequential(nn.Dropout(rate), nn.Linear(6, 1)) for rate in (0.1, 0.2)]
    with pytest.raises(ValueError, match=r"differ in 0.p; give them the same rates"):
        fitted(x, y, 0.3, net=rates)


def test_a_layer_with_no_weights_behind_it_warns() -> None:
    with pytest.warns(UserWarning, match="multiply what the dropout layer '1' drops") as told:
        fitted(
            X.float(), Y.float(), 0.3, epochs=1,
            net=lambda: nn.Sequential(nn.Linear(6, 1), nn.Dropout(0.1)),
        )  # fmt: skip
    assert told[0].filename == __file__  # where `fit` was called


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="`relaxation` of ConcreteDropout must be > 0, got 0"):
        pm.methods.ConcreteDropout(relaxation=0)
