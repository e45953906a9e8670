"""Tables and figures of the study, from its runs."""

from __future__ import annotations

import numpy as np

from polymode.metrics.compare import compare
from polymode.metrics.leaderboard import SHIFT_MEAN, value_of
from polymode.metrics.paired import Difference
from polymode.metrics.results import Results
from polymode.plots import (
    Display,
    map_limits,
    palette,
    panels,
    regression_band,
    severity_spread,
    sweep,
    uncertainty_maps,
)
from polymode.plots.regression_band import default_view
from polymode.studies.forde.published import CHOSEN_ALPHA, TABLES, Printed
from polymode.studies.forde.setup import ALPHAS, FAMILIES, SAME_BATCHES, VARIANTS, name_of
from polymode.studies.study import Runs, Table, paired_difference
from polymode.studies.table_cells import (
    PAIRED,
    Column,
    by_seed,
    column_cells,
    count_seeds,
    marked_interval,
    present,
    seeds_of,
)

TUNED = "FoRDE-Tuned"
LINES = (
    "DE", SAME_BATCHES, "weight-RDE", "function-RDE", "feature-RDE", "LIT", "FoRDE-PCA",
    "FoRDE-Identity", TUNED,
)  # fmt: skip
COLUMNS = {
    "NLL ↓": Column("test", "nll", field="nll"),
    "accuracy % ↑": Column("test", "accuracy", 100, "accuracy"),
    "ECE ↓": Column("test", "ece", field="ece"),
    "cNLL ↓": Column(SHIFT_MEAN, "nll", field="corrupted_nll"),
    "cA % ↑": Column(SHIFT_MEAN, "accuracy", 100, "corrupted_accuracy"),
    "cECE ↓": Column(SHIFT_MEAN, "ece", field="corrupted_ece"),
}

TOYS = ("regression", "classification")
PAPERS = {"cifar10_subset": "cifar10", **{part: part for part in TABLES}}
"""Which table of the paper belongs to a part."""


def tables(runs: Runs) -> dict[str, Table]:
    """Return, for each data set, the benchmark, the differences in it, and the paper's table."""
    by_name: dict[str, Table | None] = {}
    for part in image_parts(runs):
        by_name[f"benchmark_{part}"] = benchmark(runs, part)
        by_name[f"differences_{part}"] = differences(runs, part)
        by_name[f"families_{part}"] = families(runs, part)
        by_name[f"variants_{part}"] = variants(runs, part)
        by_name[f"paper_{part}"] = published(PAPERS[part]) if part in PAPERS else None
    return present(by_name)


def figures(runs: Runs) -> dict[str, Display]:
    """Return the two toy figures, and for each data set the sweep and the severities."""
    by_name = {
        "regression": figure_regression(runs),
        "classification": figure_classification(runs),
    }
    for part in image_parts(runs):
        by_name[f"lengthscales_{part}"] = figure_lengthscales(runs, part)
        by_name[f"severity_{part}"] = figure_severity(runs, part)
    return present(by_name)


def image_parts(runs: Runs) -> list[str]:
    """Return the parts that make the table."""
    return [part for part in runs.parts if part not in TOYS]


def chosen_alpha(runs: Runs, part: str) -> float | None:
    """Return the alpha of lowest NLL on the shifted validation set, mean over seeds and shifts.

    Nothing of the test set is looked at. Of an unfinished sweep, the alphas that have results are
    compared, each by its own seeds; None for fewer than two.
    """
    scores = {}
    for alpha in ALPHAS:
        results = runs.of(part, name_of(alpha))
        if results:
            rows = [row for cell in results for row in cell.rows if row.metric == "nll"]
            nll = [row.value for row in rows if row.dataset.startswith("val:")]
            scores[alpha] = float(np.mean(np.array(nll, dtype=float)))
    return min(scores, key=lambda alpha: scores[alpha]) if len(scores) > 1 else None


def arm_of(runs: Runs, part: str, line: str) -> str:
    """Return the arm behind a line of the table: its own, but for the tuned one."""
    alpha = chosen_alpha(runs, part) if line == TUNED else None
    return line if alpha is None else name_of(alpha)


