"""Samples of a posterior as networks: the same functions as in its predictions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.symmetry.samples import networks_of


def make_net():
    return pm.nets.mlp((2,), 2, hidden=(8, 5), dropout=0.4)


@pytest.fixture(scope="module")
def task():
    return pm.task("two_moons")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("dropout", {"samples_per_mode": 3}),
        ("swag", {"samples_per_mode": 3}),
        ("sghmc", {"samples_per_mode": 3, "epochs": 4}),
        ("deep_ensemble", {}),
    ],
)
def test_the_networks_predict_what_the_posterior_predicts(task, method, options):
    options = {"epochs": 2, "num_modes": 2, "progress": "silent", **options}
    post = pm.fit(method, net=make_net, task=task, dtype=torch.float64, **options)
    x = task.test.x[:20].double()
    stack = networks_of(post, seed=5)
    number = post.weights.samples_per_mode
    assert stack.num_modes == 2 * number
    ours = stack(x).log_softmax(-1).unflatten(0, (number, 2)).transpose(0, 1).flatten(0, 1)
    theirs = post.predict(x, seed=5).log_probs
    assert torch.allclose(ours, theirs, atol=1e-12)
    if method == "dropout":
        weight = stack.params["3.weight"]  # behind the first mask
        cut = (weight == 0).all(1).double().mean()
        assert 0.1 < float(cut) < 0.7


def test_noise_that_is_not_of_weights_is_named(task):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.drop, self.two = nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2)

        def forward(self, x):
            return self.two(self.drop(self.one(x).tanh()))

    post = pm.fit("dropout", net=Net, task=task, epochs=1, progress="silent")
    with pytest.raises(ValueError, match="noise of 'drop' .* cannot be written as weights"):
        networks_of(post)
