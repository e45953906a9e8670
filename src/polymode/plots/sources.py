"""Sources of a figure's numbers: results by label, their predictions and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from polymode.core.checks import as_numbers
from polymode.metrics.compare import compare
from polymode.metrics.leaderboard import Leaderboard
from polymode.metrics.results import Kept, Results
from polymode.prediction import CategoricalPrediction, DensityPrediction

Source = Leaderboard | Mapping[str, Results | Sequence[Results]] | Results | Sequence[Results]
"""A leaderboard; results by label, one or several seeds; or results, labelled as by `compare`."""


def by_label(source: Source) -> dict[str, list[Results]]:
    """Return the results of each label, in order, at least one each."""
    if isinstance(source, Results):
        return {source.method: [source]}
    if isinstance(source, Mapping):
        groups = {
            str(label): [results] if isinstance(results, Results) else list(results)
            for label, results in source.items()
        }
    else:
        board = source if isinstance(source, Leaderboard) else compare(source)
        groups = {entry.label: list(entry.results) for entry in board.entries}
    if not groups or not all(groups.values()):
        raise ValueError("there is nothing to draw: give at least one result per label")
    return groups


def seeds_of(results: Results | Sequence[Results]) -> list[Results]:
    """Return one method's results as a list, at least one."""
    several = [results] if isinstance(results, Results) else list(results)
    if not several:
        raise ValueError("there is nothing to draw: 0 results")
    return several


def kept_of(results: Results, dataset: str) -> Kept:
    """Return the stored prediction of a data set, or raise that it was not kept."""
    stored = results.kept.get(dataset)
    if stored is None:
        raise ValueError(
            f"these results of {results.method} keep no prediction of '{dataset}'; `kept` is not"
            " part of the JSON: take what `evaluate` returned, with `keep=True`"
        )
    return stored


def classes_of(results: Results, dataset: str, plot: str) -> tuple[CategoricalPrediction, Tensor]:
    """Return a kept prediction of classes and its labels."""
    prediction, labels, _ = kept_of(results, dataset)
    if not isinstance(prediction, CategoricalPrediction):
        raise ValueError(f"{plot} is for classes; for regression see regression_band")
    if labels is None:
        raise ValueError(f"{plot} needs labels, and '{dataset}' has none")
    return prediction, labels


def values_of(results: Results, dataset: str, plot: str) -> tuple[DensityPrediction, Tensor]:
    """Return a kept prediction of a regression and its targets."""
    prediction, values, _ = kept_of(results, dataset)
    if not isinstance(prediction, DensityPrediction):
        raise ValueError(f"{plot} is for regressions; for classes see reliability")
    if values is None:
        raise ValueError(f"{plot} needs targets, and '{dataset}' has none")
    return prediction, values


def numbers(values: Any) -> np.ndarray:
    """Return a tensor, an array or a list as a new float64 array."""
    if isinstance(values, Tensor):
        return as_numbers("Values to plot", values).detach().double().cpu().numpy().copy()
    return np.array(values, dtype=np.float64)
