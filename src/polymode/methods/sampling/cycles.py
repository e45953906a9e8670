"""Runs that are cut into cycles of equal length, give or take a step."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache


@cache
def cycle_ends(total_steps: int, num_cycles: int) -> tuple[int, ...]:
    """Return the number of the last step of each cycle; no cycle where there is no step.

    >>> cycle_ends(10, 4)
    (2, 5, 7, 10)
    """
    if total_steps == 0:
        return ()
    if num_cycles > total_steps:
        raise ValueError(
            f"{num_cycles} cycles need as many steps, but there are {total_steps}; take more epochs"
            " or fewer cycles"
        )
    return tuple(total_steps * k // num_cycles for k in range(1, num_cycles + 1))


def place(ends: tuple[int, ...], number: int) -> tuple[int, int]:
    """Return how many steps of its cycle lie before step `number`, from 0, and how long it is.

    >>> place((2, 5, 7, 10), 3)
    (1, 3)
    """
    cycle = bisect_right(ends, number)
    start = ends[cycle - 1] if cycle else 0
    return number - start, ends[cycle] - start
