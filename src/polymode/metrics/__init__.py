"""Metrics: pure functions that score predictions, each with formula, reference and traps.

Read `score` first: what a metric returns, and how it is registered. `classification`,
`calibration` and `selective` score classes, `decomposition` takes their scores apart, and
`rejection` bounds the risk of answers; `regression`, `standardised`, `crps`, `energy`, `intervals`
and `sparsification` score densities; `joint` and `disentanglement` look at both kinds; `ood`
detects out-of-distribution inputs, `scod` with errors on the test set; `reference` compares with
the prediction of a reference posterior; `diversity` compares members.

`evaluation` computes every registered metric and returns `results`, with a few `examples`;
`observed` and `clusters` serve it where an example has several observations.
`compare` groups results into a `leaderboard`, by the tests of `paired`; `table` formats numbers.
"""

from __future__ import annotations

from polymode.metrics import (
    calibration,
    classification,
    crps,
    decomposition,
    disentanglement,
    diversity,
    energy,
    intervals,
    joint,
    ood,
    reference,
    regression,
    rejection,
    scod,
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
    "decomposition",
    "disentanglement",
    "diversity",
    "energy",
    "evaluate",
    "intervals",
    "joint",
    "ood",
    "reference",
    "regression",
    "rejection",
    "scod",
    "selective",
    "sparsification",
    "standardised",
]
