"""Minimisers: of a function of one positive number, and of many numbers by Newton's method."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from polymode.curvature.solve import descent_direction

BOUNDS = (0.01, 100.0)
"""Range of the single number; beyond it a prediction is certain or uninformative."""


class Slopes(NamedTuple):
    """A function of one number, at one point: value, first and second derivative."""

    value: float
    slope: float
    curvature: float


def least(function: Callable[[float], Slopes], *, convex: bool, start: float = 1.0) -> float:
    """Return the minimiser of `function` in `BOUNDS`, to 1e-12 of x.

    Newton's method on the slope, within a bracket that is bisected where Newton's step leaves it or
    gains little. A function that is not convex is first evaluated at 17 points; the neighbours of
    the best one, of ties the nearest to 1, are the bracket.
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
    """A function of many numbers, at one point.

    Attributes:
        value: of the function. gradient: in the shape of the numbers.
        product: maps a direction to its product with the Hessian H.
        solver: returns a function that applies a rough inverse of H, symmetric and > 0.
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
    """Descend from `start` until no gradient exceeds `tolerance` (the minimum, if convex).

    Each step solves Newton's equation by preconditioned conjugate gradients, which stop at negative
    curvature, and is halved until the function decreases (Armijo).

    Reference: J. Nocedal, S. Wright, Numerical optimization, 2006, algorithm 7.1.
    """
    theta, current = start, function(start)
    for _ in range(200):
        if current.gradient.abs().max() <= tolerance:
            break
        step = descent_direction(current.product, current.gradient, current.solver())
        promised, size = float((step * current.gradient).sum()), 1.0
        rounding = 4e-16 * max(1.0, abs(current.value))
        while (trial := function(theta + size * step)).value > (
            current.value + 1e-4 * size * promised + rounding
        ):
            size *= 0.5
            if size < 1e-10:
                return theta
        theta, current = theta + size * step, trial
    return theta
