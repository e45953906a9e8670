"""The theory's part of the study: what is run, its tables and figures.

See `theory_experiments` for the set-up. `smoke` takes seconds; `cpu` is what `results/` holds;
`paper` has the widths and steps of the talk and ensembles of 1,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polymode.metrics.paired import mean_and_error
from polymode.plots import Comparison, Display
from polymode.plots.size_curve import size_curve
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import theory_claims
from polymode.studies.equivariance import theory_experiments as experiments
from polymode.studies.equivariance.shown import values
from polymode.studies.equivariance.theory_figures import ToyCurves, toy_curves
from polymode.studies.equivariance.theory_numbers import (
    CROSS,
    ISING,
    NTK,
    PARTIAL,
    PLACES,
    TOY,
    cell,
    num_seeds,
    steps_of,
)
from polymode.studies.study import Claim, Runs, Table


def width_name(width: int) -> str:
    """Return the arm of a width.

    >>> width_name(1024)
    'width 1024'
    """
    return f"width {width}"


def parts(preset: str) -> dict[str, Part | Experiment]:
    """Return the parts of a preset."""
    return {"smoke": _smoke, "cpu": _cpu, "paper": _paper}[preset]()


def _made(
    toy: dict[str, Any],
    widths: dict[int, int],
    ising: dict[str, Any],
    partial: dict[str, Any],
    cross: dict[str, Any],
    solids: Sequence[str],
    seeds: tuple[int, int],
) -> dict[str, Part | Experiment]:
    few, many = (tuple(range(number)) for number in seeds)
    sizes = ising["sizes"]
    arms = {
        width_name(width): {**ising, "width": width, "num_modes": modes, "sizes": _to(sizes, modes)}
        for width, modes in widths.items()
    }
    return {
        TOY: Experiment(function=experiments.toy, arms={"toy": toy}, seeds=many),
        ISING: Experiment(
            function=experiments.ising, arms={**arms, NTK: {**ising, "width": 0}}, seeds=few
        ),
        PARTIAL: Experiment(
            function=experiments.partial,
            arms={name: {**partial, "rotations": name} for name in experiments.SETS},
            seeds=many,
        ),
        CROSS: Experiment(
            function=experiments.cross_product,
            arms={
                solid: {**cross, "solid": solid, **({} if not n else {"num_modes": 0})}
                for n, solid in enumerate(solids)
            },
            seeds=many,
        ),
    }


def _to(sizes: Sequence[int], largest: int) -> list[int]:
    return [size for size in sizes if size <= largest]


def _smoke() -> dict[str, Part | Experiment]:
    return _made(
        {"width": 32, "num_modes": 4, "steps": [0, 1, 2, 3, 6]},
        {32: 6, 64: 4},
        {"num_train": 4, "num_test": 5, "steps": 4, "sizes": [1, 2, 4]},
        {"num_train": 6, "num_test": 5, "times": [1, 100]},
        {"width": 32, "num_modes": 4, "num_train": 4, "num_test": 3, "steps": 3},
        ("tetrahedral", "octahedral"),
        (2, 2),
    )


def _cpu() -> dict[str, Part | Experiment]:
    return _made(
        {"num_modes": 100, "steps": list(experiments.STEPS)},
        {512: 120, 1024: 40, 2048: 20},
        {"steps": 25, "sizes": [1, 2, 5, 10, 20, 40, 120]},
        {},
        {},
        ("tetrahedral", "octahedral", "icosahedral"),
        (3, 5),
    )


def _paper() -> dict[str, Part | Experiment]:
    return _made(
        {"num_modes": 1000, "steps": list(experiments.STEPS)},
        {512: 1000, 1024: 1000, 2048: 1000},
        {"num_train": 128, "num_test": 200, "sizes": [1, 2, 5, 10, 20, 50, 100, 250, 500, 1000]},
        {"num_train": 128},
        {"num_modes": 1000, "num_train": 64, "num_test": 100},
        ("tetrahedral", "octahedral", "icosahedral"),
        (5, 5),
    )


# tables

_COLUMNS = {
    "one member": "member",
    "member, predicted": "member_predicted",
    "ensemble": "ensemble",
    "ensemble, predicted": "ensemble_predicted",
    "closed form, ∞ members": "closed_form",
    "left over": "left_over",
}
_NOTE = (
    "root mean square of f(g x) − ρ(g) f(x) over inputs and g ≠ e; predicted: infinite width; left"
    " over: unbiased estimate of the squared deviation of infinitely many such members, as a part"
    " of one member's; mean ± s.e. over {} seeds"
)


def tables(runs: Runs) -> dict[str, Table]:
    """Return the tables of the parts that were run."""
    found = {
        "toy": _toy_table(runs),
        "ising": _ising_table(runs),
        "ising_members": _members_table(runs),
        "partial": _partial_table(runs),
        "cross_product": _cross_table(runs),
    }
    return {name: table for name, table in found.items() if table is not None}


def _toy_table(runs: Runs) -> Table | None:
    steps = steps_of(runs)
    if not steps:
        return None
    rows = [
        (
            f"{step:,}",
            *(cell(runs, TOY, "toy", f"step_{step}_{key}") for key in _COLUMNS.values()),
            cell(runs, TOY, "toy", f"step_{step}_from_closed_form"),
            cell(runs, TOY, "toy", f"step_{step}_from_closed_form_expected"),
        )
        for step in steps
    ]
    return Table(
        title="Toy curves: how far from even, by steps of training",
        head=("steps", *_COLUMNS, "ensemble − closed form", "expected of so few"),
        lines=tuple(rows),
        note=_NOTE.format(num_seeds(runs, TOY)) + "; the grid reaches beyond the data",
    )


def _ising_table(runs: Runs) -> Table | None:
    arms = [arm for arm in runs.arms(ISING) if arm != NTK]
    if not arms:
        return None
    rows = [
        (
            f"{arm}, {title}",
            *(cell(runs, ISING, arm, f"{place}_{key}") for key in _COLUMNS.values()),
        )
        for place, title in PLACES.items()
        for arm in arms
    ]
    return Table(
        title="Ising model: how far from invariant under C4",
        head=("network", *_COLUMNS),
        lines=tuple(rows),
        note=_NOTE.format(num_seeds(runs, ISING)),
    )


def _sizes(runs: Runs) -> list[int]:
    arms = [arm for arm in runs.arms(ISING) if arm != NTK]
    found = [each for arm in arms for each in list(runs.findings(ISING, arm).values())[:1]]
    names = {row.metric for each in found for row in each.rows if "id_relative_" in row.metric}
    return sorted(int(name.rpartition("_")[2]) for name in names)


def _members_table(runs: Runs) -> Table | None:
    sizes = _sizes(runs)
    if not sizes:
        return None
    rows = []
    for place, title in PLACES.items():
        for arm in runs.arms(ISING):
            cells = [cell(runs, ISING, arm, f"{place}_relative_{size}", 3) for size in sizes]
            last = cell(runs, ISING, arm, f"{place}_relative_infinite")
            rows.append((f"{arm}, {title}", *cells, last))
    return Table(
        title="Ising model: relative standard deviation over the orbit, by members",
        head=("network", *map(str, sizes), "∞"),
        lines=tuple(rows),
        note="root mean square over inputs of the standard deviation over C4, divided by that of"
        " the mean over C4; mean over sub-ensembles, then mean ± s.e. over"
        f" {num_seeds(runs, ISING)} seeds; NTK: expected at infinite width",
    )


def _partial_table(runs: Runs) -> Table | None:
    arms = runs.arms(PARTIAL)
    found = next(iter(runs.findings(PARTIAL, arms[0]).values()), None) if arms else None
    if found is None:
        return None
    times = [int(r.metric.split("_")[-1]) for r in found.rows if r.metric.startswith("id_relative")]
    rows = [
        (
            arm,
            *(
                cell(runs, PARTIAL, arm, f"{place}_relative_{t}", 3)
                for place in PLACES
                for t in times
            ),
        )
        for arm in arms
    ]
    return Table(
        title="Partial augmentation at infinite width: relative standard deviation over C4",
        head=("rotations", *(f"{place.upper()}, t = {t:,}" for place in PLACES for t in times)),
        lines=tuple(rows),
        note=f"closed form, Ising lattices; mean ± s.e. over {num_seeds(runs, PARTIAL)} seeds",
    )


def _cross_table(runs: Runs) -> Table | None:
    arms = runs.arms(CROSS)
    if not arms:
        return None
    wheres = {"solid": "its rotations", "continuous": "any rotation"}
    rows = [
        (
            f"{arm}, {said}, {title}",
            *(cell(runs, CROSS, arm, f"{place}_{where}_{key}") for key in _COLUMNS.values()),
            cell(runs, CROSS, arm, f"{place}_mean_rms"),
        )
        for arm in arms
        for where, said in wheres.items()
        for place, title in PLACES.items()
    ]
    return Table(
        title="Cross product: how far from equivariant under SO(3)",
        head=("augmented with", *_COLUMNS, "size of outputs"),
        lines=tuple(rows),
        note=_NOTE.format(num_seeds(runs, CROSS)) + "; –: closed form only",
    )


# figures


def figures(runs: Runs) -> dict[str, Display]:
    """Return the figures of the parts that were run."""
    found: dict[str, Display] = {}
    curves = _toy_figure(runs)
    if curves is not None:
        found["toy"] = curves
    for place, title in PLACES.items():
        lines: dict[str, Any] = {}
        for arm in runs.arms(ISING):
            points = [
                (size, *_mean(runs, ISING, arm, f"{place}_relative_{size}"))
                for size in _sizes(runs)
                if values(runs, ISING, arm, f"{place}_relative_{size}")
            ]
            if points:
                lines[arm] = tuple(zip(*points, strict=True))
        if lines:
            name = f"relative orbit deviation, {title}"
            found[f"ising_{place}"] = size_curve(lines, metric=name)
    return found


def _mean(runs: Runs, part: str, arm: str, metric: str) -> tuple[float, float]:
    mean, error = mean_and_error(list(values(runs, part, arm, metric).values()))
    return mean, error or 0.0


def _toy_figure(runs: Runs) -> ToyCurves | None:
    found = runs.findings(TOY, "toy")
    seed = min(found, default=None)
    if seed is None or "x" not in found[seed].arrays:
        return None
    return toy_curves(found[seed].arrays, steps_of(runs), seed)


def claims(runs: Runs) -> list[Claim]:
    """Return the claims whose parts were run."""
    return theory_claims.claims(runs)


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return nothing: the talk prints no numbers of these parts."""
    return []
