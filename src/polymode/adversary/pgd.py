r"""PGD: projected gradient ascent from random points of the ball, in L∞ or L2.

.. math:: x_0 \sim U(B), \quad x_{t+1} = \Pi_B(x_t + \alpha\, v_t),

v the sign of the gradient (L∞) or the gradient divided by its norm (L2). Of x itself, all restarts
and all steps the best input of each example is kept, see `search.py`.

Limits: a random start, without which it is `bim`; a fixed step size; a loss with many local maxima
wants restarts. What withstands it may still fall to another loss (`loss="margin"`), to more samples
for a gradient, or to an attack that needs no gradients: look at the flags.

Reference: A. Madry et al., Towards deep learning models resistant to adversarial attacks, ICLR
2018, section 2.1; step size 2.5 ε / T from its section on the resilience of CIFAR10 models.
"""

from __future__ import annotations

from torch import Tensor

from polymode.adversary.kinds import KINDS, check_steps, step_of
from polymode.adversary.search import Search, climb


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
