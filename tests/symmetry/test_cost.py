"""Representation cost: against a geometric programme solved by CVXPY and by L-BFGS, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

from polymode import nets
from polymode import symmetry as sym
from polymode.symmetry.apply import scaled

from .made_up import NETS, grouped, inputs, joined, randomised, residual


def chain(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# Masses between named sets of units, written down by hand: name of the weight -> (writes, reads).
CHAIN = {"0.weight": ("a", None), "2.weight": ("b", "a"), "4.weight": (None, "b")}
DEEP = {
    "0.weight": ("a", None), "2.weight": ("b", "a"), "4.weight": ("c", "b"),
    "6.weight": ("d", "c"), "8.weight": (None, "d"),
}  # fmt: skip
STREAM = {
    "stem.weight": ("x", None), "first.0.weight": ("a", "x"), "second.0.weight": ("x", "a"),
    "first.1.weight": ("b", "x"), "second.1.weight": ("x", "b"), "out.weight": (None, "x"),
}  # fmt: skip
CASES: list[tuple[Callable[[], nn.Module], dict[str, Any]]] = [
    (lambda: chain(5, 8, 6, 4), CHAIN),
    (lambda: chain(3, 4, 3, 4, 3, 2), DEEP),
    (residual, STREAM),
]


def by_hand(tensors: dict[str, torch.Tensor], structure: dict[str, Any]) -> tuple[Any, Any]:
    """Logarithms of masses and exponents of the programme, rows of a matrix."""
    places: dict[tuple[str, int], int] = {}
    logs, rows = [], []
    for name, (writes, reads) in structure.items():
        for (o, i), weight in np.ndenumerate(tensors[name].numpy()):
            row: dict[int, int] = {}
            for units, unit, sign in ((writes, o, 1), (reads, i, -1)):
                if units is not None:
                    place = places.setdefault((units, unit), len(places))
                    row[place] = row.get(place, 0) + sign
            logs.append(math.log(weight**2))
            rows.append(row)
    matrix = np.zeros((len(rows), len(places)))
    for k, row in enumerate(rows):
        for place, sign in row.items():
            matrix[k, place] = sign
    return np.array(logs), matrix


@pytest.mark.cpu_seconds(20)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # at 1e-9; compared to 1e-8
@pytest.mark.parametrize("make, structure", CASES, ids=["chain", "deep", "residual"])
def test_it_is_the_minimum_that_cvxpy_finds(make, structure) -> None:
    """m* to 1e-8, for 24 random networks in all, 8 of them residual."""
    cp = pytest.importorskip("cvxpy", reason="CVXPY is no dependency: pip install cvxpy")
    stack = randomised(make, 8, seed=1)
    cost = sym.representation_cost(stack)
    for mode in range(8):
        logs, matrix = by_hand({n: t[mode].detach() for n, t in stack.params.items()}, structure)
        u = cp.Variable(matrix.shape[1])
        problem = cp.Problem(cp.Minimize(cp.log_sum_exp(logs + 2 * matrix @ u)))
        tight = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
        problem.solve(solver=cp.CLARABEL, **tight)
        assert cost.minimum[mode].item() == pytest.approx(math.exp(problem.value), rel=1e-8)


@pytest.mark.parametrize("make, structure", CASES, ids=["chain", "deep", "residual"])
def test_no_scaling_does_better(make, structure) -> None:
    """The programme written down by hand has gradient 0 at the solution and the same value there;
    Newton's method from elsewhere ends at the same value."""
    stack = randomised(make, 3, seed=2)
    cost = sym.representation_cost(stack)
    balanced = sym.apply(stack, cost.element)
    for mode in range(3):
        logs, matrix = by_hand({n: t[mode].detach() for n, t in balanced.params.items()}, structure)
        masses = np.exp(logs)
        assert masses.sum() == pytest.approx(cost.minimum[mode].item(), rel=1e-13)
        assert np.abs(matrix.T @ masses).max() < 1e-11 * masses.sum()
        u = 0.3 * np.sin(np.arange(matrix.shape[1]))
        for _ in range(60):
            weights = np.exp(logs + 2 * matrix @ u)
            step = np.linalg.solve(4 * (matrix.T * weights) @ matrix, -2 * matrix.T @ weights)
            u += step / max(1.0, np.abs(step).max())
        assert np.exp(logs + 2 * matrix @ u).sum() == pytest.approx(masses.sum(), rel=1e-12)