def benchmark(runs: Runs, part: str) -> Table | None:
    """Return the table of one data set: means over seeds, and the paper's numbers where it is."""
    lines = [line for line in LINES if runs.of(part, arm_of(runs, part, line))]
    if not lines:
        return None
    arms = [arm_of(runs, part, line) for line in lines]
    columns = [column_cells(runs, part, arms, column) for column in COLUMNS.values()]
    alpha = chosen_alpha(runs, part)
    names = [line if line != TUNED else f"{TUNED} (α = {alpha:g})" for line in lines]
    return Table(
        title=f"Benchmark: {part}",
        head=("method", *COLUMNS),
        lines=tuple(zip(names, *columns, strict=True)),
        note=f"mean ± s.e. over {count_seeds(runs, part, arms)} seeds; c: mean over corruptions and"
        " severities; α of Tuned by NLL on the corrupted validation set",
    )


def variants(runs: Runs, part: str) -> Table | None:
    """Return what the savings `every` and `fraction`, and a stronger repulsion, change."""
    arms = [arm for arm in ("DE", "FoRDE-PCA", *VARIANTS) if runs.of(part, arm)]
    if len(arms) < 3:
        return None
    columns = [column_cells(runs, part, arms, column) for column in COLUMNS.values()]
    spread = column_cells(runs, part, arms, Column(SHIFT_MEAN, "mutual_information"))
    return Table(
        title=f"Variants of FoRDE-PCA: {part}",
        head=("arm", *COLUMNS, "c mutual information, nats"),
        lines=tuple(zip(arms, *columns, spread, strict=True)),
        note=f"mean ± s.e. over {count_seeds(runs, part, arms)} seeds; the usual weight is 1/128",
    )


def published(part: str) -> Table:
    """Return the paper's table."""
    printed = TABLES[part]
    names = {TUNED: f"{TUNED} (α = {CHOSEN_ALPHA.get(part)})"}
    lines = [(names.get(line, line), *_printed(row)) for line, row in printed.items()]
    nets = {"tiny_imagenet": "preactivation ResNet18"}
    return Table(
        title=f"Paper: {part}, {nets.get(part, 'ResNet18')}",
        head=("method", *COLUMNS),
        lines=tuple(lines),
        note="as printed, mean ± standard deviation over 5 seeds, 10 members; 19 corruptions",
    )


def _printed(row: Printed) -> tuple[str, ...]:
    texts = []
    for column in COLUMNS.values():
        value, spread = getattr(row, column.field), getattr(row, f"{column.field}_spread", None)
        texts.append(f"{value:g}" if spread is None else f"{value:g} ± {spread:g}")
    return tuple(texts)


def differences(runs: Runs, part: str) -> Table | None:
    """Return how far each line is from the deep ensemble: paired over seeds, 95 % intervals."""
    lines = [x for x in LINES if x != "DE" and runs.of(part, arm_of(runs, part, x))]
    if not lines or not runs.of(part, "DE"):
        return None
    rows = []
    for line in lines:
        arm = arm_of(runs, part, line)
        gaps = [
            _difference(runs.difference(part, arm, "DE", c.dataset, c.metric), c.factor)
            for c in COLUMNS.values()
        ]
        rows.append((line, *gaps))
    return Table(
        title=f"Difference to the deep ensemble: {part}",
        head=("method", *COLUMNS),
        lines=tuple(rows),
        note=_PAIRED,
    )


_PAIRED = f"{PAIRED}; † marks intervals without zero"


def _difference(gap: Difference | None, factor: int) -> str:
    return marked_interval(gap, "†", 2 if factor == 100 else 4, factor)


def families(runs: Runs, part: str) -> Table | None:
    """Return the differences in corrupted accuracy by the kind of corruption."""
    arms = [arm for arm in ("FoRDE-PCA", "FoRDE-Identity") if runs.of(part, arm)]
    rows = []
    for arm in arms if runs.of(part, "DE") else ():
        gaps = []
        for kinds in FAMILIES.values():
            ours, ensembles = (_mean_over(runs, part, name, kinds) for name in (arm, "DE"))
            gaps.append(_difference(paired_difference(ours, ensembles), 100))
        rows.append((arm, *gaps))
    if not rows:
        return None
    return Table(
        title=f"Difference to the deep ensemble by corruption, accuracy in points: {part}",
        head=("method", *FAMILIES),
        lines=tuple(rows),
        note=f"means over kinds and severities; {_PAIRED}",
    )


