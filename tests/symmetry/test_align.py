"""Alignment: against the truth, against matching layer by layer, and against all permutations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import nn

import polymode as pm
from polymode import symmetry as sym
from polymode.stack.stack import Stack
from polymode.symmetry.align import _Matching
from polymode.symmetry.stacked_tensors import tensors_of

from .made_up import ALL, Net, inputs, randomised


def distance(stack: Stack, reference: Stack) -> torch.Tensor:
    parts = [(t - reference.params[n]).flatten(1).square().sum(1) for n, t in stack.params.items()]
    return torch.stack(parts).sum(0).sqrt().detach()


@pytest.mark.parametrize("name", ["mlp", "optunet", "resnet8", "vit", "grouped", "joined", "unet"])
def test_a_permuted_and_scaled_copy_is_brought_back(name) -> None:
    """With some noise, so that the match is not exact."""
    make, shape = ALL[name]
    stack = randomised(make, 3)
    found = sym.find(stack, shape)
    noisy = stack.clone()
    with torch.no_grad():
        for tensor in noisy.params.values():
            tensor += 1e-4 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
    moved = sym.apply(noisy, sym.random_element(found, 3, seed=2), found)
    for m in range(3):
        back = sym.align(moved[m : m + 1], stack[m : m + 1], found)
        assert distance(back, sym.canonical(stack[m : m + 1], found, sort=None)).max() < 0.02
    x = inputs(shape)
    assert torch.allclose(sym.align(moved, stack[:1], found)(x), noisy(x), rtol=1e-9, atol=1e-11)


def layer_by_layer(tensors: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> float:
    """Distance after each hidden layer of an MLP is matched by its incoming weights and biases."""
    tensors = {name: tensor.copy() for name, tensor in tensors.items()}
    layers = sorted({int(name.split(".")[0]) for name in tensors})
    for layer, following in zip(layers, layers[1:], strict=False):
        gain = reference[f"{layer}.weight"] @ tensors[f"{layer}.weight"].T
        gain += np.outer(reference[f"{layer}.bias"], tensors[f"{layer}.bias"])
        order = linear_sum_assignment(gain, maximize=True)[1]
        for kind in ("weight", "bias"):
            tensors[f"{layer}.{kind}"] = tensors[f"{layer}.{kind}"][order]
        tensors[f"{following}.weight"] = tensors[f"{following}.weight"][:, order]
    return float(np.sqrt(sum(((tensors[n] - reference[n]) ** 2).sum() for n in tensors)))


@pytest.mark.parametrize("scale", [False, True])
def test_it_is_not_worse_than_matching_layer_by_layer(scale) -> None:
    """Independent networks; better for most of them."""
    stack = randomised(lambda: pm.nets.mlp((5,), 3, hidden=(12, 10, 8)), 12)
    start = sym.canonical(stack, sort=None) if scale else stack
    aligned = sym.align(stack, 0, scale=scale)
    after = distance(aligned, start[:1])
    names = list(stack.params)
    rows = [{n: start.params[n][m].detach().numpy() for n in names} for m in range(12)]
    greedy = np.array([layer_by_layer(row, rows[0]) for row in rows])
    assert (after.numpy() <= greedy + 1e-9).all() and after[0] < 1e-9
    assert (after.numpy()[1:] < greedy[1:] - 1e-3).sum() >= 8
    assert (after < distance(start, start[:1]))[1:].all()


def test_one_layer_is_matched_exactly() -> None:
    """The best of all 720 permutations."""
    stack = randomised(lambda: pm.nets.mlp((2,), 2, hidden=(6,)), 4)
    found = sym.find(stack)
    after = distance(sym.align(stack, 0, found, scale=False), stack[:1])
    orders = torch.tensor(list(itertools.permutations(range(6))))
    for m in range(1, 4):
        copies = stack[[m] * 720]
        moved = sym.apply(copies, sym.element(found, 720, permutations={"0": orders}), found)
        assert after[m].item() == pytest.approx(distance(moved, stack[:1]).min().item(), rel=1e-12)


def test_aligned_networks_do_not_depend_on_their_own_order() -> None:
    """A second canonical form: what the orbit of a network is aligned to is one network."""
    stack = randomised(lambda: pm.nets.mlp((5,), 3, hidden=(6,)), 3)
    found = sym.find(stack)
    moved = sym.apply(stack, sym.random_element(found, 3, seed=4), found)
    one, other = (sym.align(s, stack[:1], found) for s in (stack, moved))
    assert all(
        torch.allclose(one.params[n], other.params[n], rtol=1e-8, atol=1e-8) for n in one.params
    )


def test_bad_references_are_refused() -> None:
    stack = randomised(lambda: pm.nets.mlp((5,), 3), 3)
    with pytest.raises(ValueError, match="must be below 3, the number of networks, got 3"):
        sym.align(stack, 3)
    with pytest.raises(ValueError, match="must be one network, got 3"):
        sym.align(stack, stack)
    with pytest.raises(ValueError, match="must have the architecture of the networks"):
        sym.align(stack, pm.nets.mlp((4,), 3))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kept", ["q", "v"])
def test_blocks_are_matched_by_all_groups_of_their_units(kept, seed) -> None:
    """Heads of attention: queries and keys of a head are one group, values another. Whichever of
    the two is like the reference's decides on the order of the heads."""
    make, shape = ALL["attending"]
    reference = randomised(make, 1)
    found = sym.find(reference, shape)
    moved = sym.apply(reference, sym.random_element(found, seed=seed, spread=0.0), found)
    with torch.no_grad():
        for name, tensor in moved.params.items():
            if name.split(".")[0] in (("v", "back") if kept == "q" else ("q", "k")):
                tensor.zero_()
    back = sym.align(moved, reference, found, scale=False)
    for name in ("q.weight", "k.weight") if kept == "q" else ("v.weight", "back.weight"):
        torch.testing.assert_close(back.params[name], reference.params[name])


def shared_layer() -> nn.Module:
    """Units before and after one weight are the same ones, so that a permutation acts twice."""

    def run(net, x):
        h = F.relu(net.stem(x))
        for _ in range(3):
            h = F.relu(net.mix(h))
        return net.out(h)

    return Net(run, stem=nn.Linear(3, 6), mix=nn.Linear(6, 6), out=nn.Linear(6, 2))


def test_a_match_of_units_on_both_sides_of_a_weight_is_never_for_the_worse() -> None:
    """Each match of 40 networks keeps or raises the inner product with the reference."""
    stack = randomised(shared_layer, 41)
    found = sym.find(stack, (3,))
    tensors = tensors_of(stack)
    reference = {name: tensor[:1] for name, tensor in tensors.items()}
    matching = _Matching(found, reference)
    rest = {name: tensor[1:] for name, tensor in tensors.items()}
    for group in found.groups:
        matched = matching._match(rest, group, matching._places(group))
        gain = matching.inner_product(matched) - matching.inner_product(rest)
        assert gain.min() >= -1e-12 and gain.max() > 0
