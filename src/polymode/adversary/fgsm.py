r"""FGSM: one step of the size of the whole ball.

.. math:: x' = \mathrm{clip}(x + \epsilon\, \mathrm{sign}\, \nabla_x \ell(x)),

in L2 with the normalised gradient instead of its sign. Sign and direction are those of the loss:
away from the label, or towards a target.

Limits: one linear step. What withstands it is not robust; large ε often does *less* than a smaller
one, since the loss is not linear so far away.

Reference: I. Goodfellow, J. Shlens, C. Szegedy, Explaining and harnessing adversarial examples,
ICLR 2015, eq. in section 4.
"""

from __future__ import annotations

import math

from torch import Tensor

from polymode.adversary.kinds import KINDS
from polymode.adversary.search import Search, climb


@KINDS.register("fgsm", summary="one signed gradient step of size eps", gradients=True, keep="last")
def fgsm(search: Search) -> list[Tensor]:
    """Take the step and return (x, x')."""
    eps = search.ball.eps
    if not math.isfinite(eps):
        raise ValueError("`eps` of fgsm must be finite: it is the size of its step, got inf")
    return climb(search, search.ball.centre, steps=1, step_size=eps)
