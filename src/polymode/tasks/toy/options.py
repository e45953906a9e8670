"""What options of toy tasks must be: sizes, positive numbers, the noise known or not."""

from __future__ import annotations

import math


def check_sizes(name: str, **sizes: int) -> None:
    """Refuse sets without examples."""
    for option, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise ValueError(f"`{option}` of {name} must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"`{option}` of {name} must be >= 1, got {size}")


def check_positive(name: str, **values: float) -> None:
    """Refuse what is not a finite number above zero."""
    for option, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"`{option}` of {name} must be a number > 0, got {value!r}")
        if not (value > 0 and math.isfinite(value)):
            bound = "finite" if value > 0 else "> 0"
            raise ValueError(f"`{option}` of {name} must be {bound}, got {value}")


def check_noise(name: str, noise: str, noise_std: float) -> None:
    """Refuse other words for the noise than the two there are, and a standard deviation <= 0."""
    if noise not in ("known", "learned"):
        raise ValueError(
            f'`noise` of {name} must be "known" or "learned", got {noise!r};'
            " its standard deviation is `noise_std`"
        )
    check_positive(name, noise_std=noise_std)
