from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from polymode.core.rng import generator
from polymode.nets import mlp
from polymode.tasks import task
from polymode.tasks.toy import synthetic

SEEN = [(-10, -6), (6, 10), (14, 18)]


@pytest.fixture(scope="module")
def own():
    return task("synthetic_regression")


def test_training_inputs_are_the_published_ones(own):
    """40 evenly spaced inputs on each stretch, with their squares; the same for every seed."""
    x = np.concatenate([np.linspace(*ends, 40) for ends in SEEN])
    np.testing.assert_allclose(own.train.x, np.stack([x, x**2], axis=1), rtol=1e-6)
    assert torch.equal(own.train.x, task("synthetic_regression", seed=1).train.x)
    grid = own.shifts["grid"][1].x
    np.testing.assert_allclose(grid[:, 0], np.linspace(-14, 22, 120), atol=1e-5)


def test_other_sets_lie_where_they_should(own):
    ood = {key: data.x for key, data in own.ood.items()}
    for x in (own.val.x, own.test.x, *ood.values()):
        torch.testing.assert_close(x[:, 1], x[:, 0] ** 2)

    def within(x: torch.Tensor, intervals: list[tuple[int, int]]) -> bool:
        inside = [(x[:, 0] >= a - 1e-5) & (x[:, 0] <= b + 1e-5) for a, b in intervals]
        assert all(bool(part.any()) for part in inside)
        return bool(torch.stack(inside).any(0).all())

    assert within(own.test.x, SEEN) and within(own.val.x, SEEN)
    assert within(ood["gap"], [(-6, 6), (10, 14)])
    assert within(ood["outside"], [(-14, -10), (18, 22)])
    assert own.near_ood == ("gap",)


def test_truth_is_the_network_it_says():
    own = task("synthetic_regression", like_published=False)
    net = mlp((2,), 1, hidden=(100, 100, 100)).double()
    layers = synthetic._draw_network(100.0, generator(0, "synthetic_regression", "network"))
    flat = torch.cat([tensor.flatten() for layer in layers for tensor in layer])
    torch.nn.utils.vector_to_parameters(flat, net.parameters())
    x = own.shifts["grid"][1].x.double()
    with torch.no_grad():
        torch.testing.assert_close(net(x), own.truth(x), rtol=1e-10, atol=1e-12)


def test_network_has_the_stated_prior():
    """20,601 weights have standard deviation 1 / sqrt(precision), 4 standard errors (rate 6e-5)."""
    layers = synthetic._draw_network(25.0, generator(0, "some", "network"))
    flat = torch.cat([tensor.flatten() for layer in layers for tensor in layer])
    assert len(flat) == 20_601
    assert float(flat.std()) == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(2 * len(flat)))


def test_functions_are_as_large_as_the_published_one(monkeypatch):
    """Its largest value is 0.34; a draw without choice is beyond 0.5 in 99 of 100 cases."""
    for seed in range(5):
        own = task("synthetic_regression", seed=seed)
        grid = own.shifts["grid"][1].x
        assert 0.2 <= float(own.truth(grid).abs().max()) <= 0.5
        first = task("synthetic_regression", seed=seed, like_published=False)
        assert float(first.truth(grid).abs().max()) > 0.5
    monkeypatch.setattr(synthetic, "MAX_DRAWS", 20)
    with pytest.raises(ValueError, match="none of 20 functions with `prior_precision` 4 of"):
        task("synthetic_regression", prior_precision=4.0)


def test_bad_precision():
    with pytest.raises(ValueError, match="`prior_precision` of synthetic_regression must be a num"):
        task("synthetic_regression", prior_precision=0.0)
