"""Tables and figures of the study, from its runs."""

from __future__ import annotations

from polymode.metrics.results import EXAMINED
from polymode.plots import Display, dots
from polymode.studies.one_body.setup import AUTO, CURVE, DATA, GRID, prior_arm
from polymode.studies.reference.tables import (
    CLASSES,
    figure_distance,
    label_of,
    modes_of,
    ordered,
)
from polymode.studies.study import Runs, Table
from polymode.studies.table_cells import Column, column_cells, count_seeds, mean_cell

LABELS = {"_few": 10, "": 100, "_many": 1000}
"""Labels per class that the parts of a curve have."""

DISTANCES = {
    "agreement ↑": CLASSES["agreement ↑"],
    "TV ↓": CLASSES["TV ↓"],
    "W1 of p ↓": Column("", "w1_top"),
    "TV, OOD ↓": CLASSES["TV, OOD ↓"],
    "NLL ↓": Column("test", "nll"),
    "accuracy ↑": Column("test", "accuracy"),
    "ECE ↓": Column("test", "ece"),
}


def tables(runs: Runs) -> dict[str, Table]:
    """Return, for each part, distances and scores of all arms, OOD detection and cost; then the
    grid of λ and the curves over labels."""
    by_name: dict[str, Table] = {}
    for part in runs.parts:
        if ordered(runs, part):
            by_name[f"distance_{part}"] = distance_table(runs, part)
            by_name[f"ood_{part}"] = ood_table(runs, part)
        elif part.endswith("_prior"):
            by_name[part] = prior_table(runs, part)
    for name in DATA:
        parts = {count: name + suffix for suffix, count in LABELS.items()}
        parts = {count: part for count, part in parts.items() if runs.all(part)}
        if len(parts) > 1:
            by_name[f"labels_{name}"] = labels_table(runs, name, parts)
    return by_name


def distance_table(runs: Runs, part: str) -> Table:
    """Return every arm, closest to HMC first."""
    arms, label = ordered(runs, part), label_of(runs, part)
    seeds = count_seeds(runs, part)
    columns = {
        name: column._replace(dataset=column.dataset or label) for name, column in DISTANCES.items()
    }
    texts = [column_cells(runs, part, arms, column) for column in columns.values()]
    modes = [str(modes_of(runs, part, arm)) for arm in arms]
    return Table(
        title=f"Distance to HMC of the head: {part}",
        head=("method", "modes", *columns),
        lines=tuple(zip(arms, modes, *texts, strict=True)),
        note=f"mean ± s.e. over {seeds} seeds, closest first; {reference_text(runs, part)}",
    )


def reference_text(runs: Runs, part: str) -> str:
    """Return how far the reference of a part has converged.

    Above 1.05 it is said that its chains have not mixed."""
    r_hat = largest(runs, part, "reference_r_hat")
    median = largest(runs, part, "reference_r_hat_median")
    halves = largest(runs, part, "reference_total_variation")
    if r_hat is None or median is None:
        return "reference not known"
    mixed = "" if r_hat <= 1.05 else ", so that its chains have not mixed"
    text = f"R-hat of the reference's predictions up to {r_hat:.3f}, median {median:.3f}{mixed}"
    return text if halves is None else f"{text}; its halves are {halves:.3g} apart (TV)"


def largest(runs: Runs, part: str, metric: str) -> float | None:
    """Return the largest value that a part's examinations have of something."""
    rows = [
        row
        for cell in runs.all(part)
        for row in cell.rows
        if row.metric == metric and row.dataset.startswith(EXAMINED) and row.value is not None
    ]
    return max((row.value for row in rows if row.value is not None), default=None)


def ood_sets(runs: Runs, part: str) -> list[str]:
    """Return the data sets of a part's OOD inputs."""
    rows = [row.dataset for cell in runs.all(part)[:1] for row in cell.rows]
    return sorted({name for name in rows if name.startswith("ood:")})


