"""Order of the integrators: how the error of averages falls with the step, without chance.

On a circle with U = −cos θ, averages of cos θ over exp(−U) are ratios of Bessel functions. A step
of the code maps points and noise to points; with points at equal distances and noise at nodes of
Gauss and Hermite it becomes a matrix on trigonometric (and Hermite) polynomials, whose stationary
vector gives the average over the law of the chain up to rounding. The slope of log error against
log step is the order. Momentum and friction are coordinates of their own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ive
from torch import Tensor

from polymode.methods import SGHMC, SGLD, SGNHT, sghmc, sgld, sgnht

from .targets import batch_of, problem_of, stack_at

EXACT = ive(1, 1) / ive(0, 1)
OPTIONS = {"prior_precision": 0.0, "epochs": 1}


def potential(theta: Tensor) -> Tensor:
    return -theta[..., 0].cos()


def nodes(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of averages over N(0, 1)."""
    x, weights = np.polynomial.hermite_e.hermegauss(number)
    return x, weights / weights.sum()


def trigonometric(theta: np.ndarray, size: int) -> np.ndarray:
    """Return 1, cos θ, sin θ, cos 2θ, ... at the points, (..., 2 size + 1)."""
    k = np.arange(1, size + 1) * theta[..., None]
    return np.concatenate([np.ones((*theta.shape, 1)), np.cos(k), np.sin(k)], -1)


def hermite(x: np.ndarray, size: int) -> np.ndarray:
    """Return the first polynomials that are orthonormal under N(0, 1), (n, size)."""
    norms = np.sqrt(np.cumprod(np.maximum(np.arange(size), 1.0)))
    return np.polynomial.hermite_e.hermevander(x, size - 1) / norms


def moved(method: Any, config: Any, theta: Tensor, field: str, aux: Tensor, noise: Tensor):
    """Return positions and the state's `field` after one step of the code from (θ, aux)."""
    stack = stack_at(theta[:, None, None])
    state = method.init(config, problem_of(potential), stack)
    getattr(state, field).copy_(aux[:, None])
    stack.normal_rows = lambda *path: noise[:, None].clone()  # type: ignore[method-assign]
    state, _ = method.step(config, problem_of(potential), state, batch_of(theta[:, None, None]))
    found = stack.params["theta"].detach()[:, 0, 0], getattr(state, field)[:, 0]
    return [tensor.numpy().copy() for tensor in found]


