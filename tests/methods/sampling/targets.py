"""Targets without networks, run through the methods' own `init` and `step`.

A chain's network has parameters θ (K, D), K independent copies of a target in D dimensions, and
returns them whatever its input. The likelihood is a potential U(θ) divided by N, so that a method
samples exp(−U), prior left out. Targets of a batch (M, B, K, D) are added to the gradient of U/N:
noise that a test knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polymode.methods import Problem
from polymode.stack.stack import Stack
from polymode.training.loop import Batch

Potential = Callable[[Tensor], Tensor]


class Point(nn.Module):
    """A network that is its parameters."""

    def __init__(self, copies: int, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(copies, size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.theta


class Known:
    """A likelihood with −log p = U(θ)/N plus what a batch adds to its gradient."""

    learns = False

    def __init__(self, potential: Potential, num_examples: int) -> None:
        self.potential, self.num_examples = potential, num_examples

    def nll(self, outputs: Tensor, y: Tensor, extra: dict[str, Tensor]) -> Tensor:
        energy = self.potential(outputs) / self.num_examples
        return (energy + (outputs * y).sum(-1)).sum(-1).mean(-1)

    def init(self, *about: Any) -> dict[str, Tensor]:
        return {}


def stack_at(start: Tensor) -> Stack:
    """Return a chain at each of the points (M, K, D)."""
    modes, copies, size = start.shape
    point = Point(copies, size)
    stack = Stack.allocate(point, modes, dtype=torch.float64, execution="batched")
    with torch.no_grad():
        stack.params["theta"].copy_(start)
    return stack


def problem_of(potential: Potential, num_examples: int = 1) -> Problem:
    likelihood: Any = Known(potential, num_examples)
    return Problem(likelihood, num_examples, 1, 1)


def batch_of(like: Tensor, noise: Tensor | None = None) -> Batch:
    """Return a batch of one example per chain, whose targets are gradient noise
    (M, K, D)."""
    zeros = torch.zeros_like(like).unsqueeze(1)
    return Batch(zeros, zeros if noise is None else noise.unsqueeze(1), own=True)


def run(
    method: Any,
    config: Any,
    potential: Potential,
    start: Tensor,
    steps: int,
    num_examples: int = 1,
    noise: Callable[[Tensor, int], Tensor] | None = None,
    every: int | None = None,
) -> tuple[Tensor, Any]:
    """Return positions after every `every` steps, (..., M, K, D), and the last state. `noise` maps
    positions and a step's number to what is added to the gradient of U/N."""
    problem = problem_of(potential, num_examples)
    stack = stack_at(start)
    state, seen = method.init(config, problem, stack), []
    quiet = batch_of(start)
    for number in range(steps):
        theta = stack.params["theta"].detach()
        batch = quiet if noise is None else batch_of(theta, noise(theta, number))
        state, _ = method.step(config, problem, state, batch)
        if every is not None and (number + 1) % every == 0:
            seen.append(theta.clone())
    return torch.stack(seen or [stack.params["theta"].detach()]), state


def step_matrices(
    method: Any, config: Any, precision: Tensor, field: str, num_examples: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return F and G of one step (θ, s) ← F (θ, s) + G ε for U = θᵀ A θ / 2, read off the code; s
    is the state's `field`.

    Members begin at 0 and at unit vectors, once without noise and once with noise that is known.
    """
    size = len(precision)
    begin = torch.cat([torch.zeros(1, 2 * size), torch.eye(2 * size)]).double()
    problem = problem_of(lambda theta: quadratic(theta, precision), num_examples)
    results, noise = [], torch.zeros(())
    for amplitude in (0.0, 1.0):
        stack = stack_at(begin[:, None, :size])
        state = method.init(config, problem, stack)
        getattr(state, field).copy_(begin[:, size:])
        noise = amplitude * stack.normal_rows("known", 0)
        stack.normal_rows = lambda *path, noise=noise: noise  # type: ignore[method-assign]
        state, _ = method.step(config, problem, state, batch_of(begin[:, None, :size]))
        theta = stack.params["theta"].detach()[:, 0]
        results.append(torch.cat([theta, getattr(state, field)], 1).numpy().copy())
    quiet, noisy = results
    added = noisy - quiet
    g, *_ = np.linalg.lstsq(noise.numpy(), added, rcond=None)
    np.testing.assert_allclose(noise.numpy() @ g, added, atol=1e-12)
    np.testing.assert_allclose(quiet[0], 0, atol=1e-15)
    return quiet[1:].T, g.T


def quadratic(theta: Tensor, precision: Tensor) -> Tensor:
    return 0.5 * ((theta @ precision) * theta).sum(-1)
