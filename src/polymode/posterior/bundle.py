"""What ships with a posterior: the correction of its predictions, and when to trust them.

    post.bundled(recalibration=fixed, conformal=sets, threshold=0.8).save("model/")
    answer = pm.load("model/", net=net).answer(x)
    answer.prediction.mean, answer.region.members, answer.accepted

Recalibration comes first; the conformal rule and the threshold look at corrected predictions, and
must have been chosen on such. At positions of an input each position is answered by itself. `B`
batch, `E` axes of positions, `C` classes, `D` outputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.conformal.prediction_intervals import ConformalIntervals, PredictionIntervals
from polymode.conformal.prediction_sets import ConformalSets, PredictionSets
from polymode.core.checks import is_number, shown
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction
from polymode.recalibration import Recalibration

RULES: dict[str, type[ConformalSets] | type[ConformalIntervals]] = {
    "sets": ConformalSets,
    "intervals": ConformalIntervals,
}


class Answer(NamedTuple):
    """What a posterior with a bundle says of a batch of inputs.

    Attributes:
        prediction: corrected.
        region: sets of classes `members` (B, *E, C), or intervals `lower` and `upper` (B, *E, D);
            None without a conformal rule.
        accepted: (B, *E), False where a person should decide; None without a threshold.
    """

    prediction: Prediction
    region: PredictionSets | PredictionIntervals | None
    accepted: Tensor | None


@dataclass(frozen=True)
class Bundle:
    """The rules that a posterior's answers follow.

    Args:
        recalibration: of `pm.recalibration.recalibrate`.
        conformal: of `pm.conformal.conformal_sets` or `conformal_intervals`.
        threshold: of classes, the least confidence that is accepted, in [0, 1]; see
            `metrics.selective.threshold_at_risk`. Of values, the largest predictive standard
            deviation of any output, in their units.
    """

    recalibration: Recalibration | None = None
    conformal: ConformalSets | ConformalIntervals | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.recalibration, Recalibration | None):
            raise ValueError(
                "`recalibration` of Bundle must be what pm.recalibration.recalibrate returned, got"
                f" {shown(self.recalibration)}"
            )
        if not isinstance(self.conformal, ConformalSets | ConformalIntervals | None):
            raise ValueError(
                "`conformal` of Bundle must be what conformal_sets or conformal_intervals of"
                f" pm.conformal returned, got {shown(self.conformal)}"
            )
        threshold = self.threshold
        if threshold is not None and not (is_number(threshold) and 0 <= threshold < math.inf):
            raise ValueError(
                f"`threshold` of Bundle must be a finite number >= 0, got {shown(threshold)}"
            )

    def __call__(self, prediction: Prediction, *, seed: int = 0) -> Answer:
        """Return the answer for a prediction that is not corrected yet.

        Args:
            seed: of randomised sets; a different one for each batch.
        """
        sizes = prediction.mean.shape[:-1]
        rows = prediction.as_rows()
        corrected = rows if self.recalibration is None else self.recalibration(rows)
        region: PredictionSets | PredictionIntervals | None = None
        if isinstance(self.conformal, ConformalSets):
            sets = self.conformal(corrected, seed=seed)
            region = PredictionSets(sets.members.unflatten(0, sizes))
        elif isinstance(self.conformal, ConformalIntervals):
            ends = self.conformal(corrected)
            region = PredictionIntervals(
                ends.lower.unflatten(0, sizes), ends.upper.unflatten(0, sizes)
            )
        accepted = self._accepted(corrected)
        if accepted is not None:
            accepted = accepted.unflatten(0, sizes)
        return Answer(corrected.at_positions(sizes), region, accepted)

    def _accepted(self, prediction: Prediction) -> Tensor | None:
        if self.threshold is None:
            return None
        if isinstance(prediction, CategoricalPrediction):
            return prediction.confidence >= self.threshold
        return prediction.std.amax(-1) <= self.threshold

    def check(self, classification: bool, target_size: int) -> None:
        """Refuse rules that do not fit the predictions of a posterior, by applying them to one."""
        made_up: Prediction
        if classification:
            made_up = CategoricalPrediction(torch.full((1, 1, target_size), -math.log(target_size)))
        else:
            made_up = MixturePrediction(torch.zeros(1, 1, target_size), 1.0)
        if classification and self.threshold is not None and self.threshold > 1:
            raise ValueError(
                f"`threshold` of Bundle is a confidence, in [0, 1], got {self.threshold:g}"
            )
        self(made_up)

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-safe; an infinite quantile is written as "inf"."""
        conformal = None
        if self.conformal is not None:
            kind = next(name for name, rule in RULES.items() if isinstance(self.conformal, rule))
            fields = dataclasses.asdict(self.conformal)
            fields["quantile"] = _written(fields["quantile"])
            conformal = {"kind": kind, **fields}
        return {
            "recalibration": self.recalibration and self.recalibration.to_dict(),
            "conformal": conformal,
            "threshold": self.threshold,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Bundle:
        """Return what `to_dict` gave, also after JSON."""
        recalibration, conformal = stored["recalibration"], stored["conformal"]
        if recalibration is not None:
            recalibration = Recalibration.from_dict(recalibration)
        if conformal is not None:
            fields = dict(conformal)
            kind = fields.pop("kind")
            if kind not in RULES:
                raise ValueError(f"the conformal rule is of kind {kind!r}, not of {[*RULES]}")
            fields["quantile"] = _read(fields["quantile"])
            conformal = RULES[kind](**fields)
        return cls(recalibration, conformal, stored["threshold"])


def _written(quantile: Any) -> Any:
    """Return quantiles that JSON can hold."""
    if isinstance(quantile, (tuple, list)):
        return [_written(number) for number in quantile]
    return "inf" if quantile == math.inf else quantile


def _read(quantile: Any) -> Any:
    """Return what `_written` was given, as rules hold it."""
    if isinstance(quantile, list):
        return tuple(_read(number) for number in quantile)
    if quantile == "inf":
        return math.inf
    if not is_number(quantile):
        raise ValueError(f"a quantile must be a number, got {shown(quantile)}")
    return float(quantile)
