r"""BIM: iterative FGSM, away from the label or towards a target.

.. math:: x_0 = x, \quad x_{t+1} = \Pi_B(x_t + \alpha\, \mathrm{sign}\, \nabla_x \ell(x_t)).

With ε = ∞ only the box bounds it, as in the targeted trajectories of Li and Gal (2017), who take
steps of α = 0.01 and look at the uncertainty on the way.

Limits: it starts at x, where a saturated network has no gradient; PGD starts elsewhere.

Reference: A. Kurakin, I. Goodfellow, S. Bengio, Adversarial examples in the physical world, ICLR
2017 workshop, sections 2.2 and 2.3.
"""

from __future__ import annotations

from torch import Tensor

from polymode.adversary.kinds import KINDS, check_steps, step_of
from polymode.adversary.search import Search, climb


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
