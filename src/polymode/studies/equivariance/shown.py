"""How numbers of the study's trainings are looked up, printed and compared over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polymode.metrics.paired import Difference, mean_and_error, paired
from polymode.metrics.table import number
from polymode.plots import Display, size_curve
from polymode.studies.study import Claim, Runs, said

Lookup = Callable[[str], dict[int, float]]


def values(runs: Runs, part: str, arm: str, metric: str) -> dict[int, float]:
    """Return a number of a training by seed."""
    return runs.values(part, arm, f"examined:{part}", metric)


def sets_of(runs: Runs, part: str) -> list[str]:
    """Return the sets that were looked at, the test set first, noise last."""
    found: dict[str, None] = {}
    for results in runs.all(part):
        for row in results.rows:
            name, behind, _ = row.metric.partition("_ensemble_same_share")
            if behind and not name.endswith("_average"):
                found[name] = None
    return list(found)


def outside(runs: Runs, part: str) -> list[str]:
    """Return the OOD sets of images, without noise."""
    return [name for name in sets_of(runs, part) if name not in ("test", "noise")]


def mean_over(sets: Sequence[str], look: Lookup) -> dict[int, float]:
    """Return the mean over sets by seed; only seeds that have all."""
    each = [look(name) for name in sets]
    seeds = set.intersection(*(set(found) for found in each)) if each else set()
    return {seed: float(np.mean([found[seed] for found in each])) for seed in sorted(seeds)}


def cell(found: dict[int, float], digits: int = 2) -> str:
    """Return mean ± s.e. over seeds, "–" where there is nothing."""
    return number(*mean_and_error(list(found.values())), digits) if found else "–"


def gap(first: dict[int, float], second: dict[int, float] | float) -> Difference | None:
    """Return first − second, paired by seed."""
    other = second if isinstance(second, dict) else dict.fromkeys(first, second)
    return paired([first[seed] - other[seed] for seed in first if seed in other])


def scaled_ratio(runs: Runs, part: str, arm: str, where: str) -> dict[int, float]:
    """Return √M times the ensemble's spread along orbits over that of one member, by seed.

    1 if members are independent around an invariant mean, whose deviations average out as 1/√M;
    √M if they all deviate alike. That the ratio of spreads is at most 1 is convexity, and no
    finding.
    """
    alone, together = (
        values(runs, part, arm, f"{where}_{who}_deviation") for who in ("member", "ensemble")
    )
    found = {}
    for seed, findings in runs.findings(part, arm).items():
        if alone.get(seed) and seed in together and f"{where} members" in findings.arrays:
            number_of_members = float(findings.arrays[f"{where} members"][-1])
            found[seed] = together[seed] / alone[seed] * number_of_members**0.5
    return found


def near_one(difference: Difference | None, reach: float = 0.25) -> str:
    """Return the verdict on "the ratio is 1": its interval holds 0, and nothing beyond `reach`.

    >>> near_one(Difference(0.05, 0.03, 4, -0.04, 0.14))
    'holds'
    """
    if difference is None:
        return "not run"
    if difference.low is None or difference.high is None:
        return "undecided"
    if difference.clear:
        return "does not hold"
    return "holds" if max(-difference.low, difference.high) <= reach else "undecided"


def not_below(difference: Difference | None, margin: float) -> str:
    """Return the verdict on "level or ahead": the interval lies above −margin.

    >>> not_below(Difference(0.001, 0.002, 4, -0.005, 0.007), 0.01)
    'holds'
    """
    if difference is None:
        return "not run"
    if difference.low is None or difference.high is None:
        return "undecided"
    if difference.low > -margin:
        return "holds"
    return "does not hold" if difference.high < -margin else "undecided"


def claim(text: str, paper: str, what: str, difference: Difference | None, verdict: str) -> Claim:
    """Return a claim about a difference."""
    return Claim(text, paper, said(difference, what), verdict)


def curves(runs: Runs, part: str, named: dict[str, tuple[str, str]], metric: str) -> Display | None:
    """Return a metric against the number of members, mean over seeds with their standard error.

    Args:
        named: by label, the training and the set.
    """
    found = {}
    for label, (arm, where) in named.items():
        each = [
            f.arrays for f in runs.findings(part, arm).values() if f"{where} {metric}" in f.arrays
        ]
        if not each:
            continue
        several = np.stack([arrays[f"{where} {metric}"] for arrays in each])
        error = (
            several.std(0, ddof=1) / np.sqrt(len(several)) if len(several) > 1 else several[0] * 0
        )
        found[label] = (each[0][f"{where} members"], several.mean(0), error)
    if not found:
        return None
    direction = "up" if metric == "same_share" else "down"
    return size_curve(found, metric=TITLES[metric], direction=direction)


TITLES = {
    "same_share": "OSP / |G|",
    "deviation": "orbit s.d. of probabilities",
    "kl": "symmetrised KL along orbits",
}
