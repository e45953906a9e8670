"""The experiment of the study: one contender on one division of one table."""

from __future__ import annotations

import time

import numpy as np
import torch

from polymode.conformal import (
    PredictionIntervals,
    PredictionSets,
    by_class,
    by_group,
    conformal_sets,
    covered,
)
from polymode.examinations import Findings, measure
from polymode.metrics.crps import crps
from polymode.metrics.results import Row
from polymode.prediction import CategoricalPrediction, MixturePrediction, Prediction
from polymode.studies.tables.contenders import fit_contender
from polymode.studies.tables.data import Division, divide

LEVEL = 0.9


def contest(seed: int, *, data: str, contender: str, most_rows: int) -> Findings:
    """Return the scores of a contender on division `seed` of a table.

    Args:
        data: name of the table. contender: of `contenders`. most_rows: that are fitted on.
    """
    division = divide(data, seed, most_rows)
    started = time.process_time()
    predict = fit_contender(contender, division, seed)
    fitted = time.process_time()
    calibration, test = (predict(part.x) for part in (division.calibration, division.test))
    predicted = time.process_time()
    scores = score(division, calibration, test)
    times = (
        measure("fit_seconds", fitted - started, n=1, unit="s"),
        measure("predict_seconds", predicted - fitted, n=1, unit="s"),
    )
    return Findings((*scores.rows, *times), scores.arrays)


def score(division: Division, calibration: Prediction, test: Prediction) -> Findings:
    """Return NLL, CRPS or Brier score, and coverage overall and by group, before and after.

    Arrays `<rule>_inside` and `<rule>_count` have a number for each group, so that groups can be
    joined over divisions. Rules: "plain", the predictive intervals, or sets calibrated as a whole;
    "mondrian", calibrated by group.
    """
    y, n = division.test.targets, len(division.test.y)
    rows: list[Row] = []
    exact = _exact(test)
    nll = -exact.log_prob(y).mean().item()
    if isinstance(exact, CategoricalPrediction):
        onehot = torch.nn.functional.one_hot(y, len(division.classes)).double()
        brier = (exact.mean - onehot).square().sum(-1).mean().item()
        accuracy = (exact.mean.argmax(-1) == y).double().mean().item()
        rows += [measure("brier", brier, n=n), measure("accuracy", accuracy, n=n, direction="up")]
    else:
        rmse = (exact.mean - y.double()).square().mean().sqrt().item()
        rows += [measure("crps", crps(exact, y).value, n=n), measure("rmse", rmse, n=n)]
    arrays: dict[str, np.ndarray] = {}
    for rule, regions in _regions(division, _exact(calibration), exact).items():
        inside = covered(regions, y).double().reshape(n).numpy()
        groups = np.unique(division.fit.groups)
        members = division.test.groups[None] == groups[:, None]
        arrays[f"{rule}_inside"] = (members * inside).sum(1)
        arrays[f"{rule}_count"] = members.sum(1).astype(float)
        rows.append(measure(f"{rule}_coverage", float(inside.mean()), n=n))
        rows.append(measure(f"{rule}_size", _size(regions), n=n))
    return Findings((measure("nll", nll, n=n, unit="nats"), *rows), arrays)


def _exact(prediction: Prediction) -> Prediction:
    """Return a regression in float64; classes are scored as they are."""
    return prediction.double() if isinstance(prediction, MixturePrediction) else prediction


def _regions(
    division: Division, calibration: Prediction, test: Prediction
) -> dict[str, PredictionSets | PredictionIntervals]:
    """Return sets or intervals of the test rows, plain and by group."""
    y = division.calibration.targets
    if division.classes:
        return {
            "plain": conformal_sets(calibration, y, LEVEL)(test),
            "mondrian": by_class(calibration, y, LEVEL)(test),
        }
    rule = by_group(calibration, y, division.calibration.groups, LEVEL)
    return {
        "plain": PredictionIntervals(*test.interval(LEVEL)),
        "mondrian": rule(test, division.test.groups),
    }


def _size(regions: PredictionSets | PredictionIntervals) -> float:
    """Return the mean width of intervals, or the mean size of sets."""
    sizes = regions.sizes if isinstance(regions, PredictionSets) else regions.widths
    return sizes.double().mean().item()