def test_one_hidden_layer_is_balanced_in_closed_form() -> None:
    """m* = 2 Σ_i ‖incoming_i‖ ‖outgoing_i‖, by the inequality of means."""
    stack = randomised(lambda: chain(3, 7, 2), 4)
    cost = sym.representation_cost(stack)
    into, out = stack.params["0.weight"].detach(), stack.params["2.weight"].detach()
    expected = 2 * (into.norm(dim=2) * out.norm(dim=1)).sum(1)
    assert torch.allclose(cost.minimum, expected, rtol=1e-13)
    assert (cost.residual <= 1e-12).all()


def test_biases_count_if_asked_for() -> None:
    stack = randomised(lambda: chain(3, 7, 2), 2)
    cost = sym.representation_cost(stack, biases=True)
    into = (stack.params["0.weight"] ** 2).sum(2) + stack.params["0.bias"] ** 2
    out = stack.params["2.weight"].norm(dim=1)
    fixed = (stack.params["2.bias"] ** 2).sum(1)
    assert torch.allclose(cost.minimum, 2 * (into.sqrt() * out).sum(1) + fixed, rtol=1e-13)


@pytest.mark.parametrize(
    "make", [residual, joined, grouped, NETS["resnet8-fixup"][0], NETS["vit"][0]]
)
def test_it_is_the_same_on_an_orbit_and_never_above_the_mass(make) -> None:
    stack = randomised(make, 2)
    shape = {residual: (3,), joined: (3,), grouped: (2, 4, 4)}.get(make)
    shape = shape or next(s for m, s in NETS.values() if m is make)
    found = sym.find(stack, shape)
    cost = sym.representation_cost(stack, found)
    moved = sym.apply(stack, sym.random_element(found, 2, seed=3), found)
    again = sym.representation_cost(moved, found)
    assert torch.allclose(cost.minimum, again.minimum, rtol=1e-12)
    assert (cost.excess > 0).all() and (cost.residual <= 1e-12).all() and not cost.degenerate
    x, balanced = inputs(shape), sym.apply(stack, cost.element, found)
    assert torch.allclose(stack(x), balanced(x), rtol=1e-10, atol=1e-12)
    assert sym.representation_cost(balanced, found).excess.abs().max() < 1e-11


def test_batch_norm_makes_it_an_infimum_and_this_is_said() -> None:
    """Convolutions before a BatchNorm vanish; the gain and what reads it are balanced."""
    net = lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))  # noqa: E731
    stack = randomised(net, 2)
    cost = sym.representation_cost(stack)
    assert cost.degenerate == ("0.weight",)
    assert torch.allclose(cost.vanishing, (stack.params["0.weight"] ** 2).sum((1, 2)))
    gain, out = stack.params["1.weight"].detach().abs(), stack.params["3.weight"].norm(dim=1)
    assert torch.allclose(cost.minimum, 2 * (gain * out).sum(1), rtol=1e-12)
    assert "1 tensors vanish" in repr(cost)


def test_dead_units_vanish() -> None:
    stack = randomised(lambda: chain(3, 4, 2), 2)
    with torch.no_grad():
        stack.params["0.weight"][1, 2] = 0
    cost = sym.representation_cost(stack)
    lost = (stack.params["2.weight"][1, :, 2] ** 2).sum()
    assert cost.vanishing[0] == 0 and cost.vanishing[1].item() == pytest.approx(lost.item())
    into, out = stack.params["0.weight"].norm(dim=2), stack.params["2.weight"].norm(dim=1)
    assert torch.allclose(cost.minimum, 2 * (into * out).sum(1).detach(), rtol=1e-12)


def test_deep_networks_need_few_sweeps() -> None:
    """Without the common factor per layer, 30 layers take 1,509 sweeps."""
    stack = randomised(lambda: chain(4, *[6] * 30, 3), 1)
    cost = sym.representation_cost(stack)
    assert cost.residual.max() <= 1e-12 and cost.sweeps.max() <= 60


def test_the_profile_has_the_mass_of_each_tensor() -> None:
    """Before: squared norms; at the minimum: those of the balanced networks."""
    stack = randomised(residual, 3)
    cost = sym.representation_cost(stack)
    balanced = sym.apply(stack, cost.element)
    for name, masses in cost.profile.items():
        for column, networks in enumerate((stack, balanced)):
            expected = networks.params[name].detach().square().flatten(1).sum(1)
            assert torch.allclose(masses[:, column], expected, rtol=1e-12)
    total = torch.stack(list(cost.profile.values())).sum(0)
    assert torch.allclose(total, torch.stack([cost.mass, cost.minimum], 1), rtol=1e-12)


