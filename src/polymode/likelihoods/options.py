"""Options of likelihoods in canonical form, or an error that names the option and its owner."""

from __future__ import annotations

import math
from typing import Any

from polymode.core.checks import shown
from polymode.core.registry import suggest

LEARNED = ("learned", "learned_per_output")


def count(field: str, owner: object, value: int, at_least: int) -> int:
    """Return the integer, or say how large it must be."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        name = type(owner).__name__
        raise ValueError(
            f"`{field}` of {name} must be an integer >= {at_least}, got {shown(value)}"
        )
    return value


def positive(field: str, owner: object, value: Any) -> float:
    """Return the number as a float, or say that it must be finite and > 0."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0.0 < number < math.inf:
        name = type(owner).__name__
        raise ValueError(f"`{field}` of {name} must be a finite number > 0, got {shown(value)}")
    return number


def scale_spec(field: str, owner: object, value: Any) -> float | tuple[float, ...] | str:
    """Return a scale in canonical form: a float, a tuple of floats, or one of two words."""
    if isinstance(value, (tuple, list)) and value:
        return tuple(positive(field, owner, number) for number in value)
    if value is None or isinstance(value, (str, tuple, list)):
        if value in LEARNED:
            return str(value)
        near = suggest(value, LEARNED) if isinstance(value, str) else ""
        raise ValueError(
            f"`{field}` of {type(owner).__name__} must be chosen: a number > 0 or a tuple of them"
            f" if it is known, 'learned' or 'learned_per_output' if not; got {shown(value)}.{near}"
        )
    return positive(field, owner, value)
