"""Tables and figures of the study, from its runs."""

from __future__ import annotations

from polymode.metrics.paired import Difference
from polymode.plots import Display, dots
from polymode.studies.efficient.setup import ENSEMBLE, SINGLE, timed
from polymode.studies.study import Runs, Table, paired_difference
from polymode.studies.table_cells import (
    PAIRED,
    Column,
    column_cells,
    count_seeds,
    marked_interval,
    present,
)

PRICE = "examined:price"
CLASSES = {
    "accuracy % ↑": Column("test", "accuracy", 100),
    "NLL ↓": Column("test", "nll"),
    "ECE ↓": Column("test", "ece"),
    "disagreement": Column("test", "disagreement"),
}
VALUES = {
    "NLL ↓": Column("test", "nll"),
    "RMSE ↓": Column("test", "rmse"),
    "CRPS ↓": Column("test", "crps"),
    "coverage of 90 %": Column("test", "coverage_90"),
    "epistemic share": Column("test", "epistemic_share"),
}
EQUAL = 1.35  # numbers held over one network's, up to which parameters count as equal


def is_classes(runs: Runs, part: str) -> bool:
    """Return whether the part is a classification."""
    return any(row.metric == "accuracy" for results in runs.all(part) for row in results.rows)


def columns_of(runs: Runs, part: str) -> dict[str, Column]:
    """Return the columns of quality: those of the kind of task, and AUROC of each OOD set."""
    if not is_classes(runs, part):
        return VALUES
    metric = "auroc_predictive_entropy"
    sets = dict.fromkeys(
        row.dataset
        for results in runs.all(part)
        for row in results.rows
        if row.dataset.startswith("ood:") and row.metric == metric
    )
    return CLASSES | {f"AUROC, {name[4:]} % ↑": Column(name, metric, 100) for name in sets}


def held(runs: Runs, part: str, arm: str) -> float | None:
    """Return the numbers that an arm holds in memory, over those of one network."""
    ours, single = (
        list(runs.values(part, name, PRICE, "numbers_held").values()) for name in (arm, SINGLE)
    )
    return ours[0] / single[0] if ours and single else None


def seconds(runs: Runs, part: str, arm: str) -> dict[int, float]:
    """Return the seconds of training, by seed."""
    times = {cell.seed: cell.cost.train_seconds for cell in runs.of(part, arm)}
    return {seed: value for seed, value in times.items() if value is not None}


def ood_mean(
    runs: Runs, part: str, arm: str, metric: str = "auroc_predictive_entropy"
) -> dict[int, float]:
    """Return an AUROC by seed, mean over OOD sets."""
    sets = [c for name, c in columns_of(runs, part).items() if name.startswith("AUROC")]
    values = [runs.values(part, arm, column.dataset, metric) for column in sets]
    seeds = set.intersection(*(set(v) for v in values)) if values else set()
    return {seed: sum(v[seed] for v in values) / len(values) for seed in sorted(seeds)}


def numbers_of(runs: Runs, part: str, arm: str, metric: str) -> dict[int, float]:
    """Return what a claim is about by seed: a metric of the test set, "ood" or "energy"."""
    if metric == "ood":
        return ood_mean(runs, part, arm)
    if metric == "energy":
        return ood_mean(runs, part, arm, "auroc_energy")
    return runs.values(part, arm, "test", metric)


def tables(runs: Runs) -> dict[str, Table]:
    """Return, for each part: all arms at equal training, at equal parameters, at equal time."""
    by_name: dict[str, Table | None] = {}
    for part in runs.parts:
        every = runs.arms(part)
        plain = [arm for arm in every if not arm.endswith(timed(""))]
        by_name[f"training_{part}"] = comparison(
            runs, part, plain, "At equal epochs", "all arms have the same epochs"
        )
        small = [arm for arm in plain if (held(runs, part, arm) or 9.0) <= EQUAL]
        by_name[f"parameters_{part}"] = comparison(
            runs, part, small, "At equal parameters",
            f"arms that hold at most {EQUAL:g} times the numbers of one network",
        )  # fmt: skip
        equal = [timed(arm) if timed(arm) in every else arm for arm in plain]
        of_time = [arm for arm in equal if _near_in_time(runs, part, arm)]
        by_name[f"time_{part}"] = comparison(
            runs, part, of_time, "At equal training time",
            "epochs by what an epoch costs; arms that took half to twice as long as the ensemble",
        )  # fmt: skip
        by_name[f"differences_{part}"] = differences(runs, part, plain)
    return present(by_name)


