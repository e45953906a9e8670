"""Conformal prediction: sets and intervals with a coverage that holds whatever the model.

`conformal_sets` and `conformal_intervals` calibrate a rule on data that the user names; called on
another prediction, it gives the sets or intervals. The `coverage` module judges them.
"""

from __future__ import annotations

from polymode.conformal.coverage import (
    SizeStrata,
    coverage,
    covered,
    mean_size,
    size_stratified_coverage,
)
from polymode.conformal.intervals import (
    ConformalIntervals,
    PredictionIntervals,
    conformal_intervals,
)
from polymode.conformal.quantile import conformal_quantile, conformal_rank
from polymode.conformal.sets import ConformalSets, PredictionSets, conformal_sets, tune_raps

__all__ = [
    "ConformalIntervals",
    "ConformalSets",
    "PredictionIntervals",
    "PredictionSets",
    "SizeStrata",
    "conformal_intervals",
    "conformal_quantile",
    "conformal_rank",
    "conformal_sets",
    "coverage",
    "covered",
    "mean_size",
    "size_stratified_coverage",
    "tune_raps",
]
