"""Networks of unusual parts: what is claimed holds, and what is missed is named.

Two oracles that know nothing of the graph: claimed elements act on random networks and must keep
the function; and the number of scalings is counted from derivatives. A vector c of logarithms of
scales, one per weight, is a symmetry if sum_p c_p w_p df/dw_p = 0 for all inputs and weights; the
dimension of all such c is the number of columns less the rank.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from polymode import symmetry as sym

from .unusual import EXPECTED


def random_network(make, seed: int) -> nn.Module:
    net = make().double().eval()
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.is_floating_point():
                parameter.copy_(torch.randn(parameter.shape, generator=stream).double())
    return net


def inputs(shape: tuple[int, ...], seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(16, *shape, generator=stream, dtype=torch.float64)


def after(net: nn.Module, element: sym.Element, found: sym.Symmetries) -> nn.Module:
    acted, moved = sym.apply(net, element, found), copy.deepcopy(net)
    moved.load_state_dict(
        {n: t[0] for n, t in {**acted.params, **acted.buffers, **acted.frozen}.items()},
        strict=False,
    )
    return moved


def count_scalings(make, shape: tuple[int, ...]) -> int:
    rows = []
    for seed in range(20):
        net = random_network(make, seed)
        weights = [p for p in net.parameters() if p.requires_grad]
        outputs = net(inputs(shape, seed)).flatten()
        for output in outputs[torch.linspace(0, len(outputs) - 1, 32).long()]:
            slopes = torch.autograd.grad(output, weights, retain_graph=True, allow_unused=True)
            parts = [
                (w * (0 * w if s is None else s)).flatten()
                for w, s in zip(weights, slopes, strict=True)
            ]
            rows.append(torch.cat(parts).detach())
    matrix = torch.stack(rows)
    sizes = torch.linalg.svdvals(matrix)
    return matrix.shape[1] - int((sizes > 1e-9 * sizes[0]).sum())


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_found_holds_and_what_is_missed_is_named(name) -> None:
    make, shape, permutations, complete, unseen = EXPECTED[name]
    found = sym.find(make(), shape)
    for seed in range(3):
        net, x = random_network(make, seed), inputs(shape, seed)
        element = sym.random_element(found, seed=seed)
        with torch.no_grad():
            torch.testing.assert_close(after(net, element, found)(x), net(x), rtol=1e-9, atol=1e-9)
    assert found.log_permutations == pytest.approx(math.log(permutations))
    if complete:
        assert found.num_scalings == count_scalings(make, shape)
        assert bool(found.unseen) == bool(unseen)
    assert any(unseen in line for line in found.unseen) or not unseen


@pytest.mark.parametrize("name", EXPECTED)
def test_forms_and_costs_are_the_same_on_an_orbit(name) -> None:
    make, shape, *_ = EXPECTED[name]
    found, net = sym.find(make(), shape), random_network(make, 5)
    moved = after(net, sym.random_element(found, seed=3), found)
    for sort in ("first", "norm"):
        forms = [sym.canonical(each, found, sort=sort) for each in (net, moved)]
        for one, other in zip(forms[0].params.values(), forms[1].params.values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    costs = [sym.representation_cost(each, found) for each in (net, moved)]
    assert max(float(cost.residual) for cost in costs) < 1e-11
    torch.testing.assert_close(costs[0].minimum, costs[1].minimum, rtol=1e-9, atol=1e-12)
