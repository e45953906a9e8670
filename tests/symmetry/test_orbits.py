"""Canonical forms are one per orbit also where keys agree: alike units, zeros, dead units."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor, nn

from polymode import symmetry as sym
from polymode.stack.stack import Stack


def two_layers(first: list, second: list, out: list | None = None) -> nn.Module:
    """ReLU networks without biases from the matrices given."""
    layers: list[nn.Module] = []
    for matrix in [m for m in (first, second, out) if m is not None]:
        weight = torch.tensor(matrix, dtype=torch.float64)
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).double()
        layer.weight.data = weight
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def assert_one_form(net: nn.Module, sort: str, seeds: int = 8) -> None:
    """Every element of the orbit that is drawn has the same form, and the form its function."""
    found = sym.find(net)
    form = sym.canonical(net, found, sort=sort)
    for seed in range(seeds):
        moved = sym.apply(net, sym.random_element(found, seed=seed), found)
        other = sym.canonical(moved, found, sort=sort)
        for name, tensor in {**form.params, **form.buffers}.items():
            torch.testing.assert_close({**other.params, **other.buffers}[name], tensor)
    x = torch.randn(6, *_shape(net), dtype=torch.float64)
    torch.testing.assert_close(form(x)[0], net(x))


def _shape(net: nn.Module) -> tuple[int, ...]:
    return (net[0].in_features,)


SORTS = pytest.mark.parametrize("sort", ["first", "norm", "mean"])


@SORTS
def test_alike_units_with_equal_outgoing_norms(sort) -> None:
    assert_one_form(two_layers([[1, 2], [1, 2], [0.5, 1]], [[3, 4, 1], [4, -3, 2]]), sort)


@SORTS
def test_alike_units_whose_outgoing_weights_differ_by_order_alone(sort) -> None:
    """Rows (3, 4) and (4, 3) of the units' readers, which themselves are not in order yet."""
    net = two_layers([[1, 2], [1, 2]], [[3, 4], [4, 3]], [[1, 5], [5, 2]])
    assert_one_form(net, sort)
    three = two_layers([[1, 2]] * 3, [[1, 2, 3], [2, 3, 1], [3, 1, 2]], [[1, 5, 7], [5, 2, 9]])
    assert_one_form(three, sort)


@SORTS
def test_a_first_layer_of_zeros(sort) -> None:
    """Eight units have too many orders to try; their outgoing weights tell them apart."""
    net = two_layers([[0, 0]] * 8, torch.randn(3, 8).tolist(), torch.randn(2, 3).tolist())
    assert_one_form(net, sort)


@SORTS
def test_layers_of_zeros_around_what_is_left(sort) -> None:
    """Units without incoming weights take their scale from what reads them, once it is known."""
    zeros = [[0.0] * 2] * 3
    assert_one_form(two_layers(zeros, torch.zeros(3, 3).tolist(), torch.randn(2, 3).tolist()), sort)


@SORTS
def test_dead_units_before_a_normalisation(sort) -> None:
    """Their scale shows in the running variance alone, (v + eps) s^2 - eps."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)
    ).double()
    with torch.no_grad():
        net[0].weight[[1, 3]] = 0.0
        net[1].running_var.uniform_(0.5, 2)
        net[1].running_mean.normal_()
        net[1].weight.normal_()
        net[1].bias.normal_()
    net.eval()
    assert_one_form(net, sort)
    variance = sym.canonical(net, sort=None).buffers["1.running_var"][0]
    torch.testing.assert_close(variance[[1, 3]] + net[1].eps, torch.ones(2, dtype=torch.float64))


@SORTS
def test_blocks_with_alike_first_units(sort) -> None:
    """Two groups of a convolution whose first layers agree and whose others do not."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 1, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(6, 2),
    ).double()  # fmt: skip
    with torch.no_grad():
        net[0].weight[2:], net[0].bias[2:] = net[0].weight[:2], net[0].bias[:2]
    found = sym.find(net, (2, 1, 1))
    form = sym.canonical(net, found, sort=sort)
    for seed in range(8):
        moved = sym.apply(net, sym.random_element(found, seed=seed), found)
        other = sym.canonical(moved, found, sort=sort)
        for name, tensor in form.params.items():
            torch.testing.assert_close(other.params[name], tensor)


def test_all_orders_of_small_networks_of_small_integers() -> None:
    """Integers make ties common. The oracle: two networks have one form if and only if some
    permutation takes the one to the other."""
    stream = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randint(0, 2, (rows, columns), generator=stream).double()

    weights = [(matrix(3, 2), matrix(3, 3), matrix(2, 3)) for _ in range(60)]
    nets = [two_layers(*(m.tolist() for m in three)) for three in weights]
    forms = sym.canonical(Stack(nets), sym.find(nets[0]), scale=False).params
    flat = torch.cat([tensor.flatten(1) for tensor in forms.values()], 1)
    orders = list(itertools.permutations(range(3)))
    orbits = [
        {
            tuple(torch.cat([a[p,].flatten(), b[q,][:, p].flatten(), c[:, q].flatten()]).tolist())
            for p in orders
            for q in orders
        }
        for a, b, c in weights
    ]
    for k, form in enumerate(flat):
        assert tuple(form.tolist()) in orbits[k]
        for j in range(k):
            assert torch.equal(form, flat[j]) == (not orbits[k].isdisjoint(orbits[j]))


def test_what_has_no_form_of_its_own_is_said() -> None:
    lonely = two_layers([[0, 0]] * 3, torch.randn(3, 3).tolist(), torch.zeros(2, 3).tolist())
    with pytest.warns(UserWarning, match="1 of 1 networks have weights between units .* not one"):
        sym.canonical(lonely)
    circulant = [[float((i - j) % 8 in (1, 3)) for j in range(8)] for i in range(8)]
    many = two_layers([[1.0, 1.0]] * 8, circulant, [[1.0] * 8])
    with pytest.warns(UserWarning, match="more than 720 orders"):
        sym.canonical(many, scale=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sym.canonical(two_layers(torch.randn(4, 2).tolist(), torch.randn(2, 4).tolist()))