def _near_in_time(runs: Runs, part: str, arm: str) -> bool:
    ours, ensemble = (list(seconds(runs, part, name).values()) for name in (arm, ENSEMBLE))
    if not ours or not ensemble:
        return False
    ratio = (sum(ours) / len(ours)) / (sum(ensemble) / len(ensemble))
    return 0.5 <= ratio <= 2.0


def comparison(runs: Runs, part: str, arms: list[str], title: str, which: str) -> Table | None:
    """Return arms with their quality and cost."""
    if len(arms) < 2:
        return None
    columns = columns_of(runs, part)
    cells = [column_cells(runs, part, arms, column) for column in columns.values()]
    costs = [_cost_cells(runs, part, arm) for arm in arms]
    return Table(
        title=f"{title}: {part}",
        head=("arm", *columns, "numbers held", "flop/example", "training, s"),
        lines=tuple(
            (arm, *row, *cost)
            for arm, row, cost in zip(arms, zip(*cells, strict=True), costs, strict=True)
        ),
        note=f"mean ± s.e. over {count_seeds(runs, part, arms)} seeds; {which}; the machine"
        " was shared" + "; AUROC is that of the predictive entropy" * is_classes(runs, part),
    )


def _cost_cells(runs: Runs, part: str, arm: str) -> tuple[str, str, str]:
    numbers = [
        list(runs.values(part, arm, PRICE, metric).values()) for metric in ("numbers_held", "flops")
    ]
    size, flops = (f"{values[0]:,.0f}" if values else "n/a" for values in numbers)
    times = list(seconds(runs, part, arm).values())
    return size, flops, f"{sum(times) / len(times):.1f}" if times else "n/a"


def differences(runs: Runs, part: str, arms: list[str]) -> Table | None:
    """Return how far each arm is from one network and from the ensemble, paired over seeds."""
    rows = []
    for arm in arms:
        gaps = [_gap(runs, part, arm, base) for base in (SINGLE, ENSEMBLE)]
        rows.append((arm, *(marked_interval(gap, "†", 4) for gap in gaps)))
    if len(rows) < 2:
        return None
    return Table(
        title=f"Differences in NLL: {part}",
        head=("arm", f"− {SINGLE}", f"− {ENSEMBLE}"),
        lines=tuple(rows),
        note=f"{PAIRED}; † marks intervals without zero; negative is better",
    )


def _gap(runs: Runs, part: str, arm: str, base: str) -> Difference | None:
    if arm == base:
        return None
    return paired_difference(
        numbers_of(runs, part, arm, "nll"), numbers_of(runs, part, base, "nll")
    )


def figures(runs: Runs) -> dict[str, Display]:
    """Return the NLL of every arm, a mark per seed, best first."""
    return {f"nll_{part}": figure_nll(runs, part) for part in runs.parts if runs.arms(part)}


def figure_nll(runs: Runs, part: str) -> Display:
    """Return the NLL of every arm as dots, by what the arm holds."""
    values = {arm: list(numbers_of(runs, part, arm, "nll").values()) for arm in runs.arms(part)}
    values = {arm: numbers for arm, numbers in values.items() if numbers}
    ranked = sorted(values, key=lambda arm: sum(values[arm]) / len(values[arm]))
    groups = {
        arm: "about one network's parameters"
        if (held(runs, part, arm) or 9.0) <= EQUAL
        else "more parameters"
        for arm in ranked
    }
    return dots(
        {arm: values[arm] for arm in ranked},
        groups=groups,
        label=f"{part}: NLL",
        axis="NLL, nats per example",
        caption=f"NLL on the test set of {part}, a point per seed, the line their mean;"
        " best first.",
    )
