"""Hamiltonian dynamics: leapfrog steps of all chains at once, and one transition of HMC.

    H(q, p) = −log π(q) + ½ Σ_i v_i p_i²,    p ~ N(0, 1/v),    v = `inverse_mass`
    p ← p + (ε/2) ∇log π(q),   q ← q + ε v p,   p ← p + (ε/2) ∇log π(q)

Half steps of the momentum between two steps of the position are merged: L steps cost L gradients.
The end is taken with probability min(1, exp(H − H')).

Reference: R. Neal, MCMC using Hamiltonian dynamics, Handbook of Markov Chain Monte Carlo, 2011.

Shapes: `M` chains, `P` parameters; a step size per chain, (M, 1).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from polymode.methods.full_batch.target import LogDensity

DIVERGED = 1000.0  # energy error from which a trajectory counts as diverged, as in Stan


class Point(NamedTuple):
    """Where chains are: rows (M, P), log π there (M,), and its gradient (M, P)."""

    position: Tensor
    log_density: Tensor
    gradient: Tensor


def point_of(
    target: LogDensity, position: Tensor, log_density: Tensor | None, gradient: Tensor | None
) -> Point:
    """Return the point at rows (M, P), where log π and its gradient may be known already."""
    if log_density is None or gradient is None:
        return Point(position, *target(position))
    return Point(position, log_density, gradient)


class Transition(NamedTuple):
    """What a transition did: the new point; per chain (M,) the acceptance probability, the energy
    error H' − H, and whether the trajectory diverged."""

    point: Point
    acceptance: Tensor
    energy_error: Tensor
    diverged: Tensor


def leapfrog(
    target: LogDensity,
    point: Point,
    momentum: Tensor,
    step_size: Tensor,
    inverse_mass: Tensor,
    num_steps: int,
) -> tuple[Point, Tensor]:
    """Return the point and the momentum after `num_steps` ≥ 1 leapfrog steps of all chains."""
    position, value, gradient = point
    drift = step_size * inverse_mass
    momentum = torch.addcmul(momentum, step_size, gradient, value=0.5)
    for number in range(1, num_steps + 1):
        position = torch.addcmul(position, drift, momentum)
        value, gradient = target(position)
        kick = 0.5 if number == num_steps else 1.0
        momentum = torch.addcmul(momentum, step_size, gradient, value=kick)
    return Point(position, value, gradient), momentum


def kinetic_energy(momentum: Tensor, inverse_mass: Tensor) -> Tensor:
    """Return ½ Σ v p², (M,) in float64."""
    return 0.5 * (inverse_mass * momentum.square()).sum(1, dtype=torch.float64)


def transition(
    target: LogDensity,
    point: Point,
    noise: Tensor,
    uniform: Tensor,
    step_size: Tensor,
    inverse_mass: Tensor,
    num_steps: int,
) -> Transition:
    """Take one transition of HMC from `point`.

    Args:
        noise: standard normal (M, P), of which the momentum is made. uniform: (M,) in [0, 1).
        step_size: (M, 1). inverse_mass: (M, P), the variances of the parameters at best.
    """
    momentum = noise / inverse_mass.sqrt()
    end, final = leapfrog(target, point, momentum, step_size, inverse_mass, num_steps)
    before = kinetic_energy(momentum, inverse_mass) - point.log_density
    error = kinetic_energy(final, inverse_mass) - end.log_density - before
    lost = ~torch.isfinite(error)
    acceptance = torch.where(lost, 0.0, (-error).clamp(max=0.0).exp())
    accepted = uniform < acceptance
    chosen = Point(
        torch.where(accepted[:, None], end.position, point.position),
        torch.where(accepted, end.log_density, point.log_density),
        torch.where(accepted[:, None], end.gradient, point.gradient),
    )
    return Transition(chosen, acceptance, error, lost | (error > DIVERGED))
