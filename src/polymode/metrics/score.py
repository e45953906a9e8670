"""What a metric returns, and the tables of metrics.

A metric is a pure function from a prediction and its targets to a `Score`; an OOD metric, from the
predictions of the test set and of an OOD set. It is entered in a table with what is said of it
wherever its number is shown. `n` examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from polymode.core.registry import Entry, Registry
from polymode.prediction import Prediction


class Score(NamedTuple):
    """A number about a prediction.

    Attributes:
        value: the number, usually the mean of `each`.
        n: how many examples it rests on.
        standard_error: of `value` over the examples; None where it is not known.
        each: (n,) what each example contributes; None where a metric has no such parts.
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


def mean_score(each: Tensor) -> Score:
    """Return the mean of per-example values (n,), in float64, with its standard error (ddof 1)."""
    n = len(each)
    if n == 0:
        raise ValueError("there is nothing to score: 0 examples")
    values = each.detach().double()
    error = values.std(correction=1).item() / math.sqrt(n) if n > 1 else None
    return Score(values.mean().item(), n, error, each)


Metric = Callable[[Prediction, Tensor], Score]
PairMetric = Callable[[Prediction, Prediction], Score]

CLASSIFICATION: Registry[Metric] = Registry("classification metric")
REGRESSION: Registry[Metric] = Registry("regression metric")
OOD_CLASSIFICATION: Registry[PairMetric] = Registry("OOD metric of classifiers")
OOD_REGRESSION: Registry[PairMetric] = Registry("OOD metric of regressions")

TABLES: dict[str, Registry[Any]] = {
    "classification": CLASSIFICATION,
    "regression": REGRESSION,
    "OOD, classification": OOD_CLASSIFICATION,
    "OOD, regression": OOD_REGRESSION,
}
ARROWS = {"up": "↑", "down": "↓", "": ""}


def register(
    table: Registry[Any],
    name: str,
    *,
    title: str,
    unit: str,
    direction: str,
    summary: str,
    min_samples: int = 1,
    targets: bool = True,
) -> Callable[[Any], Any]:
    """Return a decorator that enters a metric with everything that is shown beside its number.

    Args:
        table: one of `TABLES`. name: as it stands in results.
        title: as people write it. unit: of the value.
        direction: "up" or "down" is better; "" for what describes and does not score.
        summary: one line, also the report's glossary.
        min_samples: fewest posterior samples; with fewer the metric is n/a.
        targets: False if the metric takes None for targets.
    """
    assert direction in ARROWS
    return table.register(
        name,
        title=title,
        unit=unit,
        direction=direction,
        summary=summary,
        min_samples=min_samples,
        targets=targets,
        rank=len(table.names()),
    )


def entries(table: Registry[Any]) -> list[Entry[Any]]:
    """Return the metrics of a table in the order in which they were entered."""
    return sorted(map(table.get, table.names()), key=lambda entry: entry.metadata["rank"])
