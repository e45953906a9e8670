"""Numbers of the theory's part, read from results."""

from __future__ import annotations

from polymode.metrics.paired import mean_and_error
from polymode.metrics.table import decimals_for, number
from polymode.studies.equivariance.shown import values
from polymode.studies.study import Runs

TOY, ISING, PARTIAL, CROSS = "toy", "ising", "partial", "cross_product"
NTK = "NTK"
PLACES = {"id": "in distribution", "ood": "out of distribution"}


def cell(runs: Runs, part: str, arm: str, metric: str, most: int = 4) -> str:
    """Return a number as a table shows it, mean ± standard error over seeds."""
    found = list(values(runs, part, arm, metric).values())
    if not found:
        return "–"
    mean, error = mean_and_error(found)
    if abs(mean) < 1e-9:
        return f"{mean:.0e}".replace("-", "−")
    return number(mean, error, min(decimals_for([mean], [error]), most))


def steps_of(runs: Runs) -> list[int]:
    """Return the steps of the toy."""
    found = next(iter(runs.findings(TOY, "toy").values()), None)
    if found is None:
        return []
    names = [row.metric for row in found.rows]
    return [int(name.split("_")[1]) for name in names if name.endswith("_left_over")]


def num_seeds(runs: Runs, part: str) -> int:
    """Return how many seeds a part was run with."""
    return max((len(runs.of(part, arm)) for arm in runs.arms(part)), default=0)
