"""The theory's part of the study: what is run, its tables, figures and claims.

See `theory_experiments` for the set-up. `smoke` takes seconds; `cpu` is what `results/` holds;
`paper` has the widths and steps of the talk and ensembles of 1,000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from polymode.metrics.paired import Difference, mean_and_error, not_rejected, paired
from polymode.metrics.table import decimals_for, number
from polymode.plots import Comparison, Display
from polymode.plots.size_curve import size_curve
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import theory_experiments as experiments
from polymode.studies.equivariance.theory_figures import ToyCurves, toy_curves
from polymode.studies.study import Claim, Runs, Table

TOY, ISING, PARTIAL, CROSS = "toy", "ising", "partial", "cross_product"
NTK = "NTK"
PLACES = {"id": "in distribution", "ood": "out of distribution"}
EQUIVARIANT = 0.1  # largest part of a member's squared deviation that its limit may have left
NEAR = 0.15  # half-width of the logarithm's interval, so that "as predicted" says something


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
        {"num_modes": 32, "steps": list(experiments.STEPS)},
        {512: 400, 1024: 100, 2048: 40},
        {"sizes": [1, 2, 5, 10, 20, 40, 100, 400]},
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


# numbers


def values(runs: Runs, part: str, arm: str, metric: str) -> dict[int, float]:
    """Return a number of an experiment by seed."""
    return runs.values(part, arm, f"examined:{part}", metric)


def _cell(runs: Runs, part: str, arm: str, metric: str, most: int = 4) -> str:
    found = list(values(runs, part, arm, metric).values())
    if not found:
        return "–"
    mean, error = mean_and_error(found)
    if abs(mean) < 1e-9:
        return f"{mean:.0e}".replace("-", "−")
    return number(mean, error, min(decimals_for([mean], [error]), most))


def _ratios(runs: Runs, part: str, arm: str, over: str, under: str) -> Difference | None:
    """Return the logarithm of a ratio of two numbers of one arm, over seeds."""
    ours, theirs = values(runs, part, arm, over), values(runs, part, arm, under)
    return paired([math.log(ours[seed] / theirs[seed]) for seed in ours if seed in theirs])


def steps_of(runs: Runs) -> list[int]:
    """Return the steps of the toy."""
    found = next(iter(runs.findings(TOY, "toy").values()), None)
    if found is None:
        return []
    names = [row.metric for row in found.rows]
    return [int(name.split("_")[1]) for name in names if name.endswith("_left_over")]


def _seeds(runs: Runs, part: str) -> int:
    return max((len(runs.of(part, arm)) for arm in runs.arms(part)), default=0)


# tables

_COLUMNS = {
    "one member": "member",
    "predicted": "member_predicted",
    "ensemble": "ensemble",
    "predicted ": "ensemble_predicted",
    "closed form, ∞ members": "closed_form",
    "left over": "left_over",
}
_NOTE = (
    "root mean square of f(g x) − ρ(g) f(x) over inputs and g ≠ e; predicted: infinite width; left"
    " over: unbiased estimate of the squared deviation of infinitely many such members, as a part of"
    " one member's; mean ± s.e. over {} seeds"
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
            *(_cell(runs, TOY, "toy", f"step_{step}_{key}") for key in _COLUMNS.values()),
            _cell(runs, TOY, "toy", f"step_{step}_from_closed_form"),
            _cell(runs, TOY, "toy", f"step_{step}_from_closed_form_expected"),
        )
        for step in steps
    ]
    return Table(
        title="Toy curves: how far from even, by steps of training",
        head=("steps", *_COLUMNS, "ensemble − closed form", "expected of so few"),
        lines=tuple(rows),
        note=_NOTE.format(_seeds(runs, TOY)) + "; the grid reaches beyond the data",
    )


def _ising_table(runs: Runs) -> Table | None:
    arms = [arm for arm in runs.arms(ISING) if arm != NTK]
    if not arms:
        return None
    rows = [
        (
            f"{arm}, {title}",
            *(_cell(runs, ISING, arm, f"{place}_{key}") for key in _COLUMNS.values()),
        )
        for place, title in PLACES.items()
        for arm in arms
    ]
    return Table(
        title="Ising model: how far from invariant under C4",
        head=("network", *_COLUMNS),
        lines=tuple(rows),
        note=_NOTE.format(_seeds(runs, ISING)),
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
            cells = [_cell(runs, ISING, arm, f"{place}_relative_{size}", 3) for size in sizes]
            last = _cell(runs, ISING, arm, f"{place}_relative_infinite")
            rows.append((f"{arm}, {title}", *cells, last))
    return Table(
        title="Ising model: relative standard deviation over the orbit, by members",
        head=("network", *map(str, sizes), "∞"),
        lines=tuple(rows),
        note="root mean square over inputs of the standard deviation over C4, divided by that of"
        f" the mean over C4; mean over sub-ensembles, then mean ± s.e. over {_seeds(runs, ISING)}"
        " seeds; NTK: expected at infinite width",
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
                _cell(runs, PARTIAL, arm, f"{place}_relative_{t}", 3)
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
        note=f"closed form, Ising lattices; mean ± s.e. over {_seeds(runs, PARTIAL)} seeds",
    )


def _cross_table(runs: Runs) -> Table | None:
    arms = runs.arms(CROSS)
    if not arms:
        return None
    wheres = {"solid": "its rotations", "continuous": "any rotation"}
    rows = [
        (
            f"{arm}, {said}, {title}",
            *(_cell(runs, CROSS, arm, f"{place}_{where}_{key}") for key in _COLUMNS.values()),
            _cell(runs, CROSS, arm, f"{place}_mean_rms"),
        )
        for arm in arms
        for where, said in wheres.items()
        for place, title in PLACES.items()
    ]
    return Table(
        title="Cross product: how far from equivariant under SO(3)",
        head=("augmented with", *_COLUMNS, "size of outputs"),
        lines=tuple(rows),
        note=_NOTE.format(_seeds(runs, CROSS)) + "; –: closed form only",
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


# claims


def claims(runs: Runs) -> list[Claim]:
    """Return the claims whose parts were run."""
    found = []
    if runs.arms(TOY):
        found += [_at_all_steps(runs), _closed_curves(runs)]
    for arm in runs.arms(ISING):
        if arm != NTK:
            found += [_as_predicted(runs, arm, place) for place in PLACES]
    if len([arm for arm in runs.arms(ISING) if arm != NTK]) > 1:
        found.append(_left_at_any_width(runs))
    if runs.arms(PARTIAL):
        found.append(_full_is_needed(runs))
    if runs.arms(CROSS):
        found.append(_cross_equivariant(runs))
    if len(runs.arms(CROSS)) > 1:
        found.append(_finer(runs))
    return found


def _said(found: Difference, digits: int = 3) -> str:
    text = f"{found.mean:.{digits}f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.{digits}f}, {found.high:.{digits}f}]"
    return text.replace("-", "−")


def _nothing_left(found: dict[str, Difference]) -> str:
    """Return whether the mean is equivariant in all these places: no interval, corrected for their
    number, lies above 0, and none reaches beyond `EQUIVARIANT`."""
    if not found or any(each.high is None for each in found.values()):
        return "not run" if not found else "undecided"
    p_values = {name: each.p_value for name, each in found.items() if each.p_value is not None}
    standing = not_rejected(p_values)
    if any(name not in standing and found[name].mean > 0 for name in p_values):
        return "does not hold"
    reaching = max(each.high for each in found.values() if each.high is not None)
    return "holds" if reaching < EQUIVARIANT else "undecided"


def _left(runs: Runs, part: str, arm: str, names: Sequence[str]) -> dict[str, Difference]:
    found = {n: paired(list(values(runs, part, arm, f"{n}_left_over").values())) for n in names}
    return {name: each for name, each in found.items() if each is not None}


def _at_all_steps(runs: Runs) -> Claim:
    steps = steps_of(runs)
    found = _left(runs, TOY, "toy", [f"step_{step}" for step in steps])
    members = [_cell(runs, TOY, "toy", f"step_{step}_member", 2) for step in steps]
    parts = [
        f"{step:,} steps: {members[n]} and {_said(found[f'step_{step}'])}"
        for n, step in enumerate(steps)
    ]
    return Claim(
        "Toy: the ensemble's mean is equivariant at all steps, members are not",
        "curves at 0, 1, 2, 3 and 2000 steps: members lopsided, mean symmetric",
        "deviation of a member, and part of its square that infinitely many members would have: "
        + "; ".join(parts),
        _nothing_left(found),
    )


def _closed_curves(runs: Runs) -> Claim:
    steps = steps_of(runs)
    largest = max(
        v for s in steps for v in values(runs, TOY, "toy", f"step_{s}_closed_form").values()
    )
    found = {
        s: _ratios(runs, TOY, "toy", f"step_{s}_from_closed_form",
                   f"step_{s}_from_closed_form_expected") for s in steps
    }  # fmt: skip
    text = "; ".join(
        f"{s:,} steps: {math.exp(d.mean):.2f}" for s, d in found.items() if d is not None
    )
    return Claim(
        "Toy: the infinite ensemble is exactly even at all steps",
        "theorem",
        f"largest deviation of the closed form {largest:.1g}; distance of the ensemble's mean from"
        f" it, over that expected of so few members: {text}",
        "holds" if largest < 1e-10 else "does not hold",
    )


def _as_predicted(runs: Runs, arm: str, place: str) -> Claim:
    member = _ratios(runs, ISING, arm, f"{place}_member", f"{place}_member_predicted")
    mean = _ratios(runs, ISING, arm, f"{place}_ensemble", f"{place}_ensemble_predicted")
    verdict = "undecided"
    if mean is not None and mean.low is not None and mean.high is not None:
        if mean.clear:
            verdict = "does not hold"
        elif mean.high - mean.low < 2 * NEAR:
            verdict = "holds"
    both = (
        "n/a" if each is None else f"{math.exp(each.mean):.3f}{_interval(each)}"
        for each in (member, mean)
    )
    return Claim(
        f"Ising, {arm}, {PLACES[place]}: finite ensembles deviate by s/√M",
        "points near the NTK line (figure, no numbers)",
        "measured over predicted: one member {}, ensemble {}".format(*both),
        verdict,
    )


def _interval(found: Difference) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" [{math.exp(found.low):.3f}, {math.exp(found.high):.3f}]"


def _left_at_any_width(runs: Runs) -> Claim:
    arms = [arm for arm in runs.arms(ISING) if arm != NTK]
    found = {
        f"{arm}, {place.upper()}": each
        for arm in arms
        for place, each in _left(runs, ISING, arm, list(PLACES)).items()
    }
    return Claim(
        "Ising: the mean of infinitely many members is invariant, on and off the data",
        "holds at infinite width",
        "part of a member's squared deviation: "
        + "; ".join(f"{name} {_said(each, 4)}" for name, each in found.items()),
        _nothing_left(found),
    )


def _full_is_needed(runs: Runs) -> Claim:
    spreads: dict[str, list[float]] = {}
    for arm in runs.arms(PARTIAL):
        for found in runs.findings(PARTIAL, arm).values():
            rows = [row for row in found.rows if "_relative_" in row.metric]
            spreads.setdefault(arm, []).extend(float(row.value or 0.0) for row in rows)
    full = max(spreads.pop("all four", [math.nan]))
    least = {arm: min(found) for arm, found in spreads.items()}
    text = ", ".join(f"{arm} {value:.2g}" for arm, value in least.items())
    holds = full < 1e-10 and all(value > 1e-3 for value in least.values())
    return Claim(
        "Exactness needs the full orbit, and then holds at every t, on and off the data",
        "theorem",
        f"relative orbit deviation at infinite width: all four at most {full:.1g}; at least: {text}",
        "holds" if holds else "does not hold",
    )


def _cross_equivariant(runs: Runs) -> Claim:
    arm = runs.arms(CROSS)[0]
    found = _left(runs, CROSS, arm, [f"{place}_solid" for place in PLACES])
    return Claim(
        f"Cross product: with {arm} rotations the mean is equivariant, members are not",
        "not in the talk",
        "deviation of a member, and part of its square that infinitely many would have: "
        + "; ".join(
            f"{name.split('_')[0].upper()} {_cell(runs, CROSS, arm, f'{name}_member', 2)} and"
            f" {_said(each, 4)}"
            for name, each in found.items()
        ),
        _nothing_left(found),
    )


def _finer(runs: Runs) -> Claim:
    arms = runs.arms(CROSS)
    metric = "id_continuous_closed_form"
    logs = [
        paired([math.log(fine[s] / coarse[s]) for s in fine if s in coarse])
        for fine, coarse in (
            (values(runs, CROSS, b, metric), values(runs, CROSS, a, metric))
            for a, b in zip(arms, arms[1:], strict=False)
        )
    ]
    clear = [each is not None and each.clear and each.mean < 0 for each in logs]
    text = " to ".join(_cell(runs, CROSS, arm, metric, 3) for arm in arms)
    return Claim(
        "Cross product: finer sets of rotations come nearer to the continuous group",
        "not in the talk (a lemma of the paper)",
        f"deviation at any rotation, infinite ensemble, {' to '.join(arms)}: {text}",
        "holds" if all(clear) else "undecided",
    )


def comparisons(preset: str, runs: Runs) -> list[Comparison]:
    """Return nothing: the talk prints no numbers of these parts."""
    return []
