"""Microcanonical Langevin Monte Carlo (MCLMC): chains of constant speed whose path has the law π.

    dx = u dt,    du = (I − u uᵀ) [ ∇log π(x)/(d − 1) dt + η dW ],    |u| = 1

The direction turns towards higher density, and noise turns it at random, so that it is forgotten
over the length L; at equal times the positions have the density π. There is no Metropolis decision.
Steps of finite length ε change the energy, ΔE = ΔK − Δlog π, which the exact dynamics do not; the
bias is bounded through the mean of ΔE²/d, and the step is tuned by it.

For a direction u and e = ∇log π/|∇log π|, δ = ε |∇log π|/(d − 1), a kick of the length ε is

    u' = [u + e (sinh δ + (e·u)(cosh δ − 1))] / (cosh δ + (e·u) sinh δ),
    ΔK = (d − 1) log(cosh δ + (e·u) sinh δ).

A step is the minimal-norm splitting of second order: kicks of b ε, (1 − 2b) ε, b ε with b = 0.1932
around two drifts of ε/2; two gradients. Then u ← (u + ν z)/|u + ν z|, ν² = (exp(2 ε/L) − 1)/d.

References: J. Robnik, G. De Luca, E. Silverstein, U. Seljak, Microcanonical Hamiltonian Monte
Carlo, JMLR 24, 2023. J. Robnik, U. Seljak, Fluctuation without dissipation: microcanonical Langevin
Monte Carlo, AABI 2024.

Shapes: `M` chains, `P` = d ≥ 2 parameters; step size and L per chain, (M, 1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.methods.full_batch.leapfrog import Point
from polymode.methods.full_batch.target import LogDensity

KICK = 0.1931833275037836  # of the minimal-norm splitting (McLachlan 1995)


class Move(NamedTuple):
    """What a step did: the point and the directions (M, P) after it, the energy change ΔE (M,),
    and whether a chain was lost, so that it stayed where it was."""

    point: Point
    velocity: Tensor
    energy_change: Tensor
    lost: Tensor


def directions(noise: Tensor) -> Tensor:
    """Return unit rows of normal numbers (M, P)."""
    return torch.nn.functional.normalize(noise, dim=1)


def kick(velocity: Tensor, gradient: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the directions after a kick of `length` (M, 1), δ and the growth g, (M, 1) each.

    cosh δ + (e·u) sinh δ = g exp(δ)/2, so that ΔK = (d − 1) (log g + δ − log 2): with exp(−δ) large
    δ stay finite.
    """
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True).clamp_min_(1e-30)
    along = torch.linalg.vecdot(velocity, gradient).unsqueeze(1).div_(norm)
    delta = length * norm / (velocity.shape[1] - 1)
    fade = torch.exp(-delta)
    rest, both = 1 - fade, 1 + fade
    sum_ = torch.addcmul(both, along, rest)
    fade = fade.mul_(2)
    growth = torch.addcmul(-fade, both, sum_).clamp_min_(1e-30)
    turned = torch.addcmul(
        velocity * fade.div_(growth), rest.mul_(sum_).div_(norm * growth), gradient
    )
    return turned, delta, growth


def deterministic_step(
    target: LogDensity, point: Point, velocity: Tensor, step_size: Tensor
) -> tuple[Point, Tensor, Tensor]:
    """Return point, directions and ΔE (M,) in float64 after one step without noise; two
    gradients."""
    position, before, gradient = point
    outer, half = KICK * step_size, 0.5 * step_size
    velocity, delta, growth = kick(velocity, gradient, outer)
    position = torch.addcmul(position, velocity, half)
    _, gradient = target(position)
    velocity, *second = kick(velocity, gradient, (1 - 2 * KICK) * step_size)
    position = torch.addcmul(position, velocity, half)
    value, gradient = target(position)
    velocity, *third = kick(velocity, gradient, outer)
    delta = delta + second[0] + third[0]
    growth = growth.double() * second[1] * third[1]
    change = (growth.log_() + delta - 3 * math.log(2.0)).squeeze(1)
    change = change.mul_(velocity.shape[1] - 1) - (value - before)
    return Point(position, value, gradient), velocity, change


def langevin_step(
    target: LogDensity,
    point: Point,
    velocity: Tensor,
    noise: Tensor,
    step_size: Tensor,
    decoherence: Tensor,
) -> Move:
    """Take one step of MCLMC.

    Args:
        noise: standard normal (M, P). step_size: ε (M, 1). decoherence: L (M, 1).
    """
    end, turned, change = deterministic_step(target, point, velocity, step_size)
    spread = torch.expm1(2 * step_size / decoherence).div_(noise.shape[1]).sqrt_()
    turned = torch.addcmul(turned, spread, noise)
    turned = turned.div_(torch.linalg.vector_norm(turned, dim=1, keepdim=True))
    lost = ~torch.isfinite(change)  # of which log π is a part
    if lost.any():
        stays = lost[:, None]
        end = Point(
            torch.where(stays, point.position, end.position),
            torch.where(lost, point.log_density, end.log_density),
            torch.where(stays, point.gradient, end.gradient),
        )
        turned = torch.where(stays, directions(noise), turned)  # elsewhere, from where it was
        change = change.where(~lost, 0.0)
    return Move(end, turned, change, lost)
