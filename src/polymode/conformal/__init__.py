"""Conformal prediction: sets and intervals with a coverage that holds whatever the model.

`conformal_sets` (in `prediction_sets`) and `conformal_intervals` (in `prediction_intervals`)
calibrate a rule on data that the user names; called on another prediction, the rule returns sets or
intervals. Both rest on `quantile`; `coverage` scores them on labelled data.
"""

from __future__ import annotations

from polymode.conformal.coverage import (
    SizeStrata,
    coverage,
    covered,
    mean_size,
    size_stratified_coverage,
)
from polymode.conformal.prediction_intervals import (
    ConformalIntervals,
    PredictionIntervals,
    conformal_intervals,
)
from polymode.conformal.prediction_sets import (
    ConformalSets,
    PredictionSets,
    conformal_sets,
    tune_raps,
)
from polymode.conformal.quantile import conformal_quantile, conformal_rank

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
