"""Acting and removing: functions stay, canonical forms are one per orbit."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import polymode as pm
from polymode import symmetry as sym
from polymode.stack.stack import Stack

from .made_up import ALL, inputs, outputs_of, randomised

PLAIN = settings(
    deadline=None, max_examples=4, derandomize=True, suppress_health_check=list(HealthCheck)
)


@functools.cache
def case(name: str) -> tuple[Stack, sym.Symmetries, Tensor, Tensor]:
    make, shape = ALL[name]
    stack = randomised(make, 2)
    x = inputs(shape)
    return stack, sym.find(stack, shape), x, outputs_of(stack, x)


def close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() <= 1e-10 * other.norm())


def equal(one: Stack, other: Stack, within: float = 1e-8) -> bool:
    mine, theirs = one.tensors(), other.tensors()
    return all(torch.allclose(mine[n], theirs[n], rtol=within, atol=within) for n in mine)


@pytest.mark.parametrize("name", ALL)
@PLAIN
@given(seed=st.integers(0, 2**30), spread=st.floats(0.0, 1.5))
def test_functions_stay(name: str, seed: int, spread: float) -> None:
    """Any permutation and scaling of any network, an own one for each member."""
    stack, found, x, outputs = case(name)
    moved = sym.apply(stack, sym.random_element(found, 2, seed=seed, spread=spread), found)
    assert close(outputs_of(moved, x), outputs)
    assert not found.groups or not equal(moved, stack, 1e-3)


@pytest.mark.parametrize("name", ALL)
@PLAIN
@given(seed=st.integers(0, 2**30), sort=st.sampled_from(["first", "norm", "mean"]))
def test_the_canonical_form_is_one_per_orbit(name: str, seed: int, sort: str) -> None:
    """Idempotent, equal for all that symmetries make of a network, and the same function."""
    stack, found, x, outputs = case(name)
    one = sym.canonical(stack, found, sort=sort)
    moved = sym.apply(stack, sym.random_element(found, 2, seed=seed), found)
    assert close(outputs_of(one, x), outputs)
    assert equal(sym.canonical(moved, found, sort=sort), one)
    assert equal(sym.canonical(one, found, sort=sort), one, 1e-12)


def test_incoming_weights_have_norm_one_and_descend() -> None:
    stack, found, _, _ = case("lenet")
    form = sym.canonical(stack, found)
    for name in ("0.weight", "3.weight", "7.weight", "9.weight"):
        rows = form.params[name].detach().flatten(2)
        assert torch.allclose(rows.norm(dim=2), torch.ones(()).double(), rtol=1e-12)
        assert (rows[:, :-1, 0] >= rows[:, 1:, 0]).all()
    means = sym.canonical(stack, found, sort="mean").params["7.weight"].detach().mean(2)
    assert (means[:, :-1] >= means[:, 1:]).all()


def test_gains_become_plus_or_minus_one() -> None:
    """A negative gain keeps its sign, a gain of 0 its place; running statistics follow."""
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    stack = randomised(lambda: net, 1)
    with torch.no_grad():
        stack.params["1.weight"][0, :3] = torch.tensor([-2.0, 0.0, 3.0])
    form, x = sym.canonical(stack), inputs((3,))
    assert sorted(form.params["1.weight"][0].round(decimals=12).tolist())[:2] == [-1, 0]
    assert form.params["1.weight"][0].abs().round(decimals=12).tolist().count(1) == 5
    assert close(form(x), stack(x))
    assert not torch.allclose(form.buffers["1.running_var"], stack.buffers["1.running_var"])


@pytest.mark.parametrize("sort", ["first", "norm", "mean"])
def test_dead_units_and_ties(sort) -> None:
    """Zero rows, zero columns, equal rows and equal first weights: nothing is divided by 0, and
    the form is still one per orbit."""
    stack = randomised(lambda: pm.nets.mlp((4,), 2, hidden=(7, 6)), 2)
    with torch.no_grad():
        first, bias = stack.params["0.weight"], stack.params["0.bias"]
        first[:, 0] = 0  # dead but for its bias
        first[:, 1], bias[:, 1] = 0, 0  # dead: weights that read it are all there is
        first[:, 2], bias[:, 2] = 0, 0
        stack.params["2.weight"][:, :, 2] = 0  # nothing at all
        first[:, 3], bias[:, 3] = 2 * first[:, 4], 2 * bias[:, 4]  # equal after scaling
        first[:, 5:, 0] = 0  # ties of the first weight
    found, x = sym.find(stack), inputs((4,))
    form = sym.canonical(stack, found, sort=sort)
    moved = sym.apply(stack, sym.random_element(found, 2, seed=5), found)
    assert all(torch.isfinite(t).all() for t in form.params.values())
    assert close(form(x), stack(x)) and close(moved(x), stack(x))
    assert equal(sym.canonical(moved, found, sort=sort), form)


def test_parts_of_it_can_be_left_out() -> None:
    stack, found, x, outputs = case("residual")
    scaled = sym.canonical(stack, found, sort=None)
    ordered = sym.canonical(stack, found, scale=False)
    assert close(scaled(x), outputs) and close(ordered(x), outputs)
    assert torch.equal(
        ordered.params["stem.bias"].sort(1).values, stack.params["stem.bias"].sort(1).values
    )
    assert (
        torch.sign(scaled.params["stem.weight"]) == torch.sign(stack.params["stem.weight"])
    ).all()
    with pytest.raises(ValueError, match="`sort` of canonical must be None or one of first"):
        sym.canonical(stack, found, sort="frist")


def test_single_precision_stays_single() -> None:
    stack = Stack(lambda: pm.nets.lenet((1, 8, 8), 3), 3)
    found = sym.find(stack, (1, 8, 8))
    form, x = sym.canonical(stack, found), inputs((1, 8, 8)).float()
    moved = sym.apply(stack, sym.random_element(found, 3), found)
    assert form.dtype == torch.float32
    assert torch.allclose(form(x), stack(x), rtol=1e-4, atol=1e-5)
    assert equal(sym.canonical(moved, found), form, 1e-5)


def test_the_networks_that_are_given_stay() -> None:
    stack, found, _, _ = case("resnet8")
    before = {name: tensor.clone() for name, tensor in stack.tensors().items()}
    sym.canonical(stack, found)
    sym.align(stack, 0, found, scale=False)
    sym.apply(stack, sym.random_element(found, 2), found)
    assert all(torch.equal(before[name], tensor) for name, tensor in stack.tensors().items())


def test_chosen_elements() -> None:
    """New unit k is old unit p[k]; scales multiply incoming weights, outgoing ones by 1/s."""
    stack = randomised(lambda: pm.nets.mlp((3,), 2, hidden=(4,)), 2)
    found = sym.find(stack)
    orders, scales = torch.tensor([[2, 0, 3, 1], [0, 1, 3, 2]]), torch.rand(2, 4) + 0.5
    chosen = sym.element(found, 2, permutations={"0": orders}, scales={"0": scales})
    moved = sym.apply(stack, chosen, found)
    for m in range(2):
        rows = (scales[m].double()[:, None] * stack.params["0.weight"][m])[orders[m]]
        columns = (stack.params["2.weight"][m] / scales[m].double())[:, orders[m]]
        assert torch.allclose(moved.params["0.weight"][m], rows, rtol=1e-14)
        assert torch.allclose(moved.params["2.weight"][m], columns, rtol=1e-14)
    found = sym.find(pm.nets.optunet((1, 28, 28), 10))
    swap = sym.element(
        found, permutations={"0 blocks": [1, 0], "3": [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]}
    )
    assert len(torch.unique(swap.order)) == found.num_units


@pytest.mark.parametrize(
    "options, message",
    [
        ({"permutations": {"0": [0, 1, 1, 2]}}, "must hold each of 0..3 once"),
        ({"permutations": {"0": [0, 1]}}, r"must have shape \(4,\) or \(1, 4\), got \(2,\)"),
        ({"permutations": {"o": [0, 1]}}, "unknown group 'o' in `permutations`"),
        ({"scales": {"0": [1.0, 2.0, -1.0, 1.0]}}, "must be positive and finite, got -1"),
        ({"scales": {"9": 1.0}}, "unknown group '9' in `scales`"),
    ],
)
def test_elements_that_are_none_are_refused(options: dict[str, Any], message: str) -> None:
    found = sym.find(pm.nets.mlp((3,), 2, hidden=(4,)))
    with pytest.raises(ValueError, match=message):
        sym.element(found, **options)


def test_posteriors_modules_and_bad_networks() -> None:
    task = pm.task("two_moons")
    post = pm.fit("sghmc", net=pm.nets.mlp, task=task, num_modes=2, samples_per_mode=3, epochs=4)
    form, x = sym.canonical(post), task.test.x[:5]
    expected = torch.stack([draw(x) for draw in post.draws()], 1).flatten(0, 1)
    assert len(form) == 6 and torch.allclose(form(x), expected, rtol=1e-4, atol=1e-5)
    net = functools.partial(pm.nets.mlp, dropout=0.1)
    noisy = pm.fit("dropout", net=net, task=task, epochs=1)
    with pytest.raises(ValueError, match="samples of dropout are noise.*post.stack"):
        sym.canonical(noisy)
    assert len(sym.canonical(noisy.stack)) == 1
    assert len(sym.canonical([pm.nets.mlp((3,), 2), pm.nets.mlp((3,), 2)])) == 2
    broken = Stack(lambda: pm.nets.mlp((3,), 2), 3)
    with torch.no_grad():
        broken.params["2.bias"][2, 0] = math.inf
    for act in (sym.canonical, sym.align):
        with pytest.raises(ValueError, match="'2.bias' holds NaN or infinity in 1 of 3"):
            act(broken)
