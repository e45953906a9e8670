"""Predictors that are symmetric by construction: group averages, canonicalisation, escnn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.rng import generator
from polymode.equivariance import group
from polymode.equivariance.average import GroupAverage, averaged
from polymode.equivariance.canonicalisation import Canonical, canonicalised, small_score
from polymode.equivariance.steerable import Steerable, escnn_is_installed, steerable


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def along(module: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([module(moved) for moved in group(name).orbit(x)])


def plain(inputs: int = 64, outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Flatten(), nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("name", ["C2", "C4", "D4"])
def test_group_averages_are_invariant_and_means_of_probabilities(name) -> None:
    x, net = drawn(5, 1, 8, 8), plain()
    found = along(GroupAverage(net, name), name, x)
    torch.testing.assert_close(found, found[:1].expand_as(found), atol=1e-13, rtol=0)
    expected = along(net, name, x).softmax(-1).mean(0)
    torch.testing.assert_close(found[0].exp(), expected)
    assert (along(net, name, x) - net(x)).abs().max() > 0.01


def test_group_averages_of_values_follow_the_representation() -> None:
    solid = group("SO3-tetrahedral->input")
    x, net = drawn(4, 6), plain(6, 3)
    module = GroupAverage(net, solid, classes=False)
    with torch.no_grad():
        expected = solid.orbit_of_outputs(module(x))
        found = torch.stack([module(moved) for moved in solid.orbit(x)])
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)
    with pytest.raises(ValueError, match="classes=False"):
        GroupAverage(net, solid)


@pytest.mark.parametrize("name", ["C2", "C4", "D4"])
@pytest.mark.parametrize("training", [True, False])
def test_canonicalised_networks_are_exactly_invariant(name, training) -> None:
    """Whatever the weights are, trained or not, and the choice is not always the same element."""
    x = drawn(12, 1, 8, 8)
    torch.manual_seed(2)
    module = Canonical(plain(), small_score((1, 8, 8)).double(), name).train(training)
    found = along(module, name, x)
    torch.testing.assert_close(found, found[:1].expand_as(found), atol=1e-12, rtol=0)
    assert len(module.chosen(x).unique()) > 1
    moved = group(name)
    back = [moved.table[module.chosen(y), i] for i, y in enumerate(moved.orbit(x))]
    assert all(torch.equal(each, back[0]) for each in back)  # the same image is chosen


def test_canonical_values_follow_the_representation() -> None:
    solid = group("SO3-octahedral->input")
    x = drawn(6, 6)
    score = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    module = Canonical(plain(6, 3), score, solid).eval()
    with torch.no_grad():
        expected = solid.orbit_of_outputs(module(x))
        found = torch.stack([module(moved) for moved in solid.orbit(x)])
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_the_score_learns_and_interpolation_costs_exactness() -> None:
    """The straight-through weights pass a gradient on; under C8 the orbits of turned images are
    others, and predictions differ."""
    x = drawn(20, 1, 12, 12)
    torch.manual_seed(3)
    module = Canonical(plain(144), small_score((1, 12, 12)).double(), "C8")
    module(x).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in module.score.parameters() if p.ndim > 1)
    found = along(module.eval(), "C8", x)
    torch.testing.assert_close(found[2], found[0], atol=1e-9, rtol=0)  # a quarter turn
    assert (found[1] - found[0]).abs().max() > 0.01


def test_ensembles_of_both_are_fitted_as_any_other() -> None:
    task = pm.task("digits")
    for make in (canonicalised(pm.nets.lenet, "C4"), averaged(pm.nets.lenet, "C4")):
        post = pm.fit("deep_ensemble", net=make, task=task, num_modes=2, epochs=1, seed=0,
                      batch_size=256, progress="silent")  # fmt: skip
        x = task.test.head(10)[0]
        first, second = (post.predict(each).mean for each in (x, x.rot90(1, (2, 3))))
        torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


def test_without_escnn_the_way_to_get_it_is_said(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps escnn"):
        steerable("C4")((1, 8, 8), 3)
    with pytest.raises(ValueError, match="for Ck, got 'D4'"):
        steerable("D4")


@pytest.mark.skipif(not escnn_is_installed(), reason="escnn is an optional extra")
@pytest.mark.cpu_seconds(20)
def test_escnn_networks_are_invariant_to_quarter_turns() -> None:
    torch.manual_seed(0)
    module = Steerable((1, 8, 8), 3, order=4, fields=(1, 2)).eval()
    x = drawn(4, 1, 8, 8).float()
    found = along(module, "C4", x)
    torch.testing.assert_close(found, found[:1].expand_as(found), atol=1e-5, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(module.exported()(x), found[0], atol=1e-5, rtol=0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="sides of at least 8"):
        small_score((1, 6, 6))
    with pytest.raises(ValueError, match="`temperature` of Canonical must be > 0"):
        Canonical(plain(), plain(), "C4", temperature=0.0)
    with pytest.raises(ValueError, match="not closed"):
        Canonical(plain(), plain(), "turns-haar-3")
