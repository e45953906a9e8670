"""Annealing: the factor γ_t of the driving force while particles spread.

With s = t/T, the fraction of the run that is done,

    none      γ = 1
    linear    γ = s
    hyper     γ = tanh((1.3 s)¹⁰)
    cyclic    γ = (5 s mod 1)¹⁰                 five cycles

A small γ is a posterior tempered by 1/γ: repulsion outweighs the data, and particles explore.
`hyper` keeps the force under 2 % of itself for the first half of a run and passes 0.99 at s = 0.9;
`linear` ends at 1; `cyclic` returns to 0 at each fifth, and ends just under 1.

Reference: F. D'Angelo, V. Fortuin, Annealed Stein variational gradient descent, AABI 2021; the
    schedules are those of the released code of repulsive ensembles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from polymode.core.options import option

CYCLES = 5
POWER = 10

ANNEALING: dict[str, Callable[[float], float]] = {
    "none": lambda done: 1.0,
    "linear": lambda done: done,
    "hyper": lambda done: math.tanh((1.3 * done) ** POWER),
    "cyclic": lambda done: (CYCLES * done % 1.0) ** POWER,
}


def annealing_factor(schedule: str, step: int, total_steps: int) -> float:
    """Return γ in [0, 1] for step number `step` (from 0) of `total_steps`; 1 after the last.

    >>> [round(annealing_factor("hyper", t, 10), 3) for t in (0, 5, 8, 9, 10)]
    [0.0, 0.013, 0.902, 1.0, 1.0]
    """
    if step >= total_steps:
        return 1.0
    return ANNEALING[schedule](max(step, 0) / total_steps)


def annealing_option() -> Any:
    """Return the option `annealing` of a method whose members repel."""
    return option(
        "none",
        choices=ANNEALING,
        doc="how the factor γ_t of the driving force grows over the T steps of the run",
        more="'linear' is t/T, 'hyper' tanh((1.3 t/T)¹⁰), 'cyclic' five times (t/T)¹⁰.",
    )
