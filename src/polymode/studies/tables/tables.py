"""Tables and figures of the study, from its runs and the cells of the peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.stats import beta

from polymode.metrics.paired import Difference
from polymode.plots import Display, dots
from polymode.studies.study import Runs, Table, paired_difference
from polymode.studies.table_cells import mean_cell, mean_cells, present
from polymode.studies.tables.contenders import OURS
from polymode.studies.tables.data import CLASSES
from polymode.studies.tables.published import (
    FIGURES,
    PRICE_STD,
    peer_arrays,
    peer_values,
    peers_of,
)

DEFAULT = "deep ensemble"
"""The contender that claims are about: the method that the estimators take by default."""
FEWEST = 3  # divisions of a contender that is compared
BEST, TIED = " *", " ≈"


class Pooled(NamedTuple):
    """Coverage of the group with the lowest, over all divisions.

    Attributes:
        share: covered. low, high: its exact 95 % interval as one group, not as the worst of
            several. size: test rows in it.
    """

    share: float
    low: float
    high: float
    size: int


def contenders(runs: Runs, part: str) -> list[str]:
    """Return who was run on a table, peers last."""
    return [*runs.arms(part), *(peers_of(part) if runs.arms(part) else [])]


def values(runs: Runs, part: str, contender: str, metric: str) -> dict[int, float]:
    """Return a number by division."""
    return runs.measured(part, contender, metric) or peer_values(part, contender, metric)


def metrics_of(part: str) -> tuple[str, str]:
    """Return the two scores that claims are about."""
    return ("nll", "brier") if part in CLASSES else ("nll", "crps")


def best_of(runs: Runs, part: str, metric: str, but: str = "") -> str | None:
    """Return the contender with the lowest mean difference to the default, over shared divisions.

    Peers were not measured on all divisions, so means of their own would not be comparable. One
    that shares fewer than three is left out: an interval of two differences excludes nothing.
    """
    means = {}
    for name in contenders(runs, part):
        gap = gap_to(runs, part, metric, name, DEFAULT)
        if name != but and gap is not None and gap.n >= FEWEST:
            means[name] = gap.mean
    return min(means, key=means.__getitem__, default=None)


def gap_to(
    runs: Runs, part: str, metric: str, contender: str, other: str | None
) -> Difference | None:
    """Return contender − other, paired by division."""
    if other is None:
        return None
    first, second = (values(runs, part, name, metric) for name in (contender, other))
    return paired_difference(first, second) if first and second else None


def worst_group(runs: Runs, part: str, contender: str, rule: str) -> Pooled | None:
    """Return the coverage of the worst group, its rows of all divisions taken together."""
    sums = []
    for name in (f"{rule}_inside", f"{rule}_count"):
        by_seed = runs.findings(part, contender).values()
        arrays = [findings.arrays[name] for findings in by_seed if name in findings.arrays]
        arrays = arrays or peer_arrays(part, contender, name)
        if not arrays:
            return None
        sums.append(np.sum(arrays, 0))
    inside, count = sums
    worst = int(np.argmin(inside / count))
    hits, n = inside[worst], count[worst]
    low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
    return Pooled(float(hits / n), low, high, int(n))


def tables(runs: Runs) -> dict[str, Table]:
    """Return a table for each score, coverage, time, and what was published."""
    kinds = {"regression": False, "classification": True}
    by_name: dict[str, Table | None] = {}
    for kind, classes in kinds.items():
        names = [part for part in runs.parts if (part in CLASSES) == classes]
        second = ("Brier score", "brier") if classes else ("CRPS", "crps")
        for title, metric in (("NLL", "nll"), second):
            by_name[f"{metric}_{kind}"] = score_table(runs, names, f"{title}, {kind}", metric)
        by_name[f"coverage_{kind}"] = coverage_table(runs, names, kind)
    by_name["seconds"] = seconds_table(runs)
    by_name["published"] = published_table(runs)
    return present(by_name)


def score_table(runs: Runs, parts: list[str], title: str, metric: str) -> Table | None:
    """Return a score of all contenders on all tables."""
    names = _names(runs, parts)
    if not names:
        return None
    lines = []
    for part in parts:
        numbers = [values(runs, part, name, metric) for name in names]
        cells = mean_cells([list(v.values()) for v in numbers], 3)
        best = best_of(runs, part, metric)
        marks = [_mark(runs, part, metric, name, best) for name in names]
        lines.append((part, *(cell + mark for cell, mark in zip(cells, marks, strict=True))))
    return Table(
        title=title,
        head=("table", *names),
        lines=tuple(lines),
        note="mean ± s.e. over divisions, less is better; * lowest mean, ≈ not clearly worse than"
        " that (paired over divisions, 95 %)",
    )


def _mark(runs: Runs, part: str, metric: str, name: str, best: str | None) -> str:
    if name == best:
        return BEST
    gap = gap_to(runs, part, metric, name, best)
    return TIED if gap is not None and gap.n >= FEWEST and not gap.clear else ""


def coverage_table(runs: Runs, parts: list[str], kind: str) -> Table | None:
    """Return coverage of 90 %: all rows, and the worst group before and after Mondrian."""
    names = _names(runs, parts)
    if not names:
        return None
    lines = []
    for part in parts:
        for name in names:
            groups = [worst_group(runs, part, name, rule) for rule in ("plain", "mondrian")]
            if None in groups:
                continue
            plain = mean_cell(values(runs, part, name, "plain_coverage"), 3)
            worst = [f"{g.share:.3f}" for g in groups if g is not None]
            last = groups[1]
            interval = f"[{last.low:.3f}, {last.high:.3f}], {last.size:,}" if last else ""
            sizes = [
                mean_cell(values(runs, part, name, f"{r}_size"), 3) for r in ("plain", "mondrian")
            ]
            lines.append((part, name, plain, *worst, interval, *sizes))
    what = "sets" if kind == "classification" else "intervals"
    first = "calibrated as a whole" if what == "sets" else "predictive"
    return Table(
        title=f"Coverage of 90 % {what}, {kind}",
        head=(
            "table",
            "contender",
            f"{first}: all rows",
            "worst group",
            "Mondrian: worst group",
            "95 % interval, rows",
            f"size, {first}",
            "size, Mondrian",
        ),
        lines=tuple(lines),
        note="groups are "
        + ("the classes" if what == "sets" else "thirds by a linear prediction")
        + ", their test rows of all divisions together; the interval is exact for a group fixed"
        " beforehand, and takes no account of the choice of the worst",
    )


def seconds_table(runs: Runs) -> Table | None:
    """Return CPU seconds of a fit."""
    names = _names(runs, runs.parts)
    if not names:
        return None
    lines = [
        (part, *(mean_cell(values(runs, part, name, "fit_seconds"), 1) for name in names))
        for part in runs.parts
    ]
    return Table(
        title="CPU seconds of a fit",
        head=("table", *names),
        lines=tuple(lines),
        note="one thread; the machine was not idle",
    )


def published_table(runs: Runs) -> Table | None:
    """Return published figures beside ours on diamonds, where sizes differ."""
    if "diamonds" not in runs.parts:
        return None
    lines = [
        (figure.table, figure.contender, figure.metric, f"{figure.value:.4g}", "published")
        for figure in FIGURES
    ]
    for name in contenders(runs, "diamonds"):
        scaled = {k: v / PRICE_STD for k, v in values(runs, "diamonds", name, "rmse").items()}
        lines.append(("diamonds", name, "RMSE / std", mean_cell(scaled, 4), "here"))
    return Table(
        title="Published figures",
        head=("table", "contender", "metric", "value", "where"),
        lines=tuple(sorted(lines, key=lambda line: line[0])),
        note="other splits, and about 43,000 training rows there; california and airfoil are not"
        " at hand",
    )


def _names(runs: Runs, parts: list[str]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in contenders(runs, part)))


def figures(runs: Runs) -> dict[str, Display]:
    """Return how far each contender's NLL is from the best of its table."""
    gaps = _gaps(runs)
    if not gaps:
        return {}
    return {
        "nll_gaps": dots(
            gaps,
            groups={name: "polymode" if name in OURS else "others" for name in gaps},
            label="NLL above the best contender",
            axis="NLL − lowest of the table, nats",
            caption="NLL of each contender above the lowest mean of the table, a point for each"
            " table, the line their mean; gaps above 2 nats are drawn at 2.",
        )
    }


def _gaps(runs: Runs) -> Mapping[str, list[float]]:
    gaps: dict[str, list[float]] = {}
    for part in runs.parts:
        means = {
            name: gap.mean
            for name in contenders(runs, part)
            if (gap := gap_to(runs, part, "nll", name, DEFAULT)) is not None
        }
        for name, mean in means.items():
            gaps.setdefault(name, []).append(min(mean - min(means.values()), 2.0))
    return gaps