def test_the_cost_along_training() -> None:
    """Without weight decay the mass is not at its minimum, and the curve has one row per moment."""
    stack = randomised(lambda: chain(3, 8, 2), 3)
    moments = [stack, sym.apply(stack, sym.representation_cost(stack).element)]
    curve = sym.cost_curve(moments)
    assert curve.mass.shape == (2, 3)
    assert torch.allclose(curve.minimum[0], curve.minimum[1], rtol=1e-12)
    assert (curve.excess[0] > 0.01).all() and curve.excess[1].abs().max() < 1e-11
    with pytest.raises(ValueError, match="at least one moment"):
        sym.cost_curve([])


def test_bad_input_is_named() -> None:
    stack = randomised(lambda: chain(3, 4, 2), 3)
    with torch.no_grad():
        stack.params["2.weight"][1, 0, 0] = math.nan
    with pytest.raises(ValueError, match="'2.weight' holds NaN or infinity in 1 of 3.*network 1"):
        sym.representation_cost(stack)
    with pytest.raises(ValueError, match="`tolerance` of representation_cost must be > 0, got 0"):
        sym.representation_cost(randomised(lambda: nets.mlp((3,), 2), 1), tolerance=0)


def test_excess_leaves_out_what_a_normalisation_lets_vanish() -> None:
    """Scaled by hand: weights before a BatchNorm by 7, which is free, and the gain by 3."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2, bias=False)
    ).double()
    with torch.no_grad():
        net[1].weight.uniform_(0.5, 2)
    first = sym.representation_cost(net)
    gain, out = net[1].weight.detach(), net[3].weight.detach()
    least = 2 * (gain.abs() * out.norm(dim=0)).sum()  # min of s² g² + |o|² / s²
    left = (gain**2).sum() + (out**2).sum()
    assert float(first.minimum) == pytest.approx(float(least))
    assert float(first.excess) == pytest.approx(float(left / least - 1))
    with torch.no_grad():
        net[0].weight.mul_(7)
    second = sym.representation_cost(net)
    assert float(second.vanishing) == pytest.approx(49 * float(first.vanishing))
    assert float(second.excess) == pytest.approx(float(first.excess))
    assert second.degenerate == ("0.weight",)


def _powers() -> dict[str, Any]:
    """Networks with several scalings of a weight, or powers of them."""
    from .unusual import EXPECTED

    names = ("gate", "square", "one gain", "rezero", "products summed", "halves", "outer product")
    return {name: EXPECTED[name][:2] for name in names}


@pytest.mark.parametrize("name", _powers())
def test_the_minimum_with_products_and_powers_is_that_of_a_general_optimiser(name) -> None:
    """BFGS over logarithms of scales, by the action of elements alone."""
    make, shape = _powers()[name]
    torch.manual_seed(3)
    net = make().double()
    found = sym.find(net, shape)
    cost = sym.representation_cost(net, found)
    tensors = {n: p.detach().unsqueeze(0) for n, p in net.named_parameters()}
    counted = [n for n in tensors if found.roles.get(n) != "bias"]

    def mass(u: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.tensor(u, requires_grad=True)
        scales = torch.cat([torch.zeros(1, dtype=torch.float64), logs]).exp().unsqueeze(0)
        acted = scaled(tensors, found, scales)
        total = sum((acted[n] ** 2).sum() for n in counted)
        total.backward()
        return float(total.detach()), logs.grad.numpy()

    start = np.zeros(found.num_scales - 1)
    best = optimize.minimize(mass, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    assert float(cost.minimum) == pytest.approx(best.fun, rel=1e-8)
    assert float(cost.residual) < 1e-11 and float(cost.mass) > float(cost.minimum)


def test_what_dies_by_turns_vanishes_too() -> None:
    """Unit 1 leads nowhere, and unit 0 to unit 3 of the next layer alone, which leads nowhere: the
    weights into both vanish, those into unit 0 after those into unit 3."""
    stack = randomised(lambda: chain(3, 4, 4, 2), 2)
    with torch.no_grad():
        stack.params["2.weight"][:, :, 1] = 0
        stack.params["2.weight"][:, :3, 0] = 0
        stack.params["4.weight"][:, :, 3] = 0
    cost = sym.representation_cost(stack)
    first, second = (stack.params[f"{layer}.weight"].detach() for layer in (0, 2))
    lost = (first[:, :2] ** 2).sum((1, 2)) + (second[:, 3] ** 2).sum(1)
    assert torch.allclose(cost.vanishing, lost, rtol=1e-12)
