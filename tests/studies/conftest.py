"""Results with numbers that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from polymode.metrics.results import Cost, Results, Row


def result(label: str, seed: int, numbers: Mapping[tuple[str, str], float]) -> Results:
    """Return results of an arm with these numbers by data set and metric."""
    up = ("accuracy",)
    rows = tuple(
        Row(dataset, metric, value, "", "up" if metric in up else "down", 100, None)
        for (dataset, metric), value in numbers.items()
    )
    cost = Cost(5, 5, 10, 1.0, 100, 2.0)
    return Results("made_up", "forde", "lenet", seed, {"arm": label}, rows, cost, label=label)


@pytest.fixture
def make():
    return result
