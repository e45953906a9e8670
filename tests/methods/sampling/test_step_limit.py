"""Steps that the curvature allows: what is measured, and that no chain takes longer ones."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.methods import METHODS, SGHMC, Problem, cyclical_sgmcmc, sghmc
from polymode.methods.sampling.chains import posterior_gradients
from polymode.methods.sampling.step_limit import (
    CURVATURE,
    DIRECTION,
    measure_curvature,
    no_curvature,
    shortening,
)
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from ..conjugate import NOISE, PRECISION, TASK, N, X, Y, linear

CHAINS = ("cyclical_sgmcmc", "sghmc", "sgld", "sgnht")
PROBLEM = Problem(TASK.likelihood, N, 1, 1, TASK.train)


def largest_eigenvalue(scales: torch.Tensor | float = 1.0) -> float:
    """Return that of the Hessian of U/N of the linear regression, weight and bias."""
    rows = torch.cat([X, torch.ones(N, 1, dtype=X.dtype)], 1)[:, : columns()]
    hessian = rows.mT @ rows / NOISE**2 / N + torch.eye(columns()).double() * PRECISION / N
    scale = torch.as_tensor(scales, dtype=X.dtype).expand(columns())
    return float(torch.linalg.eigvalsh(scale[:, None] * hessian * scale).max())


def columns() -> int:
    return sum(parameter.numel() for parameter in linear().parameters())


def measured(rounds: int, scales: torch.Tensor | None = None) -> tuple[Stack, dict]:
    stack = Stack(linear, 3, dtype=X.dtype)
    state = no_curvature(stack)
    gradients = partial(posterior_gradients, PRECISION, PROBLEM, stack, 0, Batch(X, Y))
    for _ in range(rounds):
        measure_curvature(state, stack, gradients()[1], lambda: gradients()[1], scales)
    return stack, state


def test_the_power_method_finds_the_largest_curvature() -> None:
    """The target is quadratic, so differences of gradients are exact up to rounding."""
    _, state = measured(200)
    expected = torch.full((3,), largest_eigenvalue(), dtype=X.dtype)
    torch.testing.assert_close(state[CURVATURE], expected, rtol=1e-6, atol=0)


def test_the_curvature_is_that_of_the_preconditioned_coordinates() -> None:
    scale = torch.linspace(0.2, 2.0, columns(), dtype=X.dtype)
    _, state = measured(300, scale.expand(3, -1))
    expected = torch.full((3,), largest_eigenvalue(scale), dtype=X.dtype)
    torch.testing.assert_close(state[CURVATURE], expected, rtol=1e-5, atol=0)


def test_a_measurement_leaves_networks_gradients_and_statistics_as_they_are() -> None:
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 4, generator=stream), torch.randint(2, (16,), generator=stream)
    task = pm.Task(train=(x, y), likelihood="categorical")
    problem = Problem(task.likelihood, 16, 2, 1, task.train)
    net = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))  # noqa: E731
    stack = Stack(net, 2)
    stack.train()
    _, grads = posterior_gradients(1.0, problem, stack, 0, Batch(x, y))
    before = {name: tensor.clone() for name, tensor in stack.tensors().items()}
    slopes = [gradient.clone() for gradient in grads]
    again = partial(posterior_gradients, 1.0, problem, stack, 0, Batch(x, y))
    state = no_curvature(stack)
    start = state[DIRECTION].clone()
    measure_curvature(state, stack, grads, lambda: again()[1], None)
    assert (state[CURVATURE] > 0).all() and not torch.equal(state[DIRECTION], start)
    assert all(torch.equal(before[name], tensor) for name, tensor in stack.tensors().items())
    current = [leaf.grad for leaf in stack.leaves()]
    assert all(torch.equal(a, b) for a, b in zip(slopes, current, strict=True))


def test_only_chains_whose_steps_are_too_long_are_cut() -> None:
    state = {CURVATURE: torch.tensor([0.0, 10.0, 400.0])}
    factor = shortening(state, lr=0.01, limit=1.0)
    torch.testing.assert_close(factor, torch.tensor([[1.0], [1.0], [0.5]]))


@pytest.mark.parametrize("name", CHAINS)
def test_a_rate_that_is_a_hundred_thousand_times_too_large_is_cut(name) -> None:
    usual = METHODS.get(name).value.config
    post = pm.fit(
        name, net=linear, task=TASK, epochs=400, batch_size=N, prior_precision=PRECISION,
        dtype=X.dtype, lr=1e5 * usual.lr, progress="silent",
    )  # fmt: skip
    error = (post.predict(X).mean - Y).square().mean().sqrt()
    assert error < 3 * NOISE


def test_the_curvature_is_frozen_once_samples_are_kept() -> None:
    config = SGHMC(epochs=40, burn_in=12, lr=0.1, prior_precision=PRECISION)
    state = sghmc.init(config, PROBLEM, Stack(linear, 2, dtype=X.dtype))
    measured_at = []
    for _ in range(40):
        before = state.metric[DIRECTION].clone()
        state, _ = sghmc.step(config, PROBLEM, state, Batch(X, Y))
        measured_at.append(not torch.equal(before, state.metric[DIRECTION]))
    assert measured_at == [*[True] * 11, *[False] * 29]


def test_cycles_measure_it_while_they_explore() -> None:
    config = pm.methods.CyclicalSGMCMC(epochs=40, num_cycles=2, prior_precision=PRECISION)
    state = cyclical_sgmcmc.init(config, PROBLEM, Stack(linear, 2, dtype=X.dtype))
    measured_at = []
    for number in range(40):
        before = state.metric[DIRECTION].clone()
        state, _ = cyclical_sgmcmc.step(config, PROBLEM, state, Batch(X, Y))
        if not torch.equal(before, state.metric[DIRECTION]):
            measured_at.append(number)
    assert measured_at == [*range(10), 20, 25]


def test_noise_that_depends_on_the_input_does_not_blow_up() -> None:
    """A few of the networks of `sghmc` and `ivon` left the data by factors of 1,000 without it."""
    stream = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(200, 1, generator=stream) - 2
    y = torch.sin(3 * x) + 0.05 * (x + 2) * torch.randn(x.shape, generator=stream)
    task = pm.Task(train=(x, y), likelihood="heteroscedastic_gaussian")
    for method in ("sghmc", "ivon"):
        post = pm.fit(
            method, net=lambda: pm.nets.mlp((1,), 2, hidden=(32, 32)), task=task, num_modes=4,
            epochs=200, progress="silent",
        )  # fmt: skip
        errors = (torch.stack([each.mean for each in post.stream(x)]) - y).abs()
        assert errors.max() < 3.0, method