def ood_table(runs: Runs, part: str) -> Table:
    """Return how well every arm tells OOD inputs, by entropy and by mutual information, and what it
    costs."""
    arms, texts, head = ordered(runs, part), [], ["method"]
    for dataset in ood_sets(runs, part):
        name = dataset.removeprefix("ood:")
        for short, measure in (("H", "predictive_entropy"), ("MI", "mutual_information")):
            head.append(f"{name}, {short} ↑")
            texts.append(column_cells(runs, part, arms, Column(dataset, f"auroc_{measure}"), 3))
    costs = [[cell.cost for cell in runs.of(part, arm)] for arm in arms]
    texts.append([mean_cell([c.train_seconds or 0.0 for c in cost], 1) for cost in costs])
    texts.append([f"{(cost[0].memory_bytes or 0) / 1e6:.2f}" for cost in costs])
    texts.append([f"{cost[0].parameters:,}" for cost in costs])
    return Table(
        title=f"OOD inputs and cost: {part}",
        head=(*head, "fit, s", "MB", "parameters"),
        lines=tuple(zip(arms, *texts, strict=True)),
        note="AUROC against the test set by predictive entropy (H) and by mutual information (MI);"
        " seconds of the clock on a machine that had other work, memory of the posterior and"
        " parameters of its heads; the body is not counted",
    )


def prior_table(runs: Runs, part: str) -> Table:
    """Return test NLL by λ."""
    methods = ("MAP", "Laplace")
    lines = []
    for precision in (*GRID, AUTO):
        arms = [prior_arm(method, precision) for method in methods]
        if runs.of(part, arms[0]):
            name = precision if isinstance(precision, str) else f"{precision:g}"
            if name == AUTO:
                chosen = runs.of(part, arms[0])[0].config.get("prior_precision")
                name = f"auto: {chosen:g}" if isinstance(chosen, float) else name
            cells = [column_cells(runs, part, [arm], Column("test", "nll"))[0] for arm in arms]
            lines.append((name, *cells))
    return Table(
        title=f"λ and the test set: {part}",
        head=("λ", *(f"{method}, NLL ↓" for method in methods)),
        lines=tuple(lines),
        note=f"mean ± s.e. over {count_seeds(runs, part)} seeds; 'auto' sees the training data"
        " alone",
    )


def labels_table(runs: Runs, name: str, parts: dict[int, str]) -> Table:
    """Return NLL and distance by labels per class."""
    lines = []
    for arm in CURVE:
        cells = []
        for part in parts.values():
            label = label_of(runs, part)
            for column in (Column("test", "nll"), Column(label, "total_variation")):
                cells += column_cells(runs, part, [arm], column) if runs.of(part, arm) else ["n/a"]
        lines.append((arm, *cells))
    head = [f"{kind}, {count}" for count in parts for kind in ("NLL ↓", "TV ↓")]
    return Table(
        title=f"Labels per class: {name}",
        head=("method", *head),
        lines=tuple(lines),
        note="mean ± s.e. over seeds; after the comma labels per class",
    )


def figures(runs: Runs) -> dict[str, Display]:
    """Return the distances of each part, and R-hat of all references."""
    by_name = {f"distance_{p}": figure_distance(runs, p) for p in runs.parts if ordered(runs, p)}
    figure = figure_r_hat(runs)
    return by_name if figure is None else {"r_hat": figure, **by_name}


def figure_r_hat(runs: Runs) -> Display | None:
    """Return R-hat of the predictions of each part's reference: its median and its largest."""
    values = {}
    for part in runs.parts:
        numbers = [
            largest(runs, part, metric) for metric in ("reference_r_hat_median", "reference_r_hat")
        ]
        if None not in numbers:
            values[part] = [number for number in numbers if number is not None]
    if not values:
        return None
    groups = {part: "small head" if "small" in part else "linear head" for part in values}
    return dots(
        values,
        groups=groups,
        label="R-hat of the references",
        axis="R-hat of predictions, median and largest",
        caption="Split R-hat, ranks normalised, of the predictions of each part's HMC: two marks"
        " per part, its median and its largest. 1.01 is the bar of linear heads, 1.05 that of small"
        " ones.",
    )
