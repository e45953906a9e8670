"""Toy tasks: small sets drawn when asked for, whose truth, or even exact posterior, is known.

- `plane`: classifications in the plane. `mnist1d`: signals in ten classes.
- `curves`, `matern`, `synthetic`: regressions of one variable, made by `noisy_function`.
- `linear`, `logistic`, `two_modes`: models with exact posteriors, by algebra or `quadrature`.
"""

from __future__ import annotations

from polymode.tasks.toy import (  # noqa: F401  (enter their tasks in TASKS)
    curves,
    linear,
    logistic,
    matern,
    mnist1d,
    plane,
    synthetic,
    two_modes,
)
