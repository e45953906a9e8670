"""The kinds of attack by name, and the checks of their options.

A kind is a function `(search, *, options) -> inputs on the way`. It judges inputs through its
`Search`, which keeps the best ones. It is registered with

    @KINDS.register("name", summary="one line", gradients=True, keep="best")

`gradients` tells whether it follows gradients, `keep` which input it returns by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from polymode.core.registry import Registry

Kind = Callable[..., list[Tensor]]

KINDS: Registry[Kind] = Registry(
    "kind of attack",
    modules=["polymode.adversary.gradient_steps", "polymode.adversary.gradient_free"],
)


def check_steps(kind: str, **counts: int) -> None:
    """Refuse numbers of steps, restarts or queries that are not integers of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"`{name}` of {kind} must be an integer of at least 1, got {count!r}")


def step_of(kind: str, eps: float, steps: int, step_size: float | None) -> float:
    """Return the step size: the given one, or 2.5 ε / T."""
    if step_size is None:
        if not math.isfinite(eps):
            raise ValueError(f"`step_size` of {kind} must be given where `eps` is inf")
        return 2.5 * eps / steps
    if not (isinstance(step_size, int | float) and math.isfinite(step_size) and step_size > 0):
        raise ValueError(f"`step_size` of {kind} must be > 0, got {step_size!r}")
    return float(step_size)
