"""Metrics: what a prediction is worth, each a pure function.

`classification`, `calibration` and `selective` score classes; `regression`, `standardised`,
`crps`, `intervals` and `sparsification` score densities; `ood` tells inputs from elsewhere;
`reference` holds a prediction against that of a reference posterior;
`diversity` sets members side by side. Each has formula, reference and traps. `evaluate` computes
all that is registered, `compare` sets methods side by side.
"""

from __future__ import annotations

from polymode.metrics import (
    calibration,
    classification,
    crps,
    diversity,
    intervals,
    ood,
    reference,
    regression,
    selective,
    sparsification,
    standardised,
)
from polymode.metrics.compare import compare
from polymode.metrics.evaluation import evaluate
from polymode.metrics.leaderboard import Leaderboard
from polymode.metrics.results import Results, Row
from polymode.metrics.score import Interval, NotDefined, Score

__all__ = [
    "Interval",
    "Leaderboard",
    "NotDefined",
    "Results",
    "Row",
    "Score",
    "calibration",
    "classification",
    "compare",
    "crps",
    "diversity",
    "evaluate",
    "intervals",
    "ood",
    "reference",
    "regression",
    "selective",
    "sparsification",
    "standardised",
]