def stationary(values: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the averages of basis functions that one step leaves as they are; the first is 1.

    `values` are the basis at points (n, n), `images` its mean after a step from there, (n, n).
    """
    operator = np.linalg.solve(values, images)  # coefficients of P f, a column per basis function
    system = operator.T - np.eye(len(operator))
    system[0] = 0
    system[0, 0] = 1
    right = np.zeros(len(operator))
    right[0] = 1
    return np.linalg.solve(system, right)


def grid(*axes: np.ndarray) -> list[np.ndarray]:
    return [each.ravel() for each in np.meshgrid(*axes, indexing="ij")]


def mean_cosine_langevin(lr: float, integrator: str) -> float:
    """Of `sgld`. Averaged noise has a memory; y = θ − (s/2) ε', s = √(2 lr), has none."""
    size, (noise, weights) = 12, nodes(40)
    y = 2 * np.pi * np.arange(2 * size + 1) / (2 * size + 1)
    points, kicks = grid(y, noise)
    averaged = integrator != "euler"
    half = np.sqrt(2 * lr) / 2 if averaged else 0.0
    before, now = (kicks, 0 * kicks) if averaged else (0 * kicks, kicks)
    config = SGLD(lr=lr, integrator=integrator, **OPTIONS)
    start = torch.from_numpy(points + half * kicks)
    to, _ = moved(sgld, config, start, "noise", torch.from_numpy(before), torch.from_numpy(now))
    images = np.einsum("ijk,j->ik", trigonometric(to, size).reshape(len(y), 40, -1), weights)
    means = stationary(trigonometric(y, size), images)
    return means[1] * (weights @ np.cos(half * noise))  # the mean of cos(y + half ε)


def mean_cosine_hamiltonian(lr: float, friction: float) -> float:
    """Of `sghmc`: functions of position and momentum."""
    size, degree, (noise, weights) = 6, 14, nodes(24)
    angles = 2 * np.pi * np.arange(2 * size + 1) / (2 * size + 1)
    velocities, _ = nodes(degree)

    def basis(theta: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        parts = trigonometric(theta, size), hermite(velocity, degree)
        return np.einsum("ni,nj->nij", *parts).reshape(len(theta), -1)

    points, speed = grid(angles, velocities)
    start, momentum, kicks = grid(np.arange(len(points)), np.arange(1), noise)
    index = start.astype(int)
    config, h = SGHMC(lr=lr, friction=friction, **OPTIONS), np.sqrt(lr)
    to, after = moved(
        sghmc, config, torch.from_numpy(points[index]), "momentum",
        torch.from_numpy(h * speed[index]), torch.from_numpy(kicks),
    )  # fmt: skip
    images = basis(to, after / h).reshape(len(points), len(noise), -1)
    means = stationary(basis(points, speed), np.einsum("ijk,j->ik", images, weights))
    return means[degree]  # of cos θ


def mean_cosine_thermostat(h: float, mass: float) -> float:
    """Of `sgnht`: functions of position, momentum and friction. In units of time the friction
    follows the temperature at the rate 1/mass and has the law N(1, 1/mass)."""
    size, degrees, (noise, weights) = 5, (10, 6), nodes(16)
    rate, spread = h**2 / mass, h / mass**0.5

    def basis(*at: np.ndarray) -> np.ndarray:
        parts = [hermite(x, degree) for x, degree in zip(at[1:], degrees, strict=True)]
        found = np.einsum("ni,nj,nk->nijk", trigonometric(at[0], size), *parts)
        return found.reshape(len(at[0]), -1)

    angles = 2 * np.pi * np.arange(2 * size + 1) / (2 * size + 1)
    points = grid(angles, *(nodes(degree)[0] for degree in degrees))
    values, images = basis(*points), 0.0
    config = SGNHT(lr=h**2, friction=1 - math.exp(-h), thermostat=rate, **OPTIONS)
    theta, speed, friction = (torch.from_numpy(each) for each in points)
    for kick, weight in zip(noise, weights, strict=True):
        stack = stack_at(theta[:, None, None])
        state = sgnht.init(config, problem_of(potential), stack)
        state.momentum.copy_(h * speed[:, None])
        state.friction.copy_(h + spread * friction)
        same = torch.full_like(state.momentum, kick)
        stack.normal_rows = lambda *path, same=same: same.clone()  # type: ignore[method-assign]
        state, _ = sgnht.step(config, problem_of(potential), state, batch_of(theta[:, None, None]))
        to = stack.params["theta"].detach()[:, 0, 0], state.momentum[:, 0] / h
        after = (*to, (state.friction - h) / spread)
        images = images + weight * basis(*(each.numpy() for each in after))
    return stationary(values, images)[math.prod(degrees)]  # of cos θ


def slope(errors: list[float], steps: list[float]) -> float:
    return float(np.polyfit(np.log(steps), np.log(np.abs(errors)), 1)[0])


@pytest.mark.parametrize(("integrator", "order"), [("euler", 1), ("leimkuhler_matthews", 2)])
def test_order_of_langevin_steps(integrator, order) -> None:
    """In `lr`; from steps of 0.025 to 0.2 slopes are within 0.1 of the order."""
    steps = [0.025, 0.05, 0.1, 0.2]
    errors = [mean_cosine_langevin(lr, integrator) - EXACT for lr in steps]
    assert slope(errors, steps) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize(("rate", "order"), [(1.0, 2), (math.inf, 4)])
def test_order_of_hamiltonian_steps(rate, order) -> None:
    """In h = √lr, with c = exp(−rate h). Without memory of the momentum the terms of second order
    vanish. Slopes are within 0.1 of the order."""
    steps = [0.1, 0.2, 0.4]
    lengths = [lr**0.5 for lr in steps]
    frictions = [1 - math.exp(-rate * h) for h in lengths]
    found = [mean_cosine_hamiltonian(lr, f) for lr, f in zip(steps, frictions, strict=True)]
    assert slope([mean - EXACT for mean in found], lengths) == pytest.approx(order, abs=0.1)


def test_order_of_steps_with_a_thermostat() -> None:
    """In h = √lr, with the thermostat's mass and the friction per time held: 2, within 0.1. The
    error is not that of `sghmc`, its limit with a heavy thermostat: about half of it."""
    lengths = [0.2, 0.3, 0.45]
    errors = [mean_cosine_thermostat(h, mass=32.0) - EXACT for h in lengths]
    assert slope(errors, lengths) == pytest.approx(2, abs=0.1)
    heavy = mean_cosine_hamiltonian(0.45**2, 1 - math.exp(-0.45)) - EXACT
    assert 0.3 < errors[-1] / heavy < 0.8
