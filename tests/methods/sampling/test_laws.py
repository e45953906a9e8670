"""Stationary laws of the samplers, by linear algebra: for a Gaussian target a step is linear.

    x ← F x + G ε   has the covariance   S = F S Fᵀ + G Gᵀ

F and G are read off the code. Nothing here depends on chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import nn

from polymode.likelihoods.kinds import Gaussian
from polymode.methods import (
    SGHMC,
    SGLD,
    SGNHT,
    CyclicalSGMCMC,
    Problem,
    cyclical_sgmcmc,
    sghmc,
    sgld,
    sgnht,
)
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

from .targets import batch_of, problem_of, quadratic, stack_at, step_matrices

A = torch.tensor([[2.0, 0.9], [0.9, 1.0]], dtype=torch.float64)  # correlation −0.64
LARGEST = float(torch.linalg.eigvalsh(A).max())
QUIET = {"prior_precision": 0.0, "epochs": 1}


def stationary(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    assert np.abs(np.linalg.eigvals(f)).max() < 1
    return solve_discrete_lyapunov(f, g @ g.T)[:2, :2]


@pytest.mark.parametrize("num_examples", [1, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("stability", [0.01, 0.5, 1.0, 1.9])
def test_averaged_noise_is_exact_for_gaussians(stability, temperature, num_examples) -> None:
    """At every stable step: lr times the largest curvature is up to 1.9 of 2."""
    lr = stability / LARGEST * num_examples
    config = SGLD(lr=lr, temperature=temperature, **QUIET)
    f, g = step_matrices(sgld, config, A, "noise", num_examples)
    expected = temperature * A.inverse().numpy()
    np.testing.assert_allclose(stationary(f, g), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stability", [0.01, 0.5, 1.0, 1.9])
def test_the_papers_step_is_too_wide_by_a_known_factor(stability) -> None:
    """1 / (1 − lr κ/2) along curvature κ: 20 at 1.9 of 2."""
    config = SGLD(lr=stability / LARGEST, integrator="euler", **QUIET)
    found = stationary(*step_matrices(sgld, config, A, "noise"))
    curvature, vectors = np.linalg.eigh(A.numpy())
    along = np.diag(vectors.T @ found @ vectors)
    np.testing.assert_allclose(along, 1 / curvature / (1 - config.lr * curvature / 2), rtol=1e-9)


def test_sgld_is_sghmc_without_memory() -> None:
    """`friction=1` with twice the `lr`: the same positions from the same noise."""
    start = torch.tensor([[[1.0, -2.0]]], dtype=torch.float64)
    problem = problem_of(lambda theta: quadratic(theta, A) + theta[..., 0] ** 4, 7)
    options = {**QUIET, "step_limit": None}
    slow, fast = SGLD(lr=0.3, **options), SGHMC(lr=0.6, friction=1.0, **options)
    noise = torch.randn(6, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    paths = []
    for method, config in ((sgld, slow), (sghmc, fast)):
        stack, seen = stack_at(start), []
        numbers = iter(noise)
        stack.normal_rows = lambda *path, numbers=numbers: next(numbers).clone()  # type: ignore[method-assign]
        state = method.init(config, problem, stack)
        for _ in range(5):
            state, _ = method.step(config, problem, state, batch_of(start))
            seen.append(stack.params["theta"].detach().clone())
        paths.append(torch.stack(seen))
    torch.testing.assert_close(*paths, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("integrator", ["leimkuhler_matthews", "euler"])
def test_the_kinetic_temperature_of_langevin_steps(integrator, noise) -> None:
    """T (1 − lr κ/2), or T / (1 − lr κ/2) by Euler, and N lr C/(2 − lr κ) more with gradient noise
    of the variance C; means of 20 chains of 500 numbers over 40 steps within 5 errors, which chance
    misses for 8 seeds in 100,000 (Student's law). The seed is fixed."""
    lr, curvature, temperature, num = 0.2, 0.5, 0.7, 10
    config = SGLD(lr=lr, integrator=integrator, temperature=temperature, **QUIET)
    problem = problem_of(lambda theta: num * curvature * theta.square().sum(-1) / 2, num)
    stream = torch.Generator().manual_seed(1)
    start = torch.randn(20, 500, 1, generator=stream, dtype=torch.float64)
    stack = stack_at((temperature / num / curvature) ** 0.5 * start)
    state, found = sgld.init(config, problem, stack), []
    for number in range(140):
        added = noise**0.5 * torch.randn(start.shape, generator=stream, dtype=torch.float64)
        state, info = sgld.step(config, problem, state, batch_of(start, added))
        if number >= 100:
            found.append(info.temperature)
    factor = 1 - lr * curvature / 2
    plain = temperature * (factor if integrator == "leimkuhler_matthews" else 1 / factor)
    heated = noise * num * lr / 2 / factor
    means = torch.stack(found).mean(0)
    error = means.std() / 20**0.5
    assert abs(means.mean() - plain - heated) < 5 * error


def test_a_thermostat_that_is_slow_is_sghmc() -> None:
    """With γ → 0 the friction stays where it begins."""
    start = torch.tensor([[[1.0, -2.0]]], dtype=torch.float64)
    problem = problem_of(lambda theta: quadratic(theta, A), 7)
    slow, plain = SGNHT(lr=0.3, thermostat=1e-12, **QUIET), SGHMC(lr=0.3, **QUIET)
    found = []
    for method, config in ((sgnht, slow), (sghmc, plain)):
        stack = stack_at(start)
        rows = stack.normal_rows
        stack.normal_rows = lambda name, number, rows=rows: rows("same", number)  # type: ignore[method-assign]
        state = method.init(config, problem, stack)
        for _ in range(5):
            state, info = method.step(config, problem, state, batch_of(start))
        found.append(torch.cat([stack.params["theta"].detach().flatten(), info.temperature]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------ the mean of N = 100 numbers

N = 100
VALUES = torch.linspace(-1, 3, N, dtype=torch.float64)[:, None]


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mean.expand(len(x), 1)


def matrices(method: Any, config: Any, field: str, copies: int = 1):
    """Return F, G of a step on all the data, of which there are `copies` in all."""
    problem = Problem(Gaussian(noise=1.0), copies * N, 1, 1)
    results, noise = [], torch.zeros(())
    for amplitude in (0.0, 1.0):
        stack = Stack(Mean, 3, dtype=torch.float64)
        state = method.init(config, problem, stack)
        with torch.no_grad():
            stack.params["mean"].copy_(torch.tensor([[0.0], [1.0], [0.0]]))
            getattr(state, field).copy_(torch.tensor([[0.0], [0.0], [1.0]]))
        noise = torch.full((3, 1), amplitude, dtype=torch.float64)
        stack.normal_rows = lambda *path, noise=noise: noise  # type: ignore[method-assign]
        state, _ = method.step(config, problem, state, Batch(VALUES, VALUES))
        rows = [stack.params["mean"].detach(), getattr(state, field)]
        results.append(torch.cat(rows, 1).numpy().copy())
    quiet, noisy = results
    return (quiet[1:] - quiet[0]).T, (noisy - quiet)[:1].T


@pytest.mark.parametrize("copies", [1, 5])
@pytest.mark.parametrize(
    ("method", "config", "field"),
    [
        (sgld, SGLD(lr=0.05, **QUIET), "noise"),
        (sgld, SGLD(lr=1.9, **QUIET), "noise"),
        (sghmc, SGHMC(lr=0.01, **QUIET), "momentum"),
        (sghmc, SGHMC(lr=1.0, friction=0.5, **QUIET), "momentum"),
    ],
)
def test_the_temperature_of_a_mean_of_100_numbers_is_one(method, config, field, copies) -> None:
    """The posterior variance is 1/N. Libraries whose noise does not know N have N, or 1/N, times
    it, or a factor of their own."""
    f, g = matrices(method, config, field, copies)
    assert solve_discrete_lyapunov(f, g @ g.T)[0, 0] * copies * N == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(("friction", "temperature"), [(0.1, 1.0), (1.0, 1.0), (0.1, 0.25)])
def test_a_cycle_ends_with_the_temperature_of_the_posterior(friction, temperature) -> None:
    """From the maximum, where exploration leaves it, the variance of the mean of 100 numbers grows
    to T/N within the sampling stage of a cycle, to 2 %: a step that shrinks lags behind, the less
    the longer the cycle. Chain k hears the noise of step k alone: a chain that hears them all has
    the sum of their squares."""
    steps = 400
    config = CyclicalSGMCMC(
        num_cycles=1, exploration=0.5, friction=friction, epochs=steps, lr=0.2, prior_precision=0.0,
        temperature=temperature,
    )  # fmt: skip
    problem = Problem(Gaussian(noise=1.0), N, 1, 1)
    stack = Stack(Mean, steps, dtype=torch.float64)
    state = cyclical_sgmcmc.init(config, problem, stack)
    variances = []
    with torch.no_grad():
        stack.params["mean"].fill_(float(VALUES.mean()))
    for number in range(steps):
        noise = torch.zeros(steps, 1, dtype=torch.float64)
        noise[number] = 1
        stack.normal_rows = lambda *path, noise=noise: noise  # type: ignore[method-assign]
        state, _ = cyclical_sgmcmc.step(config, problem, state, Batch(VALUES, VALUES))
        moved = stack.params["mean"].detach() - VALUES.mean()
        variances.append(float(moved.square().sum()))
    assert variances[199] < 1e-20 < variances[200]
    assert variances[-1] * N == pytest.approx(temperature, rel=0.02)
