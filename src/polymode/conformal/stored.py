"""Conformal rules as JSON has them, for the files of a posterior.

`rule_to_dict` and `rule_from_dict` are inverse to each other for every rule of `RULES`; infinite
quantiles are written as "inf". Scores and weights of calibration are written in float64, so a rule
that was read gives the same sets and intervals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from polymode.conformal.cross import CrossRule
from polymode.conformal.mondrian import ClassRule, MondrianRule
from polymode.conformal.prediction_intervals import METHODS as INTERVALS
from polymode.conformal.prediction_intervals import ConformalIntervals
from polymode.conformal.prediction_sets import METHODS as SETS
from polymode.conformal.prediction_sets import ConformalSets
from polymode.conformal.region import Region
from polymode.conformal.weighted import WeightedRule
from polymode.core.checks import is_number, shown

Rule: TypeAlias = (
    ConformalSets | ConformalIntervals | MondrianRule | ClassRule | WeightedRule | CrossRule
)


class Form(NamedTuple):
    """How a rule is written and read; what `read` returns is checked by `_check`."""

    kind: type[Any]
    write: Callable[[Any], dict[str, Any]]
    read: Callable[[dict[str, Any]], Any]


def rule_to_dict(rule: Rule) -> dict[str, Any]:
    """Return a rule JSON-safe, with its kind."""
    name, form = next((n, f) for n, f in RULES.items() if isinstance(rule, f.kind))
    return {"kind": name, **form.write(rule)}


def rule_from_dict(stored: Mapping[str, Any]) -> Rule:
    """Return what `rule_to_dict` was given, also after JSON."""
    fields = dict(stored)
    kind = fields.pop("kind")
    if kind not in RULES:
        raise ValueError(f"the conformal rule is of kind {kind!r}, not of {[*RULES]}")
    return RULES[kind].read(fields)


def check_names(rule: MondrianRule) -> None:
    """Refuse groups whose names JSON does not give back."""
    for name in rule.quantiles:
        if type(name) not in (str, int, float, bool):
            raise ValueError(
                "groups of a rule that is saved must be text, numbers or truth values, got"
                f" {shown(name)}"
            )


def _write_plain(rule: ConformalSets | ConformalIntervals) -> dict[str, Any]:
    fields = dataclasses.asdict(rule)
    fields["quantile"] = _written(fields["quantile"])
    return fields


def _read_plain(kind: type[Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda fields: kind(**{**fields, "quantile": _number(fields["quantile"])})


def _write_groups(rule: MondrianRule) -> dict[str, Any]:
    check_names(rule)
    groups = [[name, _written(q), rule.counts[name]] for name, q in rule.quantiles.items()]
    return {"region": dataclasses.asdict(rule.region), "groups": groups}


def _read_groups(fields: dict[str, Any]) -> MondrianRule:
    region, groups = _region(fields), fields["groups"]
    width = 1 if region.classes or region.joint else region.outputs
    quantiles = {name: _number(values) for name, values, _ in groups}
    if not groups or any(len(values) != width for values in quantiles.values()):
        raise ValueError(f"each group needs {width} quantile(s)")
    return MondrianRule(region, quantiles, {name: int(count) for name, _, count in groups})


def _write_classes(rule: ClassRule) -> dict[str, Any]:
    region = dataclasses.asdict(rule.region)
    return {"region": region, "quantiles": _written(rule.quantiles), "counts": [*rule.counts]}


def _read_classes(fields: dict[str, Any]) -> ClassRule:
    region, quantiles = _region(fields), _number(fields["quantiles"])
    if not region.classes or len(quantiles) != region.outputs:
        raise ValueError(f"{region.outputs} classes need as many quantiles, got {len(quantiles)}")
    return ClassRule(region, quantiles, tuple(map(int, fields["counts"])))


def _write_weighted(rule: WeightedRule) -> dict[str, Any]:
    return {
        "region": dataclasses.asdict(rule.region),
        "scores": rule.scores.tolist(),
        "sums": rule.sums.tolist(),
        "effective_n": rule.effective_n,
    }


def _read_weighted(fields: dict[str, Any]) -> WeightedRule:
    region = _region(fields)
    scores, sums = (_rows(fields[name], region) for name in ("scores", "sums"))
    if scores.shape != sums.shape or (scores.diff(dim=0) < 0).any() or (sums.diff(dim=0) < 0).any():
        raise ValueError("scores and sums of weights must rise, and be as many")
    return WeightedRule(region, scores, sums, float(fields["effective_n"]))


def _write_folds(rule: CrossRule) -> dict[str, Any]:
    return {
        "region": dataclasses.asdict(rule.region),
        "scores": rule.scores.tolist(),
        "folds": rule.folds.tolist(),
        "num_models": rule.num_models,
    }


def _read_folds(fields: dict[str, Any]) -> CrossRule:
    region, models = _region(fields), fields["num_models"]
    scores = _rows(fields["scores"], region)
    folds = torch.tensor(fields["folds"], dtype=torch.long)
    if type(models) is not int or len(folds) != len(scores):
        raise ValueError("each score needs the number of its fold")
    if not 0 <= int(folds.min()) <= int(folds.max()) < models:
        raise ValueError(f"folds must be in 0..{models - 1}")
    return CrossRule(region, scores, folds, models)


RULES: dict[str, Form] = {
    "sets": Form(ConformalSets, _write_plain, _read_plain(ConformalSets)),
    "intervals": Form(ConformalIntervals, _write_plain, _read_plain(ConformalIntervals)),
    "groups": Form(MondrianRule, _write_groups, _read_groups),
    "classes": Form(ClassRule, _write_classes, _read_classes),
    "weighted": Form(WeightedRule, _write_weighted, _read_weighted),
    "folds": Form(CrossRule, _write_folds, _read_folds),
}


def _region(fields: Mapping[str, Any]) -> Region:
    region = Region(**fields["region"])
    methods = SETS if region.classes else INTERVALS
    if region.method not in methods or not 0 < region.level < 1 or type(region.outputs) is not int:
        raise ValueError(f"not the score of a rule: {shown(fields['region'])}")
    return region


def _rows(values: Any, region: Region) -> Tensor:
    rows = torch.tensor(values, dtype=torch.float64)
    width = 1 if region.classes or region.joint else region.outputs
    if rows.dim() != 2 or rows.shape[1] != width or not len(rows) or not rows.isfinite().all():
        raise ValueError(f"scores must be finite, n rows of {width}")
    return rows


def _written(quantile: Any) -> Any:
    """Return quantiles that JSON can hold."""
    if isinstance(quantile, (tuple, list)):
        return [_written(number) for number in quantile]
    return "inf" if quantile == math.inf else quantile


def _number(quantile: Any) -> Any:
    """Return what `_written` was given, as rules hold it."""
    if isinstance(quantile, list):
        return tuple(_number(number) for number in quantile)
    if quantile == "inf":
        return math.inf
    if not is_number(quantile) or math.isnan(quantile):
        raise ValueError(f"a quantile must be a number, got {shown(quantile)}")
    return float(quantile)
