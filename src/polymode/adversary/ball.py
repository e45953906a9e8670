r"""What an attack may do to an input: a ball around it, cut by the box of legal inputs.

.. math:: B(x) = \{x' : \|x' - x\| \le \epsilon,\ low \le x' \le high\}, \quad \|\cdot\|_\infty
          \text{ or } \|\cdot\|_2

Both hold exactly, in the arithmetic of numbers as they are stored: x + ε rounded up would leave the
ball by the last bit, so it is rounded towards x. Projecting on the ball first and on the box then
is right, because x lies in the box: the second moves no coordinate away from x.

`B` batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NORMS = ("linf", "l2")
Box = tuple[float, float]
_SHRINK = 1 - 2.0**-20  # of a step back into an L2 ball that rounding has left


class Ball(NamedTuple):
    """The inputs that an attack may choose from, for a batch of them.

    Attributes:
        centre: (B, ...) inputs that are attacked, within the box.
        eps: radius ≥ 0, `inf` for the box alone. norm: "linf" or "l2".
        box: smallest and largest legal value, or None for no box.
    """

    centre: Tensor
    eps: float
    norm: str = "linf"
    box: Box | None = (0.0, 1.0)

    def rows(self, which: slice | Tensor) -> Ball:
        """Return the ball of some inputs."""
        return self._replace(centre=self.centre[which])

    def project(self, x: Tensor) -> Tensor:
        """Return the nearest points of the ball, then of the box."""
        if math.isfinite(self.eps):
            x = self._linf(x) if self.norm == "linf" else self._l2(x)
        return x if self.box is None else x.clamp(*self.box)

    def _linf(self, x: Tensor) -> Tensor:
        sides = []
        for sign in (-1.0, 1.0):
            side = (self.centre.double() + sign * self.eps).to(self.centre.dtype)
            over = (side.double() - self.centre.double()).abs() > self.eps
            sides.append(torch.where(over, torch.nextafter(side, self.centre), side))
        return torch.minimum(torch.maximum(x, sides[0]), sides[1])

    def _l2(self, x: Tensor) -> Tensor:
        while True:
            moved = x.double() - self.centre.double()
            norms = _norms(moved)
            if not (norms > self.eps).any():
                return x
            # a radius below the last bit of the centre leaves the centre alone
            shrunk = moved * (self.eps / norms).clamp(max=1.0) * _SHRINK
            inside = (self.centre.double() + shrunk).to(x.dtype)
            stuck = (inside == x) & (norms > self.eps)
            x = torch.where(norms > self.eps, torch.where(stuck, self.centre, inside), x)

    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the direction of norm 1 in which a linear function rises most; 0 for 0."""
        if self.norm == "linf":
            return gradient.sign()
        largest = gradient.flatten(1).abs().amax(1).view(-1, *[1] * (gradient.dim() - 1))
        scaled = gradient / torch.where(largest > 0, largest, 1.0)  # squares must not underflow
        return scaled / _norms(scaled).clamp(min=1.0)

    def random(self, streams: Sequence[torch.Generator]) -> Tensor:
        """Return a point for each input, from a stream of its own, uniform in the ball; what the
        box cuts off is moved to its side."""
        pairs = zip(self.centre, streams, strict=True)
        return self.project(torch.stack([self._random(*pair) for pair in pairs]))

    def _random(self, centre: Tensor, stream: torch.Generator) -> Tensor:
        moved = torch.empty(centre.shape, dtype=torch.float64)
        if not math.isfinite(self.eps):
            assert self.box is not None
            return moved.uniform_(*self.box, generator=stream).to(centre)
        if self.norm == "linf":
            moved.uniform_(-self.eps, self.eps, generator=stream)
        else:
            moved.normal_(generator=stream)
            radius = torch.rand((), generator=stream, dtype=torch.float64) ** (1 / moved.numel())
            moved *= self.eps * radius / moved.norm()
        return (centre.double() + moved.to(centre.device)).to(centre)

    def distances(self, x: Tensor) -> Tensor:
        """Return how far points are from the centres, (B,) float64."""
        moved = (x.double() - self.centre.double()).flatten(1)
        return moved.abs().amax(1) if self.norm == "linf" else moved.norm(dim=1)


def _norms(moved: Tensor) -> Tensor:
    """Return Euclidean norms, (B, 1, ...)."""
    return moved.flatten(1).norm(dim=1).view(-1, *[1] * (moved.dim() - 1))
