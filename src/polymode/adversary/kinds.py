"""The kinds of attack by name, and what their options must be.

A kind is a function `(search, *, options) -> inputs on the way`. It looks at inputs through its
`Search`, which keeps the best ones. It is entered with

    @KINDS.register("name", summary="one line", gradients=True, keep="best")

`gradients` says whether it follows gradients, `keep` what it hands back unless asked otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from polymode.core.registry import Registry

Kind = Callable[..., list[Tensor]]

KINDS: Registry[Kind] = Registry(
    "kind of attack",
    modules=[f"polymode.adversary.{name}" for name in ("fgsm", "bim", "pgd", "square", "noise")],
)


def check_steps(kind: str, **counts: int) -> None:
    """Refuse numbers of steps, restarts or queries that are not integers of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"`{name}` of {kind} must be an integer of at least 1, got {count!r}")


def step_of(kind: str, eps: float, steps: int, step_size: float | None) -> float:
    """Return the size of a step: as given, or 2.5 ε / T."""
    if step_size is None:
        if not math.isfinite(eps):
            raise ValueError(f"`step_size` of {kind} must be given where `eps` is inf")
        return 2.5 * eps / steps
    if not (isinstance(step_size, int | float) and math.isfinite(step_size) and step_size > 0):
        raise ValueError(f"`step_size` of {kind} must be > 0, got {step_size!r}")
    return float(step_size)
