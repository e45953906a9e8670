r"""Attacks that follow gradients: FGSM, BIM (iterative FGSM) and PGD.

All take steps of size α in the direction v of steepest ascent, the sign of the gradient in L∞ and
the gradient divided by its norm in L2, and project onto the ball B of radius ε:

.. math:: x_{t+1} = \Pi_B(x_t + \alpha\, v_t).

====  ======================================  =====================
fgsm  one step from x, α = ε                  keeps the last input
bim   from x, α = 2.5 ε / T                   keeps the best input
pgd   from random points of B, α = 2.5 ε / T  keeps the best input
====  ======================================  =====================

With ε = ∞ only the box bounds BIM, as in the targeted trajectories of Li and Gal (2017), who take
steps of α = 0.01 and look at the uncertainty on the way. PGD keeps the best input of x itself, all
restarts and all steps, see `search.py`.

Limits: FGSM is one linear step, and a large ε often does *less* than a smaller one, since the loss
is not linear that far away. BIM starts at x, where a saturated network has no gradient. PGD has a
fixed step size, and a loss with many local maxima needs restarts. Inputs that withstand all three
may still fall to another loss (`loss="margin"`), to more samples per gradient, or to an attack
without gradients: look at the flags.

References: I. Goodfellow, J. Shlens, C. Szegedy, Explaining and harnessing adversarial examples,
ICLR 2015, section 4 (fgsm); A. Kurakin, I. Goodfellow, S. Bengio, Adversarial examples in the
physical world, ICLR 2017 workshop, sections 2.2 and 2.3 (bim); A. Madry et al., Towards deep
learning models resistant to adversarial attacks, ICLR 2018, section 2.1 (pgd; step size 2.5 ε / T
from its section on the resilience of CIFAR10 models).
"""

from __future__ import annotations

import math

from torch import Tensor

from polymode.adversary.attack_kinds import KINDS, check_steps, step_of
from polymode.adversary.search import Search


@KINDS.register("fgsm", summary="one signed gradient step of size eps", gradients=True, keep="last")
def fgsm(search: Search) -> list[Tensor]:
    """Take the step and return (x, x')."""
    eps = search.ball.eps
    if not math.isfinite(eps):
        raise ValueError("`eps` of fgsm must be finite: it is the size of its step, got inf")
    return climb(search, search.ball.centre, steps=1, step_size=eps)


@KINDS.register(
    "bim", summary="signed gradient steps from the input itself", gradients=True, keep="best"
)
def bim(search: Search, *, steps: int = 10, step_size: float | None = None) -> list[Tensor]:
    """Climb from the inputs themselves; return the inputs on the way.

    Args:
        steps: T ≥ 1. step_size: α, by default 2.5 ε / T.
    """
    check_steps("bim", steps=steps)
    size = step_of("bim", search.ball.eps, steps, step_size)
    return climb(search, search.ball.centre, steps=steps, step_size=size)


@KINDS.register(
    "pgd", summary="projected gradient steps from random points", gradients=True, keep="best"
)
def pgd(
    search: Search,
    *,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 1,
) -> list[Tensor]:
    """Climb from one random point per restart; return the inputs on the way of the first.

    Args:
        steps: T ≥ 1. step_size: α, by default 2.5 ε / T. restarts: climbs, ≥ 1.
    """
    check_steps("pgd", steps=steps, restarts=restarts)
    size = step_of("pgd", search.ball.eps, steps, step_size)
    search.look(search.ball.centre, record=False)  # an attacker may also leave an input alone
    paths = []
    for number in range(restarts):
        start = search.ball.random(search.streams("start", number))
        paths.append(climb(search, start, steps=steps, step_size=size, restart=number))
    return paths[0]


def climb(
    search: Search, start: Tensor, *, steps: int, step_size: float, restart: int = 0
) -> list[Tensor]:
    """Follow the gradient from `start`, staying in the ball; return the T + 1 inputs on the way.

    Args:
        steps: T. step_size: α. restart: number of this climb, for the samples of its gradients.
    """
    x, path, record = start, [start], restart == 0
    for step in range(steps):
        gradient = search.gradient(x, restart, step, record=record)
        x = search.ball.project(x + step_size * search.ball.steepest(gradient))
        path.append(x)
    search.look(x, record=record)
    return path
