"""Conformal prediction: sets and intervals with a coverage that holds whatever the model.

`conformal_sets` (in `prediction_sets`) and `conformal_intervals` (in `prediction_intervals`)
calibrate a rule on data that the user names; called on another prediction, the rule returns sets or
intervals. Both rest on `quantile`; `coverage` scores them on labelled data.

Other guarantees build on the scores of `region`: within every group or class (`mondrian`), under
covariate shift (`weighted`), from folds instead of data set aside (`cross`), along a stream
(`adaptive`), and on the loss of several labels (`risk`).
"""

from __future__ import annotations

from polymode.conformal.adaptive import AdaptiveRule, adaptive
from polymode.conformal.coverage import (
    SizeStrata,
    coverage,
    covered,
    mean_size,
    size_stratified_coverage,
)
from polymode.conformal.cross import CrossRule, cross_conformal, fold_numbers
from polymode.conformal.masks import MaskRule, control_missed_share, missed_share
from polymode.conformal.mondrian import (
    ClassRule,
    DifficultyGroups,
    GroupCoverage,
    MondrianRule,
    by_class,
    by_group,
    difficulty_groups,
    group_coverage,
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
from polymode.conformal.risk import LabelRule, control_risk
from polymode.conformal.weighted import WeightedRule, weighted

__all__ = [
    "AdaptiveRule",
    "ClassRule",
    "ConformalIntervals",
    "ConformalSets",
    "CrossRule",
    "DifficultyGroups",
    "GroupCoverage",
    "LabelRule",
    "MaskRule",
    "MondrianRule",
    "PredictionIntervals",
    "PredictionSets",
    "SizeStrata",
    "WeightedRule",
    "adaptive",
    "by_class",
    "by_group",
    "conformal_intervals",
    "conformal_quantile",
    "conformal_rank",
    "conformal_sets",
    "control_missed_share",
    "control_risk",
    "coverage",
    "covered",
    "cross_conformal",
    "difficulty_groups",
    "fold_numbers",
    "group_coverage",
    "mean_size",
    "missed_share",
    "size_stratified_coverage",
    "tune_raps",
    "weighted",
]
