"""What ships with a posterior: the correction of its predictions, and when to trust them.

    post.bundled(recalibration=fixed, conformal=sets, threshold=0.8).save("model/")
    answer = pm.load("model/", net=net).answer(x)
    answer.prediction.mean, answer.region.members, answer.accepted

    post.bundled(conformal=by_group(prediction, y, df["city"]), groups="city").answer(df_new)

Recalibration comes first; the conformal rule and the threshold look at corrected predictions, and
must have been chosen on such. At positions of an input each position is answered by itself. `B`
batch, `E` axes of positions, `C` classes, `D` outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.conformal.cross import CrossRule
from polymode.conformal.mondrian import ClassRule, DifficultyGroups, MondrianRule
from polymode.conformal.prediction_intervals import PredictionIntervals
from polymode.conformal.prediction_sets import ConformalSets, PredictionSets
from polymode.conformal.stored import Rule, check_names, rule_from_dict, rule_to_dict
from polymode.conformal.weighted import WeightedRule
from polymode.core.checks import is_number, shown
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction
from polymode.recalibration import Recalibration
from polymode.tasks.frames.columns import columns_named, is_frame


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
        conformal: what a function of `pm.conformal` returned that answers one batch at a time:
            `conformal_sets`, `conformal_intervals`, `by_group`, `by_class`, `weighted` or
            `cross_conformal`, whose models are then the modes.
        threshold: of classes, the least confidence that is accepted, in [0, 1]; see
            `metrics.selective.threshold_at_risk`. Of values, the largest predictive standard
            deviation of any output, in their units.
        groups: where the groups of `by_group` come from: what `difficulty_groups` returned, or the
            name of a column of the table that is asked about; None if they are given.
    """

    recalibration: Recalibration | None = None
    conformal: Rule | None = None
    threshold: float | None = None
    groups: DifficultyGroups | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.recalibration, Recalibration | None):
            raise ValueError(
                "`recalibration` of Bundle must be what pm.recalibration.recalibrate returned, got"
                f" {shown(self.recalibration)}"
            )
        if not isinstance(self.conformal, Rule | None):
            raise ValueError(
                "`conformal` of Bundle must be what conformal_sets, conformal_intervals, by_group,"
                " by_class, weighted or cross_conformal of pm.conformal returned, got"
                f" {shown(self.conformal)}"
            )
        threshold = self.threshold
        if threshold is not None and not (is_number(threshold) and 0 <= threshold < math.inf):
            raise ValueError(
                f"`threshold` of Bundle must be a finite number >= 0, got {shown(threshold)}"
            )
        if not isinstance(self.groups, DifficultyGroups | str | None):
            raise ValueError(
                "`groups` of Bundle must be what pm.conformal.difficulty_groups returned, or the"
                f" name of a column, got {shown(self.groups)}"
            )
        by_group = isinstance(self.conformal, MondrianRule)
        if self.groups is not None and not by_group:
            raise ValueError("`groups` of Bundle are those of a rule of pm.conformal.by_group")
        if isinstance(self.conformal, MondrianRule):
            check_names(self.conformal)

    def __call__(
        self,
        prediction: Prediction,
        *,
        groups: Any = None,
        weights: Tensor | None = None,
        seed: int = 0,
    ) -> Answer:
        """Return the answer for a prediction that is not corrected yet.

        Args:
            groups: the group of each input, (B,), for a rule of `by_group` without its own.
            weights: ratio of densities at each input, (B,), for a rule of `weighted`.
            seed: of randomised sets; a different one for each batch.
        """
        sizes = prediction.mean.shape[:-1]
        rows = prediction.as_rows()
        corrected = rows if self.recalibration is None else self.recalibration(rows)
        region = self._region(corrected, groups, weights, seed)
        accepted = self._accepted(corrected)
        if accepted is not None:
            accepted = accepted.unflatten(0, sizes)
        return Answer(corrected.at_positions(sizes), _at_positions(region, sizes), accepted)

    def _region(
        self, prediction: Prediction, groups: Any, weights: Tensor | None, seed: int
    ) -> PredictionSets | PredictionIntervals | None:
        """Return sets or intervals of corrected predictions."""
        rule = self.conformal
        if groups is not None and not isinstance(rule, MondrianRule):
            raise ValueError("`groups` are for a rule of by_group, and this bundle has none")
        if weights is not None and not isinstance(rule, WeightedRule):
            raise ValueError("`weights` are for a rule of weighted, and this bundle has none")
        if isinstance(rule, MondrianRule):
            if groups is None and isinstance(self.groups, DifficultyGroups):
                groups = self.groups(prediction)
            if groups is None:
                raise ValueError(
                    "this bundle's intervals or sets are by group: give the group of each input,"
                    " answer(x, groups=...)"
                )
            return rule(prediction, groups, seed=seed)
        if isinstance(rule, WeightedRule):
            if weights is None:
                raise ValueError(
                    "this bundle's rule is weighted: give the ratio of densities at each input,"
                    " answer(x, weights=...)"
                )
            return rule(prediction, weights, seed=seed)
        if isinstance(rule, ConformalSets | ClassRule):
            return rule(prediction, seed=seed)
        return None if rule is None else rule(prediction)

    def _accepted(self, prediction: Prediction) -> Tensor | None:
        if self.threshold is None:
            return None
        if isinstance(prediction, CategoricalPrediction):
            return prediction.confidence >= self.threshold
        return prediction.std.amax(-1) <= self.threshold

    def check(self, classification: bool, target_size: int, num_modes: int) -> None:
        """Refuse rules that do not fit the predictions of a posterior, by applying them to one."""
        made_up: Prediction
        if classification:
            log_probs = torch.full((num_modes, 1, target_size), -math.log(target_size))
            made_up = CategoricalPrediction(log_probs)
        else:
            made_up = MixturePrediction(torch.zeros(num_modes, 1, target_size), 1.0)
        if classification and self.threshold is not None and self.threshold > 1:
            raise ValueError(
                f"`threshold` of Bundle is a confidence, in [0, 1], got {self.threshold:g}"
            )
        rule, inputs = self.conformal, dict[str, Any]()
        if isinstance(rule, MondrianRule):
            inputs["groups"] = list(rule.quantiles)[:1]
        elif isinstance(rule, WeightedRule):
            inputs["weights"] = torch.ones(1)
        elif isinstance(rule, CrossRule) and self.recalibration is not None:
            if self.recalibration.method != "scale":
                raise ValueError(
                    f"a rule of cross_conformal needs every model's own prediction, and"
                    f" '{self.recalibration.method}' corrects their mixture; leave one out"
                )
        self(made_up, **inputs)

    def to_dict(self) -> dict[str, Any]:
        """Return it JSON-safe; an infinite quantile is written as "inf"."""
        groups: Any = self.groups
        if isinstance(groups, DifficultyGroups):
            groups = {"edges": list(groups.edges)}
        return {
            "recalibration": self.recalibration and self.recalibration.to_dict(),
            "conformal": self.conformal and rule_to_dict(self.conformal),
            "threshold": self.threshold,
            "groups": groups,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Bundle:
        """Return what `to_dict` gave, also after JSON, or what it gave before there were groups."""
        recalibration, conformal = stored["recalibration"], stored["conformal"]
        groups = stored.get("groups")
        if isinstance(groups, Mapping):
            edges = tuple(groups["edges"])
            if not all(map(is_number, edges)) or list(edges) != sorted(edges):
                raise ValueError(f"edges of strata must rise, got {shown(edges)}")
            groups = DifficultyGroups(edges)
        return cls(
            recalibration and Recalibration.from_dict(recalibration),
            conformal and rule_from_dict(conformal),
            stored["threshold"],
            groups,
        )


def _at_positions(
    region: PredictionSets | PredictionIntervals | None, sizes: torch.Size
) -> PredictionSets | PredictionIntervals | None:
    """Return the region of rows as that of the positions of examples, `sizes` (B, *E)."""
    if region is None or len(sizes) == 1:
        return region
    if isinstance(region, PredictionSets):
        return PredictionSets(region.members.unflatten(0, sizes))
    return PredictionIntervals(region.lower.unflatten(0, sizes), region.upper.unflatten(0, sizes))


def group_column(x: Any, name: str) -> Any:
    """Return the column of a table that holds the groups of its rows."""
    if not is_frame(x) and not isinstance(x, Mapping):
        raise ValueError(
            f"groups are column '{name}' of a table; give a table, or answer(x, groups=...)"
        )
    names = list(x.columns) if is_frame(x) else list(x)
    columns_named(dict.fromkeys(map(str, names)), [name], "the table")
    return x[name]
