"""Sizes, shapes and probabilities from which no reference network can be built, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from polymode.core.checks import is_number


def check_sizes(
    net: str, input_shape: Sequence[int], num_outputs: int, dropout: float = 0.0
) -> None:
    """Refuse an empty example, no outputs, and a dropout probability outside [0, 1)."""
    if isinstance(input_shape, int) or len(input_shape) == 0 or min(input_shape) < 1:
        raise ValueError(
            f"`input_shape` of {net} must be the shape of one example without the batch axis,"
            f" such as (2,) or (1, 28, 28), got {input_shape!r}"
        )
    if num_outputs < 1:
        raise ValueError(f"`num_outputs` of {net} must be >= 1, got {num_outputs}")
    check_probability(net, "dropout", dropout)


def check_probability(net: str, name: str, value: float) -> None:
    """Refuse a probability of dropping outside [0, 1)."""
    if not (is_number(value) and 0 <= value < 1):
        raise ValueError(f"`{name}` of {net} must be in [0, 1), got {value!r}")


def check_image(
    net: str, input_shape: Sequence[int], smallest: int, because: str = ""
) -> tuple[int, int, int]:
    """Return (C, H, W); refuse other shapes and images with a side below `smallest` pixels."""
    if len(input_shape) != 3:
        raise ValueError(
            f"{net} takes images of shape (C, H, W), got input_shape {tuple(input_shape)};"
            " grey images need a channel axis, x[:, None]; other data take `mlp`"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        raise ValueError(
            f"{net} needs images of at least {smallest}x{smallest} pixels{because}, got"
            f" {height}x{width}; `mlp` takes any size"
        )
    return channels, height, width
