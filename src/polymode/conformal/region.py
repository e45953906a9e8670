"""Scores of labelled examples, and the sets or intervals that a bound on the score leaves.

What the rules for groups, shifts, folds and streams share: `Region.scores` gives scores (n, Q) with
Q quantiles to be calibrated, and `Region.within` the sets or intervals of new inputs whose scores
are at most (B, Q) or (1, Q) bounds. The scores are those of `prediction_sets` and
`prediction_intervals`. `n`, `B` examples, `C` classes, `D` outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polymode.conformal.prediction_intervals import METHODS as INTERVALS
from polymode.conformal.prediction_intervals import PredictionIntervals, interval_ends
from polymode.conformal.prediction_sets import METHODS as SETS
from polymode.conformal.prediction_sets import (
    PredictionSets,
    class_scores,
    pair,
    probabilities,
    uniform_draws,
)
from polymode.core.registry import suggest
from polymode.likelihoods.targets import check_as_many, check_values
from polymode.prediction import CategoricalPrediction, Prediction

_RAPS = (0.01, 5)  # penalty and k_reg of raps


@dataclass(frozen=True)
class Region:
    """A score of examples, and what is inside a bound on it.

    Attributes:
        method: a method of `conformal_sets` or `conformal_intervals`.
        level: the share to be covered, which ends of "cqr" depend on.
        classes: whether predictions are of classes.
        outputs: C or D of the predictions.
        joint: whether one score, the largest, stands for all D outputs.
    """

    method: str
    level: float
    classes: bool
    outputs: int
    joint: bool = False

    def scores(self, prediction: Prediction, targets: Tensor, *, seed: int = 0) -> Tensor:
        """Return the scores of labelled examples, float64 (n, D), or (n, 1) of classes."""
        self._check(prediction)
        if self.classes:
            probs, labels = pair(prediction, targets)
            draws = uniform_draws(len(probs), seed, "calibration")
            return self._of_classes(probs, draws).gather(1, labels[:, None])
        lower, upper, unit = interval_ends(prediction, self.method, self.level)
        values = check_values(targets, self.outputs).to(lower)
        check_as_many(len(values), len(lower), "target(s)")
        scores = torch.maximum(lower - values, values - upper) / unit
        return scores.amax(-1, keepdim=True) if self.joint else scores

    def within(
        self, prediction: Prediction, bounds: Tensor, *, seed: int = 0
    ) -> PredictionSets | PredictionIntervals:
        """Return what has scores of at most `bounds`: (B, Q) or (1, Q), Q = 1, C or D."""
        self._check(prediction)
        if self.classes:
            probs = probabilities(prediction)
            draws = uniform_draws(len(probs), seed, "new")
            return PredictionSets(self._of_classes(probs, draws) <= bounds.to(probs))
        lower, upper, unit = interval_ends(prediction, self.method, self.level)
        margin = unit * bounds.to(lower)
        return PredictionIntervals(lower - margin, upper + margin)

    def _of_classes(self, probs: Tensor, draws: Tensor) -> Tensor:
        penalty, k_reg = _RAPS if self.method == "raps" else (0.0, 0)
        return class_scores(probs, draws, penalty, k_reg, self.method)

    def _check(self, prediction: Prediction) -> None:
        classes = isinstance(prediction, CategoricalPrediction)
        if classes != self.classes or prediction.num_outputs != self.outputs:
            what = "classes" if self.classes else "output(s)"
            raise ValueError(
                f"Calibrated on a prediction of {self.outputs} {what}, got {prediction!r};"
                " calibrate on predictions of the same kind."
            )


def region_of(
    prediction: Prediction, method: str | None, level: float, *, joint: bool = False
) -> Region:
    """Return the score of a method for such predictions; None is "thr" or "scaled"."""
    if not isinstance(prediction, Prediction):
        raise ValueError(f"Need a Prediction, got {type(prediction).__name__}: `post.predict(x)`.")
    if not 0.0 < level < 1.0:
        raise ValueError(f"`level` must be in (0, 1), got {level}; 0.9 for 90 %.")
    classes = isinstance(prediction, CategoricalPrediction)
    methods = SETS if classes else INTERVALS
    name = method or ("thr" if classes else "scaled")
    if name not in methods:
        kind = "classes" if classes else "regressions"
        raise ValueError(
            f"Unknown method '{name}' for {kind}.{suggest(name, methods)} Known: {methods}."
        )
    return Region(name, float(level), classes, prediction.num_outputs, joint)
