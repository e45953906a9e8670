"""The infinite ensemble in closed form: dense twins, symmetry at all times, finite ensembles."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from polymode.equivariance import group
from polymode.equivariance.infinite_ensemble import InfiniteEnsemble
from polymode.equivariance.kernels import (
    AvgPool,
    Conv,
    Dense,
    Erf,
    Flatten,
    GlobalAvgPool,
    ReLU,
    Serial,
)
from polymode.stack.stack import Stack

MLP = Serial(Dense(2**0.5, 0.1), ReLU(), Dense(2**0.5, 0.1), ReLU(), Dense(1.0, 0.1))
CNN = Serial(Conv(3, 1.5, 0.1), ReLU(), AvgPool(2), Conv(3, 1.5), Erf(), GlobalAvgPool(), Dense())
FLAT = Serial(Conv(3, 1.5, 0.1, padding="valid"), ReLU(), Flatten(), Dense())
TIMES = (0, 1, 2, 3, 30, 1e3, 1e5, math.inf)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_mean_and_covariance_are_those_of_the_formulas() -> None:
    """With matrix exponentials and inverses, as the papers write them."""
    x, y, new = drawn(8, 5), drawn(8, 2, seed=1), drawn(4, 5, seed=2)
    whole = InfiniteEnsemble(MLP, x, y, lr=0.7)
    nngp, ntk = MLP(torch.cat([x, new]))
    for t in (0.0, 0.5, 20.0, 1000.0):
        decay = torch.linalg.matrix_exp(-0.7 * t / 8 * ntk[:8, :8])
        gain = ntk[8:, :8] @ torch.linalg.inv(ntk[:8, :8]) @ (torch.eye(8).double() - decay)
        assert whole.mean(new, t) == pytest.approx(gain @ y, abs=1e-10)
        cross = gain @ nngp[:8, 8:]
        covariance = nngp[8:, 8:] + gain @ nngp[:8, :8] @ gain.mT - cross - cross.mT
        assert whole.covariance(new, t) == pytest.approx(covariance, abs=1e-10)
        at = whole.at(new)
        assert at.variance(t) == pytest.approx(covariance.diagonal(), abs=1e-10)
        apart = at.variance_of_difference(whole.at(new.roll(1, 0)), t)
        shifted = covariance.diagonal().roll(1) + covariance.diagonal()
        shifted -= 2 * covariance.roll(1, 1).diagonal()
        assert apart == pytest.approx(shifted, abs=1e-10)
    assert whole.mean(x, math.inf) == pytest.approx(y, abs=1e-8)


def test_steps_are_those_of_gradient_descent_on_functions() -> None:
    """f ← f − η/n Θ (f(X) − y), step by step; also where a step overshoots."""
    x, y, new = drawn(6, 3), drawn(6, seed=1), drawn(3, 3, seed=2)
    lr = 0.9 * InfiniteEnsemble(MLP, x, y, lr=1.0).max_lr
    whole = InfiniteEnsemble(MLP, x, y, lr=lr, dynamics="steps")
    ntk = MLP(torch.cat([x, new]), x).ntk
    values = torch.zeros(9).double()
    for t in range(6):
        assert whole.mean(new, t)[:, 0] == pytest.approx(values[6:], abs=1e-12)
        values = values - lr / 6 * ntk @ (values[:6] - y)
    with pytest.raises(ValueError, match=r"diverges with lr=.*it must be <"):
        InfiniteEnsemble(MLP, x, y, lr=2.3 * lr, dynamics="steps").mean(new, 1)
    with pytest.raises(ValueError, match="whole t, got 1.5"):
        whole.mean(new, 1.5)


@pytest.mark.parametrize(
    ("kernel", "which", "shape"),
    [(MLP, "C4@4x4", (16,)), (CNN, "D4", (1, 4, 4)), (FLAT, "C4", (2, 5, 5)), (MLP, "sign", (3,))],
)
@pytest.mark.parametrize("dynamics", ["flow", "steps"])
def test_full_orbits_make_the_mean_invariant_at_all_times(kernel, which, shape, dynamics) -> None:
    """In and out of distribution, with the whole Gram matrix and the orbit-reduced one, which agree
    to 1e-10; without augmentation the mean is not invariant."""
    acting = group(which)
    x, y = drawn(6, *shape), drawn(6, seed=1)
    x = x if which == "sign" else x.sign()
    how = {"lr": 0.5, "dynamics": dynamics}
    reduced = InfiniteEnsemble(kernel, x, y, group=acting, **how)
    whole = InfiniteEnsemble(kernel, x, y, group=acting, reduced=False, **how)
    plain = InfiniteEnsemble(kernel, x, y, **how)
    assert reduced.reduced and not whole.reduced
    for new in (drawn(4, *shape, seed=3).sign(), 3 * drawn(4, *shape, seed=4), x[:2]):
        orbit = acting.orbit(new)
        for t in TIMES:
            means = [
                each.mean(orbit.flatten(0, 1), t).view(len(acting), -1)
                for each in (reduced, whole, plain)
            ]
            for mean in means[:2]:
                assert (mean - mean[0]).abs().max() < 1e-10, t
            assert (means[0] - means[1]).abs().max() < 1e-10, t
            if t:
                assert (means[2] - means[2][0]).abs().max() > 1e-4, t
    first, second = (each.covariance(new, 30) for each in (reduced, whole))
    assert first == pytest.approx(second, abs=1e-10)


def test_partial_augmentation_is_not_enough() -> None:
    """Three of four rotations, the subgroup C2, or one random rotation of each input."""
    acting = group("C4@4x4")
    x, y, new = drawn(6, 16), drawn(6, seed=1), drawn(5, 16, seed=2)
    orbit = acting.orbit(x)
    sets = {
        "three": orbit[:3],
        "C2": orbit[::2],
        "one": acting.act_each(x, torch.arange(6) % 4)[None],
    }
    for name, part in sets.items():
        whole = InfiniteEnsemble(MLP, part.flatten(0, 1), y.repeat(len(part)), lr=1.0)
        assert whole.non_invariance(new, acting, 100).deviation() > 1e-3, name
    half = InfiniteEnsemble(MLP, sets["C2"].flatten(0, 1), y.repeat(2), lr=1.0)
    assert half.non_invariance(new, "C2@4x4", 100).deviation() < 1e-12


def test_equivariant_outputs() -> None:
    """The cross product, with the rotations of a tetrahedron on inputs and outputs."""
    acting = group("SO3-tetrahedral->input")
    x, new = drawn(5, 6), drawn(4, 6, seed=1)
    y = torch.linalg.cross(x[:, :3], x[:, 3:])
    reduced, whole = (
        InfiniteEnsemble(MLP, x, y, lr=1.0, group=acting, reduced=how) for how in (None, False)
    )
    orbit = acting.orbit(new)
    for t in TIMES:
        mean = reduced.mean(new, t)
        assert mean == pytest.approx(whole.mean(new, t), abs=1e-10)
        moved = reduced.mean(orbit.flatten(0, 1), t).view_as(acting.orbit_of_outputs(mean))
        assert moved == pytest.approx(acting.orbit_of_outputs(mean), abs=1e-10)


def test_non_invariance_is_that_of_draws() -> None:
    """s² and bias from draws of N(μ_t, Σ_t), outputs independent: 20,000 draws, relative standard
    error of a variance 0.01, so 5 % is five of them; with 20 numbers a false alarm is rarer than 1
    in 50,000."""
    acting = group("SO3-tetrahedral->input")
    x, new = drawn(4, 6), drawn(2, 6, seed=1)
    y = torch.linalg.cross(x[:, :3], x[:, 3:])
    whole = InfiniteEnsemble(MLP, x, y, lr=1.0)  # not augmented: there is a bias
    orbit = acting.orbit(new)[:6]
    at = whole.at(orbit.flatten(0, 1))
    root = torch.linalg.cholesky(at.covariance(10) + 1e-12 * torch.eye(12).double())
    draws = at.mean(10) + torch.einsum("ij,sjk->sik", root, drawn(20_000, 12, 3, seed=5))
    draws = draws.view(-1, 6, 2, 3)
    moved = torch.stack([acting.act_on_outputs(draws[:, 0], index) for index in range(6)], 1)
    apart = draws - moved
    found = whole.non_invariance(new, acting, 10)
    assert found.bias[:6] == pytest.approx(apart.mean(0).square().sum(-1), rel=0.2, abs=5e-3)
    assert found.variance[1:6] == pytest.approx(apart.var(0).sum(-1)[1:], rel=0.05)
    assert float(found.variance[0].sum()) == 0.0


def test_members_needed() -> None:
    acting = group("C4@4x4")
    x, y, new = drawn(6, 16), drawn(6, seed=1), drawn(5, 16, seed=2)
    whole = InfiniteEnsemble(MLP, x, y, lr=1.0, group=acting)
    found = whole.non_invariance(new, acting, 50)
    needed = found.members_needed(0.05)
    assert found.deviation(needed) <= 0.05 < found.deviation(needed - 1)
    plain = InfiniteEnsemble(MLP, x, y, lr=1.0).non_invariance(new, acting, 50)
    assert plain.deviation(plain.members_needed(1.1 * plain.deviation())) <= 1.1 * plain.deviation()
    with pytest.raises(ValueError, match=r"deviates by .*no number of members is enough"):
        plain.members_needed(0.9 * plain.deviation())


@pytest.mark.cpu_seconds(8)
def test_finite_ensembles_deviate_as_predicted() -> None:
    """100 networks of width 512 trained together on full orbits: the mean square of
    f(g x) − f(x) is s², and that of means of 5 members s²/5. Intervals are four standard errors
    over members, or over 20 ensembles, plus 2 % for the width: false alarms 1 in 1,000."""
    acting = group("C4@4x4")
    kernel = Serial(Dense(2**0.5, 0.1), ReLU(), Dense(1.0, 0.1))
    x, new = drawn(8, 16).float().sign(), drawn(40, 16, seed=2).float()
    y, steps, members = x[:, :2].sum(1).float(), 20, 100
    whole = InfiniteEnsemble(kernel, x, y, lr=1.0, group=acting, dynamics="steps")
    stack = Stack(lambda: kernel.network(16, 512), members, seed=0, execution="batched")
    inputs, targets = whole.x.float(), whole.y.float()
    for _ in range(steps):
        stack.gradients(lambda f, y, _: (f - y).square().sum(-1).mean(-1) / 2, inputs, targets)
        with torch.no_grad():
            for leaf in stack.leaves():
                leaf -= 1.0 * leaf.grad
    with torch.no_grad():
        values = stack(acting.orbit(new).flatten(0, 1))[..., 0].view(members, 4, -1).double()
    predicted = whole.non_invariance(new, acting, steps)
    each = (values[:, 1:] - values[:, :1]).square().mean((1, 2))
    error = 4 * float(each.std()) / members**0.5 + 0.02 * float(each.mean())
    assert abs(float(each.mean()) - predicted.deviation(1) ** 2) < error
    means = values.view(20, 5, 4, -1).mean(1)  # 20 ensembles of 5
    each = (means[:, 1:] - means[:, :1]).square().mean((1, 2))
    error = 4 * float(each.std()) / 20**0.5 + 0.02 * float(each.mean())
    assert abs(float(each.mean()) - predicted.deviation(5) ** 2) < error < 0.5 * float(each.mean())


def test_what_cannot_be_is_refused() -> None:
    x, y = drawn(4, 3), drawn(4, seed=1)
    twice = InfiniteEnsemble(MLP, torch.cat([x, x]), torch.cat([y, y]), lr=1.0)
    assert twice.mean(x, 100).isfinite().all()
    with pytest.raises(ValueError, match=r"of 8 inputs is singular.*ask for jitter"):
        twice.mean(x, math.inf)
    asked = InfiniteEnsemble(MLP, torch.cat([x, x]), torch.cat([y, y]), lr=1.0, jitter=1e-8)
    assert asked.mean(x, math.inf)[:, 0] == pytest.approx(y, abs=1e-5)
    assert "jitter=1e-08" in repr(asked)
    with pytest.raises(ValueError, match="`y` must be numbers"):
        InfiniteEnsemble(MLP, x, torch.tensor([0, 1, 1, 0]), lr=1.0)
    with pytest.raises(ValueError, match="`lr` of InfiniteEnsemble must be > 0, got -1"):
        InfiniteEnsemble(MLP, x, y, lr=-1.0)
    with pytest.raises(ValueError, match="`t` must be ≥ 0"):
        twice.mean(x, -1)
    with pytest.raises(ValueError, match="`reduced` needs a `group`"):
        InfiniteEnsemble(MLP, x, y, lr=1.0, reduced=True)


def test_interpolated_groups_and_broken_kernels_are_not_reduced() -> None:
    y = drawn(3, seed=1)
    with pytest.warns(UserWarning, match="C8 is interpolated"):
        assert not InfiniteEnsemble(CNN, drawn(3, 1, 6, 6), y, lr=1.0, group="C8").reduced
    off = Serial(Conv(3, stride=2, padding="valid"), ReLU(), Flatten(), Dense())
    with pytest.warns(UserWarning, match="layer 0, Conv"):
        whole = InfiniteEnsemble(off, drawn(3, 1, 6, 6), y, lr=1.0, group="C4")
    assert not whole.reduced
