"""Tables and figures of the study, from its runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polymode.metrics.paired import mean_and_error
from polymode.metrics.results import EXAMINED
from polymode.metrics.table import decimals_for, number
from polymode.plots import Display, dots, map_limits, panels, uncertainty_maps
from polymode.studies.reference.setup import MODES, families
from polymode.studies.study import Runs, Table, with_interval

REFERENCE = "reference"
HMC = "HMC, shorter"
DRAWN = (HMC, "MILE", "deep ensemble", "mean-field VI", "MAP", "SGHMC")


class Column(NamedTuple):
    """A column: data set, or "" for the examination, and metric."""

    dataset: str
    metric: str


CLASSES = {
    "agreement ↑": Column("", "agreement"),
    "TV ↓": Column("", "total_variation"),
    "agreement, OOD ↑": Column("", "agreement_ood"),
    "TV, OOD ↓": Column("", "total_variation_ood"),
    "NLL ↓": Column("test", "nll"),
    "accuracy ↑": Column("test", "accuracy"),
    "ECE ↓": Column("test", "ece"),
}
DENSITIES = {
    "W1 ↓": Column("", "w1"),
    "W2 ↓": Column("", "w2"),
    "std / std of HMC": Column("", "std_ratio"),
    "NLL ↓": Column("test", "nll"),
    "RMSE ↓": Column("test", "rmse"),
    "coverage of 95 %": Column("test", "coverage_95"),
}


def label_of(runs: Runs, part: str) -> str:
    """Return the data set under which the distances to the reference stand in results."""
    for results in runs.all(part):
        for row in results.rows:
            if row.dataset.startswith(EXAMINED + REFERENCE):
                return row.dataset
    return EXAMINED + REFERENCE


def is_classes(runs: Runs, part: str) -> bool:
    """Return whether the part is a classification."""
    return any(
        row.metric == "accuracy" and row.dataset == "test"
        for results in runs.all(part)
        for row in results.rows
    )


def distance(runs: Runs, part: str) -> str:
    """Return the number by which methods are ordered: total variation, or W1."""
    return "total_variation" if is_classes(runs, part) else "w1"


def distances(runs: Runs, part: str, arm: str, suffix: str = "") -> dict[int, float]:
    """Return the distance of an arm to the reference, by seed."""
    return runs.values(part, arm, label_of(runs, part), distance(runs, part) + suffix)


def modes_of(runs: Runs, part: str, arm: str) -> int:
    """Return how many modes an arm has."""
    return runs.of(part, arm)[0].cost.num_modes


def ordered(runs: Runs, part: str) -> list[str]:
    """Return the arms, the closest to the reference first."""
    known = {arm: distances(runs, part, arm) for arm in runs.arms(part)}
    found = [arm for arm, values in known.items() if values]
    return sorted(found, key=lambda arm: float(np.mean(list(known[arm].values()))))


def pairs(runs: Runs, part: str) -> dict[str, tuple[str, str]]:
    """Return, by method, its arms with one mode and with many, where both were run."""
    arms = runs.arms(part)
    found = {}
    for family in families(1, 1, 5, 1.0):
        many = [
            arm
            for arm in arms
            if family.many and arm.startswith(family.many.split(" × {}")[0]) and arm != family.one
        ]
        many = [arm for arm in many if modes_of(runs, part, arm) > 1]
        if family.one in arms and many:
            found[family.method] = (family.one, many[0])
    if "MAP" in arms and "deep ensemble" in arms:
        found["map"] = ("MAP", "deep ensemble")
    return found


def tables(runs: Runs) -> dict[str, Table]:
    """Return, for each part, all arms by their distance, and what many modes change."""
    found: dict[str, Table] = {}
    for part in runs.parts:
        if ordered(runs, part):
            found[f"distance_{part}"] = distance_table(runs, part)
        if pairs(runs, part):
            found[f"modes_{part}"] = modes_table(runs, part)
    return found


def distance_table(runs: Runs, part: str) -> Table:
    """Return every arm, closest first."""
    arms, columns = ordered(runs, part), CLASSES if is_classes(runs, part) else DENSITIES
    texts = [_column(runs, part, arms, column) for column in columns.values()]
    modes = [str(modes_of(runs, part, arm)) for arm in arms]
    worst = _of_reference(runs, part, "reference_r_hat")
    apart = _of_reference(runs, part, f"reference_{distance(runs, part)}")
    own = f"; R-hat of the reference's predictions up to {worst:.3g}" if worst else ""
    own += f", one half of its chains is {apart:.3g} from the other" if apart else ""
    return Table(
        title=f"Distance to HMC: {part}",
        head=("method", "modes", *columns),
        lines=tuple(zip(arms, modes, *texts, strict=True)),
        note=f"mean ± s.e. over {_seeds(runs, part)} seeds, closest first; the reference is one run"
        f" of HMC with another seed{own}",
    )


def _of_reference(runs: Runs, part: str, metric: str) -> float | None:
    """Return the largest of what all arms say about the same reference."""
    found = [
        row.value
        for results in runs.all(part)
        for row in results.rows
        if row.metric == metric and row.value is not None
    ]
    return max(found, default=None)


def modes_table(runs: Runs, part: str) -> Table:
    """Return the distance of each method with one mode and with many, and their difference."""
    metric, lines = distance(runs, part), []
    for method, (one, many) in pairs(runs, part).items():
        gap = runs.difference(part, many, one, label_of(runs, part), metric)
        cells = [mean_and_error(list(distances(runs, part, arm).values())) for arm in (one, many)]
        digits = decimals_for(*zip(*cells, strict=True))
        difference = "" if gap is None else with_interval(gap, digits)
        lines.append((method, *(number(mean, error, digits) for mean, error in cells), difference))
    name = {"w1": "W1, units of y", "total_variation": "total variation"}[metric]
    return Table(
        title=f"One mode and many: {part}",
        head=("method", "one mode", "many modes", "many − one [95 %]"),
        lines=tuple(lines),
        note=f"{name}, mean ± s.e. over {_seeds(runs, part)} seeds, less is closer to HMC",
    )


def _seeds(runs: Runs, part: str) -> int:
    return len({results.seed for results in runs.all(part)})


def _column(runs: Runs, part: str, arms: list[str], column: Column) -> list[str]:
    dataset = column.dataset or label_of(runs, part)
    found = []
    for arm in arms:
        values = list(runs.values(part, arm, dataset, column.metric).values())
        found.append(mean_and_error(values) if values else (None, None))
    digits = min(decimals_for(*zip(*found, strict=True)), 4)
    return [number(mean, error, digits) for mean, error in found]


def figures(runs: Runs) -> dict[str, Display]:
    """Return the distances of each part as dots, and maps of the entropy in the plane."""
    found: dict[str, Display] = {}
    for part in runs.parts:
        if ordered(runs, part):
            found[f"distance_{part}"] = figure_distance(runs, part)
    maps = figure_plane(runs)
    return found if maps is None else {**found, "plane": maps}


def figure_distance(runs: Runs, part: str) -> Display:
    """Return the distance of every arm to the reference, one mark per seed."""
    arms, metric = ordered(runs, part), distance(runs, part)
    values = {arm: list(distances(runs, part, arm).values()) for arm in arms}
    groups = {arm: "many modes" if modes_of(runs, part, arm) > 1 else "one mode" for arm in arms}
    title = {"w1": "W1 to HMC, units of y", "total_variation": "total variation to HMC"}[metric]
    return dots(
        values,
        groups=groups,
        label=f"{part}: {title}",
        axis=title,
        caption=f"{title} on the test set of {part}, a point per seed, the line their mean; closest"
        " first.",
    )


def figure_plane(runs: Runs) -> Display | None:
    """Return the predictive entropy over the plane, the first seed of some arms."""
    first = {}
    for arm in DRAWN:
        results = runs.of("plane", arm)
        if results and "plane" in results[0].kept:
            first[arm] = results[0]
    if len(first) < 2:
        return None
    limits = map_limits(first.values())
    return panels(
        {arm: uncertainty_maps(each, label=arm, limits=limits) for arm, each in first.items()},
        label="Predictive entropy",
        caption=f"Predictive entropy on two moons, one colour scale from 0 to {limits[1]:.2g}"
        f" nats, the first seed; many modes are {MODES}.",
    )
