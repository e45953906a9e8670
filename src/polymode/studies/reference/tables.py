"""Tables and figures of the study, from its runs."""

from __future__ import annotations

import numpy as np

from polymode.metrics.paired import mean_and_error
from polymode.metrics.results import EXAMINED
from polymode.metrics.text_table import decimals_for, number
from polymode.plots import Display, dots, map_limits, panels, uncertainty_maps
from polymode.studies.reference.setup import MODES, families
from polymode.studies.study import Runs, Table
from polymode.studies.table_cells import Column, column_cells, interval_text, present

REFERENCE = "reference"
HMC = "HMC, shorter"
DRAWN = (HMC, "MILE", "deep ensemble", "mean-field VI", "MAP", "SGHMC")


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
    by_arm = {arm: list(distances(runs, part, arm).values()) for arm in runs.arms(part)}
    measured = [arm for arm, values in by_arm.items() if values]
    return sorted(measured, key=lambda arm: float(np.mean(by_arm[arm])))


def pairs(runs: Runs, part: str) -> dict[str, tuple[str, str]]:
    """Return, by method, its arms with one mode and with many, where both were run."""
    arms = runs.arms(part)
    arms_of = {}
    for family in families(1, 1, 5, 1.0):
        many = [
            arm
            for arm in arms
            if family.many
            and arm.startswith(family.many.split(" × {}")[0])
            and arm != family.single
        ]
        many = [arm for arm in many if modes_of(runs, part, arm) > 1]
        if family.single in arms and many:
            arms_of[family.method] = (family.single, many[0])
    if "MAP" in arms and "deep ensemble" in arms:
        arms_of["map"] = ("MAP", "deep ensemble")
    return arms_of


def tables(runs: Runs) -> dict[str, Table]:
    """Return, for each part, all arms by their distance, and what many modes change."""
    by_name: dict[str, Table] = {}
    for part in runs.parts:
        if ordered(runs, part):
            by_name[f"distance_{part}"] = distance_table(runs, part)
        if pairs(runs, part):
            by_name[f"modes_{part}"] = modes_table(runs, part)
    return by_name


def distance_table(runs: Runs, part: str) -> Table:
    """Return every arm, closest first."""
    arms, columns = ordered(runs, part), CLASSES if is_classes(runs, part) else DENSITIES
    label = label_of(runs, part)
    texts = [
        column_cells(runs, part, arms, column._replace(dataset=column.dataset or label))
        for column in columns.values()
    ]
    modes = [str(modes_of(runs, part, arm)) for arm in arms]
    worst = _of_reference(runs, part, "reference_r_hat")
    apart = _of_reference(runs, part, f"reference_{distance(runs, part)}")
    quality = f"; R-hat of the reference's predictions up to {worst:.3g}" if worst else ""
    quality += f", one half of its chains is {apart:.3g} from the other" if apart else ""
    return Table(
        title=f"Distance to HMC: {part}",
        head=("method", "modes", *columns),
        lines=tuple(zip(arms, modes, *texts, strict=True)),
        note=f"mean ± s.e. over {_seeds(runs, part)} seeds, closest first; the reference is one run"
        f" of HMC with another seed{quality}",
    )


def _of_reference(runs: Runs, part: str, metric: str) -> float | None:
    """Return the largest of what all arms say about the same reference."""
    rows = [row for results in runs.all(part) for row in results.rows if row.metric == metric]
    return max((row.value for row in rows if row.value is not None), default=None)


def modes_table(runs: Runs, part: str) -> Table:
    """Return the distance of each method with one mode and with many, and their difference."""
    metric, lines = distance(runs, part), []
    for method, (single, many) in pairs(runs, part).items():
        gap = runs.difference(part, many, single, label_of(runs, part), metric)
        cells = [mean_and_error(list(distances(runs, part, a).values())) for a in (single, many)]
        digits = decimals_for(*zip(*cells, strict=True))
        difference = "" if gap is None else interval_text(gap, digits)
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


def figures(runs: Runs) -> dict[str, Display]:
    """Return the distances of each part as dots, and maps of the entropy in the plane."""
    distances = {f"distance_{p}": figure_distance(runs, p) for p in runs.parts if ordered(runs, p)}
    return present({**distances, "plane": figure_plane(runs)})


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
        {arm: uncertainty_maps(r, label=arm, limits=limits) for arm, r in first.items()},
        label="Predictive entropy",
        caption=f"Predictive entropy on two moons, one colour scale from 0 to {limits[1]:.2g}"
        f" nats, the first seed; many modes are {MODES}.",
    )
