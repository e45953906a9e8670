"""Where a function is least: of one positive number, or of many numbers by Newton's method."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.curvature.solve import descent_direction

BOUNDS = (0.01, 100.0)
"""Where one number is looked for; a prediction is certain or says nothing beyond."""


class Slopes(NamedTuple):
    """A function of one number, at one place: value, first and second derivative."""

    value: float
    slope: float
    curvature: float


def least(function: Callable[[float], Slopes], *, convex: bool, start: float = 1.0) -> float:
    """Return the x in `BOUNDS` where `function` is least, to 1e-12 of x.

    Newton's method on the slope, within a bracket that shrinks by bisection where Newton's step
    leads out or gains little. A function that is not convex is first looked at in 17 places, and
    the best one's neighbours are the bracket; of places alike the one nearest to 1 is taken.
    """
    x, low, high = start, 0.5 * BOUNDS[0], 2.0 * BOUNDS[1]
    if not convex:
        places = sorted((10.0 ** (k / 4) for k in range(-8, 9)), key=lambda place: abs(log(place)))
        x = min(places, key=lambda place: function(place).value)
        low, high = x / 10**0.25, x * 10**0.25
    before = high - low
    for _ in range(200):
        _, slope, curvature = function(x)
        if slope == 0 or (slope > 0 and x <= BOUNDS[0]) or (slope < 0 and x >= BOUNDS[1]):
            break
        low, high = (low, x) if slope > 0 else (x, high)
        step = -slope / curvature if curvature > 0 else torch.inf
        if min(abs(step), high - low) <= 1e-12 * x:
            break
        if not low < x + step < high or abs(step) > 0.5 * before:
            step = sqrt(low * high) - x
        x, before = x + step, abs(step)
    return min(max(x, BOUNDS[0]), BOUNDS[1])


class Bend(NamedTuple):
    """A function of many numbers, at one place: value, gradient, product with its Hessian H.

    `solver` gives, when called, a function that applies a rough inverse of H, symmetric and > 0.
    """

    value: float
    gradient: Tensor
    product: Callable[[Tensor], Tensor]
    solver: Callable[[], Callable[[Tensor], Tensor]]


def newton(
    function: Callable[[Tensor], Bend],
    start: Tensor,
    tolerance: float = 1e-9,
) -> Tensor:
    """Return where no gradient is above `tolerance`, down from `start` (the minimum, if convex).

    Each step solves Newton's equation by preconditioned conjugate gradients, which stop where the
    function curves down, and is halved until the function falls (Armijo).

    Reference: J. Nocedal, S. Wright, Numerical optimization, 2006, algorithm 7.1.
    """
    theta, here = start, function(start)
    for _ in range(200):
        if here.gradient.abs().max() <= tolerance:
            break
        step = descent_direction(here.product, here.gradient, here.solver())
        promised, size = float((step * here.gradient).sum()), 1.0
        rounding = 4e-16 * max(1.0, abs(here.value))
        while (there := function(theta + size * step)).value > (
            here.value + 1e-4 * size * promised + rounding
        ):
            size *= 0.5
            if size < 1e-10:
                return theta
        theta, here = theta + size * step, there
    return theta
