"""Targets with known moments, and chains of HMC on them, without networks.

A target maps rows (M, P) to log-densities (M,) and gradients (M, P); one chain per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from polymode.methods.full_batch.adaptation import adapt, start, step_size
from polymode.methods.full_batch.leapfrog import Point, transition
from polymode.methods.full_batch.target import LogDensity

DOUBLE = torch.float64


def with_gradient(log_density: Callable[[Tensor], Tensor]) -> LogDensity:
    """Return the target of a log-density (M, P) -> (M,), its gradient by autograd."""

    def target(rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.detach().requires_grad_()
        with torch.enable_grad():
            value = log_density(rows)
        (gradient,) = torch.autograd.grad(value.sum(), rows)
        return value.detach(), gradient

    return target


COVARIANCE = torch.tensor([[2.0, 1.2, 0.0], [1.2, 1.0, 0.1], [0.0, 0.1, 0.05]], dtype=DOUBLE)
MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)
_PRECISION = COVARIANCE.inverse()


def gaussian(rows: Tensor) -> tuple[Tensor, Tensor]:
    """N(MEAN, COVARIANCE), correlations up to 0.85."""
    gradient = (MEAN - rows) @ _PRECISION
    return 0.5 * (gradient * (rows - MEAN)).sum(1), gradient


BEND = 0.5


def banana_log_density(rows: Tensor) -> Tensor:
    """x ~ N(0, 1), y = BEND (x² − 1) + N(0, 0.5²): mean 0, variances 1 and 2 BEND² + 0.25."""
    x, y = rows.unbind(1)
    return -0.5 * x**2 - 2.0 * (y - BEND * (x**2 - 1)) ** 2


def funnel_log_density(rows: Tensor) -> Tensor:
    """v ~ N(0, 1), x_1, x_2 ~ N(0, exp(v)): E x² = exp(1/2)."""
    v, x = rows[:, :1], rows[:, 1:]
    return (-0.5 * v**2).sum(1) - 0.5 * (x**2 * (-v).exp() + v).sum(1)


DEPTH = 3.0


def deep_funnel_log_density(rows: Tensor) -> Tensor:
    """Neal's funnel: v ~ N(0, 3²), x_i ~ N(0, exp(v)). At v = −6 it is 400 times as narrow as at
    v = 6, and no step suits both."""
    v, x = rows[:, :1], rows[:, 1:]
    return (-0.5 * (v / DEPTH) ** 2).sum(1) - 0.5 * (x**2 * (-v).exp() + v).sum(1)


SHARE, APART = 0.3, 2.0


def two_modes_log_density(rows: Tensor) -> Tensor:
    """0.3 N(−2, 1) + 0.7 N(2, 1) in x; N(0, 1) in y. Mean of x 0.8, variance 1 + 16 · 0.21."""
    x, y = rows.unbind(1)
    left = torch.log(torch.tensor(SHARE, dtype=rows.dtype)) - 0.5 * (x + APART) ** 2
    right = torch.log(torch.tensor(1 - SHARE, dtype=rows.dtype)) - 0.5 * (x - APART) ** 2
    return torch.logaddexp(left, right) - 0.5 * y**2


banana, funnel = with_gradient(banana_log_density), with_gradient(funnel_log_density)
two_modes, deep_funnel = (
    with_gradient(each) for each in (two_modes_log_density, deep_funnel_log_density)
)

TARGETS = {
    "correlated Gaussian": (gaussian, MEAN, COVARIANCE + torch.outer(MEAN, MEAN)),
    "banana": (
        banana,
        torch.zeros(2, dtype=DOUBLE),
        torch.diag(torch.tensor([1.0, 2 * BEND**2 + 0.25], dtype=DOUBLE)),
    ),
    "funnel": (
        funnel,
        torch.zeros(3, dtype=DOUBLE),
        torch.diag(torch.tensor([1.0, math.exp(0.5), math.exp(0.5)], dtype=DOUBLE)),
    ),
    "two modes": (
        two_modes,
        torch.tensor([(1 - 2 * SHARE) * APART, 0.0], dtype=DOUBLE),
        torch.diag(torch.tensor([1 + APART**2, 1.0], dtype=DOUBLE)),
    ),
}
"""By name: the target, its mean, and E x xᵀ."""


def truth_of(mean: Tensor, square: Tensor) -> Tensor:
    """Return first and second moments in the order of `moments`."""
    first, second = torch.triu_indices(len(mean), len(mean))
    return torch.cat([mean, square[first, second]])


def hmc_chains(
    target: LogDensity,
    rows: Tensor,
    *,
    burn_in: int,
    samples: int,
    thinning: int = 1,
    leapfrog_steps: int = 8,
    goal: float = 0.8,
    masses: bool = True,
    seed: int = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return samples (L, M, P) of HMC as `hmc.step` makes them, and the tuning; the acceptance of
    all steps, those of burn-in included, is in it as (steps, M)."""
    stream = torch.Generator().manual_seed(seed)
    tuning, point = start(rows, 0.1), Point(rows, *target(rows))
    kept, acceptance = [], []
    for number in range(burn_in + samples * thinning):
        most = 3 * leapfrog_steps // 2
        length = int(torch.randint(leapfrog_steps // 2, most + 1, (), generator=stream))
        taken = transition(
            target,
            point,
            torch.randn(rows.shape, dtype=rows.dtype, generator=stream),
            torch.rand(len(rows), dtype=DOUBLE, generator=stream),
            step_size(tuning, number >= burn_in)[:, None],
            tuning["inverse_mass"],
            length,
        )
        point = taken.point
        if number < burn_in:
            seen = point.position, taken.acceptance
            tuning = adapt(tuning, *seen, number + 1, burn_in, goal, masses)
        elif (number - burn_in + 1) % thinning == 0:
            kept.append(point.position)
        acceptance.append(taken.acceptance)
    return torch.stack(kept), {**tuning, "acceptance": torch.stack(acceptance)}


def scores(samples: Tensor, truth: Tensor) -> Tensor:
    """Return z = error / MCSE of the mean of samples (L, M, ...), from the independent chains M."""
    means = samples.mean(0)
    error = means.std(0) / len(means) ** 0.5
    return (means.mean(0) - truth) / error


def moments(samples: Tensor) -> Tensor:
    """Return first and second moments of samples (..., P): x_i, then x_i x_j."""
    first, second = torch.triu_indices(samples.shape[-1], samples.shape[-1])
    return torch.cat([samples, samples[..., first] * samples[..., second]], -1)
