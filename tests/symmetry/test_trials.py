"""The trial of what was found: planted false groups are caught, right ones stay."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polymode import symmetry as sym
from polymode.core.rng import generator
from polymode.symmetry import trials
from polymode.symmetry.apply import random_order
from polymode.symmetry.unit_groups import Group, Symmetries

from .made_up import Net


def verified(found: Symmetries, net: nn.Module, shape: tuple[int, ...]) -> Symmetries:
    return trials.verified(found, copy.deepcopy(net).to("meta").eval(), shape, False)


def merged(found: Symmetries, *names: str) -> Symmetries:
    """Plant a false group: the units of several groups as one."""
    units = np.concatenate([found.by_name[name].units for name in names], 1)
    rest = tuple(group for group in found.groups if group.name not in names)
    return replace(found, groups=(Group("planted", units), *rest))


def wide(units: int, first: str = "relu", second: str = "tanh") -> nn.Module:
    """Two kinds of units in one layer, which must not be mixed."""
    kinds = {"relu": F.relu, "tanh": torch.tanh, "late": lambda h: F.relu(h - 3)}
    return Net(
        lambda net, x: net.o(
            torch.cat([kinds[first](net.a(x)[:, :units]), kinds[second](net.a(x)[:, units:])], 1)
        ),
        a=nn.Linear(3, 2 * units), o=nn.Linear(2 * units, 2),
    )  # fmt: skip


@pytest.mark.parametrize("units", [1, 2, 3, 7])
@pytest.mark.parametrize("kinds", [("relu", "tanh"), ("relu", "late"), ("tanh", "late")])
def test_units_of_two_kinds_are_not_one_group(units, kinds) -> None:
    """Also where units are hard to reach: relu(h - 3) is 0 for nearly all usual inputs."""
    net = wide(units, *kinds)
    found = sym.find(net, (3,), check=False)
    if units > 1:
        planted = merged(found, *(group.name for group in found.groups))
    else:
        places = [p for p in found.places if p.name == "a.weight"][0]
        planted = replace(found, groups=(Group("planted", np.unique(places.label)[None]),))
    assert "planted (fails when tried)" in verified(planted, net, (3,)).unseen


@pytest.mark.parametrize("units", [2, 3, 5])
def test_units_that_belong_together_are_not_two_groups(units) -> None:
    """Of a(x) * b(x), units of both layers move together; apart, all but 1 in n! elements fail."""
    net = Net(
        lambda net, x: net.o(torch.cat([torch.tanh(net.a(x)), torch.tanh(net.b(x))], 1)),
        a=nn.Linear(3, units), b=nn.Linear(3, units), o=nn.Linear(2 * units, 2),
    )  # fmt: skip
    apart = sym.find(net, (3,), check=False)  # right here, wrong for the product
    assert len(apart.groups) == 2
    product = Net(
        lambda net, x: net.o((torch.tanh(net.a(x)) * torch.tanh(net.b(x))).repeat(1, 2)),
        a=nn.Linear(3, units), b=nn.Linear(3, units), o=nn.Linear(2 * units, 2),
    )  # fmt: skip
    named = verified(apart, product, (3,)).unseen
    assert {"a (fails when tried)", "b (fails when tried)"} <= set(named)


def test_blocks_that_do_not_change_places_are_dropped_and_the_rest_stays() -> None:
    """Two groups of a convolution that read different inputs; within them, units change places."""
    net = nn.Sequential(nn.Conv2d(4, 6, 1, groups=2), nn.ReLU(), nn.Conv2d(6, 2, 1))
    found = sym.find(net, (4, 2, 2), check=False)
    units = np.concatenate([group.units for group in found.groups])
    planted = replace(found, groups=(Group("0", units, "planted"),), blocks={"planted": 2})
    result = verified(planted, net, (4, 2, 2))
    assert result.unseen == ("planted (fails when tried)",)
    assert [group.units.shape for group in result.groups] == [(2, 3)] and not result.blocks


def test_scalings_are_dropped_layer_by_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    found = sym.find(net, check=False)
    silu = copy.deepcopy(net)
    silu[1] = nn.SiLU()
    result = verified(found, silu, (3,))
    assert result.unseen == ("scalings of 0 (fails when tried)",)
    assert result.num_scalings == 5 and result.log_permutations == found.log_permutations
    moved = sym.apply(silu.double(), sym.random_element(result), result)
    x = torch.randn(8, 3, dtype=torch.float64)
    torch.testing.assert_close(moved(x)[0], silu(x))


def test_a_false_group_passes_with_a_probability_below_one_in_ten_million() -> None:
    """Elements that keep the function are a subgroup, of index 2 at least: enough are drawn. The
    draws are independent and uniform: of 4,000 elements for two units, 1/2 +- 4 s.d. (.032) are the
    identity (false-alarm rate 6e-5)."""
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 2))
    found = sym.find(net)
    assert 0.5 ** trials.num_elements(found) < 1e-7
    for units, passing in ((3, 1 / 2), (4, 1 / 3), (5, 1 / 5), (64, 1 / 64)):
        one = nn.Sequential(nn.Linear(3, units), nn.ReLU(), nn.Linear(units, 2))
        assert passing ** trials.num_elements(sym.find(one)) < 1e-7
    orders = torch.cat(
        [random_order(found, 1, generator(k, "symmetry", n)) for n in range(40) for k in range(100)]
    )
    still = (orders[:, :3] == torch.arange(3)).all(1).double().mean()
    assert abs(still - 0.5) < 0.032


def test_every_unit_is_reached_as_often_as_elements_are_needed(monkeypatch) -> None:
    """Counted by itself: a network counts for a unit if taking the unit away changes outputs."""
    units = 6
    net = Net(
        lambda net, x: net.o(F.relu(net.a(x) - 2)), a=nn.Linear(3, units), o=nn.Linear(units, 2)
    )
    found = sym.find(net, (3,), check=False)
    alive = torch.zeros(units)
    stays = trials._Check._stays

    def counted(self, found, trial, network, number):
        h = trial.x @ trial.tensors["a.weight"].T + trial.tensors["a.bias"] - 2
        alive.add_((h > 0).any(0))
        return stays(self, found, trial, network, number)

    monkeypatch.setattr(trials._Check, "_stays", counted)
    assert not verified(found, net, (3,)).unseen
    assert alive.min() >= trials.num_elements(found)


def test_what_no_input_reaches_is_named() -> None:
    net = Net(
        lambda net, x: net.o(F.relu(-net.a(x).abs() - 1)), a=nn.Linear(3, 4), o=nn.Linear(4, 2)
    )
    assert sym.find(net, (3,)).unseen == ("a (not reached when tried)",)


def test_outputs_that_are_never_finite_have_no_symmetries() -> None:
    net = Net(
        lambda net, x: net.o(F.relu(net.a(x))) / torch.zeros(2), a=nn.Linear(3, 4),
        o=nn.Linear(4, 2),
    )  # fmt: skip
    found = sym.find(net, (3,))
    assert not found.groups and found.unseen == ("all symmetries (fails when tried)",)


def test_masks_that_are_given_are_used() -> None:
    """A mask of zeros would hide what is wrong behind it."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o = nn.Linear(3, 4), nn.Linear(4, 2)
            self.register_buffer("mask", torch.tensor([True, True, False, True]))

        def forward(self, x):
            return self.o(F.relu(self.a(x)) * self.mask)

    found = sym.find(Masked(), (3,), check=False)
    units = np.unique([p for p in found.places if p.name == "a.weight"][0].label)
    assert not found.groups and len(units) == 1  # held fixed
    assert not sym.find(Masked(), (3,)).unseen
