"""Warnings that name the line of the user's program which led to them."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = ("polymode", "torch", "contextlib", "functools")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points at the innermost frame outside polymode and torch."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