def _mean_over(runs: Runs, part: str, arm: str, kinds: tuple[str, ...]) -> dict[int, float]:
    """Return the accuracy by seed, mean over all severities of these corruptions."""
    means = {}
    for results in runs.of(part, arm):
        shifts = [name for name in results.datasets if name.startswith("shift:")]
        names = [name for name in shifts if name.split(":")[1] in kinds]
        values = [value_of(results, name, "accuracy") for name in names]
        if values and None not in values:
            means[results.seed] = float(np.mean(np.array(values, dtype=float)))
    return means


def _first_seed(runs: Runs, part: str, prediction: str) -> dict[str, Results]:
    """Return the first seed of each arm; nothing unless all keep the prediction to be drawn."""
    first = {arm: runs.of(part, arm)[0] for arm in runs.arms(part)}
    return first if all(prediction in results.kept for results in first.values()) else {}


def figure_regression(runs: Runs) -> Display | None:
    """Return the epistemic bands of the 1-D regression, the first seed of each method."""
    first = _first_seed(runs, "regression", "curve")
    if not first:
        return None
    styles = palette(first)
    ends = np.array([default_view(regression_band(results).data) for results in first.values()])
    view = float(ends[:, 0].min()), float(ends[:, 1].max())
    drawn = {
        arm: regression_band(r, label=arm, style=styles[arm], view=view) for arm, r in first.items()
    }
    results = next(iter(first.values()))
    return panels(
        drawn,
        label="1-D regression",
        caption=f"Epistemic uncertainty of {results.cost.num_modes} members on three clusters of"
        " points: mean ± 1, 2, 3 standard deviations of the members' functions, seed"
        f" {results.seed}.",
    )


def figure_classification(runs: Runs) -> Display | None:
    """Return the predictive entropy over the plane, the first seed of each method."""
    first = _first_seed(runs, "classification", "plane")
    if not first:
        return None
    limits = map_limits(first.values())
    drawn = {arm: uncertainty_maps(r, label=arm, limits=limits) for arm, r in first.items()}
    results = next(iter(first.values()))
    return panels(
        drawn,
        label="2-D classification",
        caption=f"Predictive entropy of {results.cost.num_modes} members on five Gaussians, one"
        f" colour scale from 0 to {limits[1]:.2g} nats, seed {results.seed}.",
    )


def figure_lengthscales(runs: Runs, part: str) -> Display | None:
    """Return clean and corrupted accuracy and NLL against alpha, with the chosen one."""
    alphas = [alpha for alpha in ALPHAS if runs.of(part, name_of(alpha))]
    if len(alphas) < 3:
        return None
    arms = [name_of(alpha) for alpha in alphas]
    curves = {
        title: factor
        * by_seed(
            [runs.values(part, arm, dataset, metric) for arm in arms], seeds_of(runs, part, arms)
        )
        for title, dataset, metric, factor in (
            ("clean accuracy (%)", "test", "accuracy", 100),
            ("corrupted accuracy (%)", SHIFT_MEAN, "accuracy", 100),
            ("corrupted NLL (nats)", SHIFT_MEAN, "nll", 1),
        )
    }
    name = f"α, from identity (0) to PCA (1) lengthscales, {part}"
    return sweep(alphas, curves, name=name, chosen=chosen_alpha(runs, part))


def figure_severity(runs: Runs, part: str) -> Display | None:
    """Return accuracy and NLL against the severity, over all corruptions."""
    arms = ("DE", "FoRDE-Identity", "FoRDE-PCA")
    results = [cell for arm in arms for cell in runs.of(part, arm)]
    if not results:
        return None
    display = severity_spread(compare(results), metrics=["accuracy", "nll"])
    display.shared = f"{part}: {display.shared}"
    return display
