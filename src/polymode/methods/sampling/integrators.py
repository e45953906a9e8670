"""One step of Langevin and Hamiltonian dynamics, in place, on tensors of any shape.

The target is exp(−U/T), U a sum over N examples. Gradients g are those of U/N, so `lr` multiplies a
mean gradient as in SGD, and noise has the variance T/N that belongs to it. In physical units the
step is h = √(lr/N), and a momentum here is h times a velocity of unit mass: its variance at
temperature T is T lr/N. A letter stands for what is solved exactly in turn:

    B   m ← m − lr g              A   θ ← θ + m/2, half of the way
    O   m ← c m + noise           D   z ← z + γ/2 (kinetic temperature − T), c = exp(−z)

    Langevin   θ ← θ − lr g + √(2 lr T/N) ε        order 1 in lr (Welling & Teh 2011)
               ... with (ε + ε')/2 for ε           order 2 in lr (Leimkuhler & Matthews 2013)
    BAOAB      B A O A                             order 2 in h  (Leimkuhler & Matthews 2013)
    BADODAB    B A D O D A                         order 2 in h  (Leimkuhler & Shang 2016)

ε' is the noise of the step before. The half steps B at both ends of BAOAB are one: positions are
the same, and one gradient is needed per step. Orders are those of averages over the stationary law
in θ. For Gaussian targets the second, and BAOAB, have the exact covariance at every stable step.

A metric s > 0 like θ takes the step in the coordinates θ/s: g becomes s g, and moves become s times
as long. With s = √G this is the preconditioner G of Langevin dynamics, the inverse mass matrix of
Hamiltonian dynamics. The law stays the same as long as s does not depend on θ.
"""

from __future__ import annotations

import torch
from torch import Tensor

Leaves = list[Tensor]


@torch.no_grad()
def langevin(
    leaves: Leaves,
    gradients: Leaves,
    momentum: Tensor,
    momenta: Leaves,
    change: Tensor | None,
    *,
    lr: float,
    scale: float,
    variance: float,
    metric: Leaves | None = None,
) -> Tensor:
    """Move `leaves` by scale ε − lr g, and return the kinetic temperature of that (M,).

    Args:
        momentum: scale ε, (M, P), a row per chain, which is changed; `momenta` are views of it like
            `leaves`.
        change: where ε is the noise of the step before, ε_new − ε, half of which is added to it for
            the move. The temperature is then that of BAOAB's momentum between its two kicks.
        scale: √(2 lr T/N).
        variance: 2 lr/N, of the momentum at temperature 1.
    """
    kick(momenta, gradients, lr, metric)
    temperature = kinetic_temperature(momentum, variance)
    if change is not None:
        momentum.add_(change, alpha=scale / 2)
    drift(leaves, momenta, metric, share=1.0)
    return temperature


@torch.no_grad()
def baoab(
    leaves: Leaves,
    gradients: Leaves,
    momentum: Tensor,
    momenta: Leaves,
    noise: Tensor,
    *,
    lr: float,
    keeps: float,
    scale: float,
    metric: Leaves | None = None,
) -> None:
    """Take the step BAOA.

    Args:
        momentum: (M, P), a row per chain; `momenta` are views of it like `leaves`.
        noise: ε, (M, P).
        keeps: c. scale: √((1 − c²) T lr/N).
    """
    kick(momenta, gradients, lr, metric)
    drift(leaves, momenta, metric)
    momentum.mul_(keeps).add_(noise, alpha=scale)
    drift(leaves, momenta, metric)


@torch.no_grad()
def badodab(
    leaves: Leaves,
    gradients: Leaves,
    momentum: Tensor,
    momenta: Leaves,
    friction: Tensor,
    noise: Tensor,
    *,
    lr: float,
    rate: float,
    diffusion: float,
    temperature: float,
    variance: float,
    metric: Leaves | None = None,
) -> None:
    """Take the step BADODA; changes the friction z (M,) of each chain, too.

    Args:
        rate: γ, how quickly z follows the temperature.
        diffusion: a, the friction that the noise alone would balance.
        variance: lr/N, of the momentum at temperature 1.
    """
    kick(momenta, gradients, lr, metric)
    drift(leaves, momenta, metric)
    friction.add_(kinetic_temperature(momentum, variance) - temperature, alpha=rate / 2)
    small = friction.abs() < 1e-6
    share = torch.where(small, 2.0, -torch.expm1(-2 * friction) / friction.where(~small, 1.0))
    scale = (diffusion * temperature * variance * share).sqrt_()
    momentum.mul_(torch.exp(-friction).unsqueeze(1)).addcmul_(noise, scale.unsqueeze(1))
    friction.add_(kinetic_temperature(momentum, variance) - temperature, alpha=rate / 2)
    drift(leaves, momenta, metric)


def kick(momenta: Leaves, gradients: Leaves, lr: float, metric: Leaves | None = None) -> None:
    """B: change the momentum by the gradient."""
    if metric is None:
        torch._foreach_add_(momenta, gradients, alpha=-lr)
    else:
        torch._foreach_addcmul_(momenta, gradients, metric, value=-lr)


def drift(
    leaves: Leaves, momenta: Leaves, metric: Leaves | None = None, share: float = 0.5
) -> None:
    """A: change the position by half of the momentum, or another share."""
    if metric is None:
        torch._foreach_add_(leaves, momenta, alpha=share)
    else:
        torch._foreach_addcmul_(leaves, momenta, metric, value=share)


def kinetic_temperature(momentum: Tensor, variance: float) -> Tensor:
    """Return the mean square of each chain's momentum (M, P), in units of its `variance` at
    temperature 1, (M,)."""
    squares = torch.linalg.vecdot(momentum, momentum)
    return squares.mul_(1 / (momentum.shape[1] * variance))
