"""Random noise of the size that an attack is allowed: what needs no attacker at all.

The corners of the L∞ ball, x ± ε with random signs, or points on the L2 sphere; of several draws
the best is kept. An attack that does not beat it has no useful gradients, which is the first sign
of gradient masking (A. Athalye, N. Carlini, D. Wagner, ICML 2018, section 3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polymode.adversary.kinds import KINDS, check_steps
from polymode.adversary.search import Search


@KINDS.register("noise", summary="random signs of size eps", gradients=False, keep="best")
def noise(search: Search, *, draws: int = 1) -> list[Tensor]:
    """Look at random points at distance ε; return the inputs on the way.

    Args:
        draws: random points per example, ≥ 1, of which the best is kept.
    """
    check_steps("noise", draws=draws)
    ball = search.ball
    if not math.isfinite(ball.eps):
        raise ValueError("`eps` of noise must be finite: it is the size of the noise, got inf")
    path = [ball.centre]
    for number in range(draws):
        moved = torch.stack(
            [_direction(ball.centre[0], ball.norm, s) for s in search.streams("noise", number)]
        )
        path.append(ball.project(ball.centre + ball.eps * moved.to(ball.centre)))
        search.look(path[-1])
    return path


def _direction(like: Tensor, norm: str, stream: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=stream, dtype=torch.float64)
    return drawn.sign() if norm == "linf" else drawn / drawn.norm()
