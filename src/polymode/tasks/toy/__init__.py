"""Toy tasks: small sets whose truth is known, drawn when asked for, with exact answers for some."""

from __future__ import annotations

from polymode.tasks.toy import (  # noqa: F401  (enter their tasks in TASKS)
    clouds,
    curves,
    donuts,
    gap,
    linear,
    logistic,
    matern,
    mnist1d,
    moons,
    synthetic,
    two_modes,
)
