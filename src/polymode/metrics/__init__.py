"""Metrics: what a prediction is worth, each a pure function.

`classification`, `regression` and `ood` hold the functions, each with formula, reference and traps;
`evaluate` computes them all, `compare` sets methods side by side.
"""

from __future__ import annotations

from polymode.metrics import classification, ood, regression
from polymode.metrics.compare import compare
from polymode.metrics.evaluation import evaluate
from polymode.metrics.leaderboard import Leaderboard
from polymode.metrics.results import Results, Row
from polymode.metrics.score import Score

__all__ = [
    "Leaderboard",
    "Results",
    "Row",
    "Score",
    "classification",
    "compare",
    "evaluate",
    "ood",
    "regression",
]
