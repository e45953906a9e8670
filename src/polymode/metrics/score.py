"""What a metric returns, and the tables of metrics.

A metric is a pure function from a prediction and its targets to a `Score`; an OOD metric compares
the predictions for the test set and for an OOD set; a metric against a reference compares two
predictions for the same inputs. Each is registered with the facts shown beside its number.
`n` examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polymode.core.registry import Entry, Registry
from polymode.prediction import CategoricalPrediction, Prediction
from polymode.prediction.averages import Averages


class Score(NamedTuple):
    """A number about a prediction.

    Attributes:
        value: the number, usually the mean of `each`.
        n: number of examples.
        standard_error: of `value` over the examples; None where it is not known.
        each: (n,) contribution of each example; None for a metric without such parts.
    """

    value: float
    n: int
    standard_error: float | None = None
    each: Tensor | None = None

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        return f"Score({self.value:.4g}{error}, n={self.n})"


class NotDefined(ValueError):
    """A metric has no value for this input; tables show n/a with the reason in the message."""


class Interval(NamedTuple):
    """A number with the interval that holds it with probability `level`, by the bootstrap."""

    value: float
    low: float
    high: float
    level: float
    n: int


def mean_score(contributions: Tensor) -> Score:
    """Return the mean of per-example values (n,), in float64, with its standard error (ddof 1)."""
    n = len(contributions)
    if n == 0:
        raise ValueError("there is nothing to score: 0 examples")
    values = contributions.detach().double()
    value = values.mean().item()
    error = None
    if n > 1 and math.isfinite(value):
        error = values.std(correction=1).item() / math.sqrt(n)
    return Score(value, n, error, contributions)


def check_lengths(targets: Tensor, prediction: Prediction, what: str) -> None:
    """Refuse targets of another number than the predictions, and none at all."""
    if len(targets) != len(prediction):
        raise ValueError(f"got {len(targets)} {what} for {len(prediction)} prediction(s)")
    if len(targets) == 0:
        raise ValueError("there is nothing to score: 0 examples")


Metric = Callable[[Prediction, Tensor], Score]
PairMetric = Callable[[Prediction, Prediction], Score]

CLASSIFICATION: Registry[Metric] = Registry("classification metric")
REGRESSION: Registry[Metric] = Registry("regression metric")
OOD_CLASSIFICATION: Registry[PairMetric] = Registry("OOD metric of classifiers")
OOD_REGRESSION: Registry[PairMetric] = Registry("OOD metric of regressions")
SEGMENTATION: Registry[Callable[..., Score]] = Registry("metric of segmentations")
OOD_SEGMENTATION: Registry[Callable[..., Score]] = Registry("OOD metric of segmentations")
DEPTH: Registry[Callable[..., Score]] = Registry("metric of maps of values")
OOD_DEPTH: Registry[Callable[..., Score]] = Registry("OOD metric of maps of values")
SCOD_CLASSIFICATION: Registry[Callable[[Prediction, Prediction, Tensor], Score]] = Registry(
    "metric of classifiers with OOD inputs"
)
REFERENCE_CLASSIFICATION: Registry[PairMetric] = Registry("metric of classes and a reference")
REFERENCE_REGRESSION: Registry[PairMetric] = Registry("metric of densities and a reference")

TABLES: dict[str, Registry[Any]] = {
    "classification": CLASSIFICATION,
    "regression": REGRESSION,
    "OOD, classification": OOD_CLASSIFICATION,
    "OOD, regression": OOD_REGRESSION,
    "segmentation": SEGMENTATION,
    "OOD, segmentation": OOD_SEGMENTATION,
    "maps of values": DEPTH,
    "OOD, maps of values": OOD_DEPTH,
    "Test set with OOD inputs, classification": SCOD_CLASSIFICATION,
    "Against a reference, classification": REFERENCE_CLASSIFICATION,
    "Against a reference, regression": REFERENCE_REGRESSION,
}
FAMILIES = {
    "quality": "Accuracy and proper scores",
    "calibration": "Calibration",
    "selective": "Selective prediction",
    "intervals": "Intervals",
    "uncertainty": "Uncertainty",
    "ood": "Out of distribution",
    "reference": "Against a reference posterior",
}
"""Families of metrics with the headings of their tables, in the order of a report."""
ARROWS = {"up": "↑", "down": "↓", "": ""}


def register(
    table: Registry[Any],
    name: str,
    *,
    title: str,
    unit: str,
    direction: str,
    summary: str,
    family: str,
    headline: bool = False,
    epistemic: bool = False,
    targets: bool = True,
    standardised: bool = False,
    samples: bool = False,
) -> Callable[[Any], Any]:
    """Return a decorator that registers a metric with everything shown beside its number.

    Args:
        table: one of `TABLES`. name: its name in results.
        title: as people write it. unit: of the value.
        direction: whether "up" or "down" is better; "" if the metric describes and does not score.
        summary: one line, also used in the report's glossary.
        family: one of `FAMILIES`.
        headline: True for the few that a leaderboard shows by default.
        epistemic: True if it is n/a where `prediction.has_epistemic` is False, as for one network.
        targets: False if the metric accepts None for the targets.
        standardised: True if prediction and targets are first divided by the scale of the targets.
        samples: True if it is n/a where only averages over the samples are held.
    """
    assert direction in ARROWS and family in FAMILIES
    return table.register(
        name,
        title=title,
        unit=unit,
        direction=direction,
        summary=summary,
        family=family,
        headline=headline,
        epistemic=epistemic,
        targets=targets,
        standardised=standardised,
        samples=samples,
        rank=len(table.names()),
    )


def entries(table: Registry[Any]) -> list[Entry[Any]]:
    """Return the metrics of a table by family, and within a family in order of registration."""
    order = list(FAMILIES)

    def place(entry: Entry[Any]) -> tuple[int, int]:
        return order.index(entry.metadata["family"]), entry.metadata["rank"]

    return sorted(map(table.get, table.names()), key=place)


def table_of(prediction: Prediction, metric: str) -> Registry[Any]:
    """Return the table that has the metric for predictions of this kind, or name the nearest."""
    classes = isinstance(prediction, CategoricalPrediction)
    scores, against = (
        (CLASSIFICATION, OOD_CLASSIFICATION) if classes else (REGRESSION, OOD_REGRESSION)
    )
    if metric in against:
        return against
    if classes and metric in SCOD_CLASSIFICATION:
        return SCOD_CLASSIFICATION
    scores.get(metric)
    return scores


def score_of(
    entry: Entry[Any],
    prediction: Prediction,
    against: Any,
    scale: Sequence[float] | None = None,
    *,
    labels: Tensor | None = None,
) -> Score:
    """Compute one registered metric, or raise `NotDefined` with the reason why it does not apply.

    Args:
        against: the targets, or None; for an OOD metric, the prediction for the OOD set.
        scale: of the targets, for standardised metrics.
        labels: of the prediction, where `against` is that for an OOD set and the metric needs both.
    """
    facts = entry.metadata
    if facts["epistemic"] and not prediction.has_epistemic:
        raise NotDefined("needs ≥ 2 samples")
    if facts["targets"] and against is None:
        raise NotDefined("needs targets")
    if facts["samples"] and isinstance(prediction, Averages):
        raise NotDefined("needs the samples, of which only averages are held")
    if facts["standardised"]:
        if scale is None:
            raise NotDefined("needs the scale of the training targets")
        from polymode.metrics.regression import standardise

        prediction, against = standardise(prediction, against, torch.tensor(scale))
    if entry.name in SCOD_CLASSIFICATION:
        if labels is None:
            raise NotDefined("needs targets")
        both: Score = entry.value(prediction, against, labels)
        return both
    score: Score = entry.value(prediction, against)
    return score
