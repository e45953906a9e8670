"""The theory's part of the study: what is run, its tables, figures and claims.

See `theory_experiments` for the set-up. `smoke` takes seconds; `cpu` is what `results/` holds;
`paper` has the widths and steps of the talk and ensembles of 1,000.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.metrics.paired import Difference, mean_and_error, not_rejected, paired
from polymode.metrics.text_table import decimals_for, number
from polymode.plots import Display
from polymode.plots.axes import legend_below, panel_title
from polymode.plots.display import INK, PALE, palette
from polymode.plots.size_curve import size_curve
from polymode.runs.part import Experiment, Part
from polymode.studies.equivariance import theory_experiments as experiments
from polymode.studies.study import Claim, Runs, Table, paired_log_ratio
from polymode.studies.table_cells import (
    interval_text,
    judge_interval,
    judge_sign,
    present,
    ratio_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

TOY, ISING, PARTIAL, CROSS = "toy", "ising", "partial", "cross_product"
NTK = "NTK"
PLACES = {"id": "in distribution", "ood": "out of distribution"}
EQUIVARIANT = 0.1  # largest part of a member's squared deviation that its limit may have left
GROUPED = (2, 5)  # sizes of sub-ensembles that occur several times
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


def _parts(
    widths: dict[int, int], solids: Sequence[str], seeds: tuple[int, int], **options: dict[str, Any]
) -> dict[str, Part | Experiment]:
    """Return the parts, with options of each experiment by its name.

    Args:
        widths: number of members of the Ising networks by width.
        solids: whose rotations the cross product is trained on.
        seeds: how many for the Ising networks, and how many for the others.
    """
    few, many = (tuple(range(number)) for number in seeds)
    ising, cross = options[ISING], options[CROSS]
    arms = {
        width_name(width): {
            **ising, "width": width, "num_modes": modes,
            "sizes": [size for size in ising["sizes"] if size <= modes],
        }
        for width, modes in widths.items()
    }  # fmt: skip
    return {
        TOY: Experiment(function=experiments.toy, arms={"toy": options[TOY]}, seeds=many),
        ISING: Experiment(
            function=experiments.ising, arms={**arms, NTK: {**ising, "width": 0}}, seeds=few
        ),
        PARTIAL: Experiment(
            function=experiments.partial,
            arms={name: {**options[PARTIAL], "rotations": name} for name in experiments.SETS},
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


def _smoke() -> dict[str, Part | Experiment]:
    return _parts(
        widths={32: 6, 64: 4},
        solids=("tetrahedral", "octahedral"),
        seeds=(2, 2),
        toy={"width": 32, "num_modes": 4, "steps": [0, 1, 2, 3, 6]},
        ising={"num_train": 4, "num_test": 5, "steps": 4, "sizes": [1, 2, 4]},
        partial={"num_train": 6, "num_test": 5, "times": [1, 100]},
        cross_product={"width": 32, "num_modes": 4, "num_train": 4, "num_test": 3, "steps": 3},
    )


def _cpu() -> dict[str, Part | Experiment]:
    return _parts(
        widths={512: 120, 1024: 40, 2048: 20},
        solids=("tetrahedral", "octahedral", "icosahedral"),
        seeds=(3, 5),
        toy={"num_modes": 100, "steps": list(experiments.STEPS)},
        ising={"steps": 25, "sizes": [1, 2, 5, 10, 20, 40, 120]},
        partial={},
        cross_product={},
    )


def _paper() -> dict[str, Part | Experiment]:
    return _parts(
        widths={512: 1000, 1024: 1000, 2048: 1000},
        solids=("tetrahedral", "octahedral", "icosahedral"),
        seeds=(5, 5),
        toy={"num_modes": 1000, "steps": list(experiments.STEPS)},
        ising={
            "num_train": 128,
            "num_test": 200,
            "sizes": [1, 2, 5, 10, 20, 50, 100, 250, 500, 1000],
        },
        partial={"num_train": 128},
        cross_product={"num_modes": 1000, "num_train": 64, "num_test": 100},
    )


# tables


def _cell(runs: Runs, part: str, arm: str, metric: str, most: int = 4) -> str:
    """Return a number as a table shows it, mean ± standard error over seeds."""
    values = list(runs.measured(part, arm, metric).values())
    if not values:
        return "–"
    mean, error = mean_and_error(values)
    if abs(mean) < 1e-9:
        return f"{mean:.0e}".replace("-", "−")
    return number(mean, error, min(decimals_for([mean], [error]), most))


def _steps_of(runs: Runs) -> list[int]:
    """Return the steps of the toy."""
    findings = runs.first_findings(TOY, "toy")
    names = [row.metric for row in findings.rows] if findings else []
    return [int(name.split("_")[1]) for name in names if name.endswith("_left_over")]


def _num_seeds(runs: Runs, part: str) -> int:
    """Return how many seeds a part was run with."""
    return max((len(runs.of(part, arm)) for arm in runs.arms(part)), default=0)


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
    by_name = {
        "toy": _toy_table(runs),
        "ising": _ising_table(runs),
        "ising_members": _members_table(runs),
        "partial": _partial_table(runs),
        "cross_product": _cross_table(runs),
    }
    return present(by_name)


def _toy_table(runs: Runs) -> Table | None:
    steps = _steps_of(runs)
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
        note=_NOTE.format(_num_seeds(runs, TOY)) + "; the grid reaches beyond the data",
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
        note=_NOTE.format(_num_seeds(runs, ISING)),
    )


def _sizes(runs: Runs) -> list[int]:
    arms = [arm for arm in runs.arms(ISING) if arm != NTK]
    findings = [runs.first_findings(ISING, arm) for arm in arms]
    rows = [row for f in findings if f is not None for row in f.rows]
    names = {row.metric for row in rows if "id_relative_" in row.metric}
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
        " the mean over C4; mean over sub-ensembles, then mean ± s.e. over"
        f" {_num_seeds(runs, ISING)} seeds; NTK: expected at infinite width",
    )


def _partial_table(runs: Runs) -> Table | None:
    arms = runs.arms(PARTIAL)
    findings = runs.first_findings(PARTIAL, arms[0]) if arms else None
    if findings is None:
        return None
    metrics = [row.metric for row in findings.rows if row.metric.startswith("id_relative")]
    times = [int(metric.split("_")[-1]) for metric in metrics]
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
        note=f"closed form, Ising lattices; mean ± s.e. over {_num_seeds(runs, PARTIAL)} seeds",
    )


def _cross_table(runs: Runs) -> Table | None:
    arms = runs.arms(CROSS)
    if not arms:
        return None
    wheres = {"solid": "its rotations", "continuous": "any rotation"}
    rows = [
        (
            f"{arm}, {rotations}, {title}",
            *(_cell(runs, CROSS, arm, f"{place}_{where}_{key}") for key in _COLUMNS.values()),
            _cell(runs, CROSS, arm, f"{place}_mean_rms"),
        )
        for arm in arms
        for where, rotations in wheres.items()
        for place, title in PLACES.items()
    ]
    return Table(
        title="Cross product: how far from equivariant under SO(3)",
        head=("augmented with", *_COLUMNS, "size of outputs"),
        lines=tuple(rows),
        note=_NOTE.format(_num_seeds(runs, CROSS)) + "; –: closed form only",
    )


# figures

CURVES = ("truth", "one member", "ensemble mean", "closed form")


class ToyCurves(Display):
    """A panel for each number of steps."""

    size = (7.2, 2.4)

    def plot(self, ax: Axes, step: int | None = None) -> Axes:
        """Draw one panel, by default the last."""
        self._panel(ax, int(self.data["step"][-1]) if step is None else step)
        ax.legend()
        return ax

    def draw(self, figure: FigureBase) -> None:
        steps = self.data["step"]
        axes = np.atleast_1d(figure.subplots(1, len(steps), sharex=True, sharey=True))
        for ax, step in zip(axes, steps, strict=True):
            self._panel(ax, int(step))
        legend_below(figure, axes[0], self.size[0])

    def _panel(self, ax: Axes, step: int) -> None:
        data, x = self.data, self.data["x"]
        ax.axvline(0, color=PALE, linewidth=0.8, zorder=0)
        ax.plot(x, data["truth"], color=INK, linewidth=1, label="truth")
        looks: dict[str, Any] = {
            "one member": {"linestyle": "--", "linewidth": 1},
            "ensemble mean": {"linewidth": 1.6},
            "closed form": {"linestyle": ":", "linewidth": 1.6},
        }
        for label, look in looks.items():
            color = self.styles[label].color
            ax.plot(x, data[f"{label} {step}"], color=color, label=label, **look)
        panel_title(ax, f"{step:,} step{'' if step == 1 else 's'}")
        ax.set_xlabel("x")


def _toy_curves(arrays: Mapping[str, Any], steps: Sequence[int], seed: int) -> ToyCurves:
    """Return the figure from the arrays of the experiment."""
    keys = dict(zip(CURVES[1:], ("member", "mean", "closed"), strict=True))
    data = {"x": np.asarray(arrays["x"]), "truth": np.asarray(arrays["truth"])}
    data["step"] = np.array(steps)
    for step in steps:
        data |= {
            f"{label} {step}": np.asarray(arrays[f"{key}_{step}"]) for label, key in keys.items()
        }
    half = len(data["x"]) // 2

    def lopsided(label: str, step: int) -> float:
        curve = data[f"{label} {step}"]
        return float(np.sqrt(np.mean((curve[:half] - curve[::-1][:half]) ** 2)))

    asymmetries = "; ".join(
        f"{step:,} steps: member {lopsided('one member', step):.2g}, mean"
        f" {lopsided('ensemble mean', step):.2g}, closed form {lopsided('closed form', step):.1g}"
        for step in steps
    )
    return ToyCurves(
        data,
        label="Toy curves",
        caption="An even function learnt from points and their mirror images, seed"
        f" {seed}. Root mean square of f(x) − f(−x): {asymmetries}.",
        alt=f"Curves of a member, the ensemble's mean and the closed form by steps; {asymmetries}.",
        styles=palette(CURVES),
    )


def figures(runs: Runs) -> dict[str, Display]:
    """Return the figures of the parts that were run."""
    displays = {"toy": _toy_figure(runs)}
    for place, title in PLACES.items():
        lines: dict[str, Any] = {}
        for arm in runs.arms(ISING):
            points = [
                (size, *_mean(runs, ISING, arm, f"{place}_relative_{size}"))
                for size in _sizes(runs)
                if runs.measured(ISING, arm, f"{place}_relative_{size}")
            ]
            if points:
                lines[arm] = tuple(zip(*points, strict=True))
        if lines:
            name = f"relative orbit deviation, {title}"
            displays[f"ising_{place}"] = size_curve(lines, metric=name)
    return present(displays)


def _mean(runs: Runs, part: str, arm: str, metric: str) -> tuple[float, float]:
    mean, error = mean_and_error(list(runs.measured(part, arm, metric).values()))
    return mean, error or 0.0


def _toy_figure(runs: Runs) -> Display | None:
    by_seed = runs.findings(TOY, "toy")
    seed = min(by_seed, default=None)
    if seed is None or "x" not in by_seed[seed].arrays:
        return None
    return _toy_curves(by_seed[seed].arrays, _steps_of(runs), seed)


# claims


def claims(runs: Runs) -> list[Claim]:
    """Return the claims whose parts were run."""
    claimed = []
    if runs.arms(TOY):
        claimed += [_at_all_steps(runs), _closed_curves(runs)]
    widths = [arm for arm in runs.arms(ISING) if arm != NTK]
    claimed += [_as_predicted(runs, arm, place) for arm in widths for place in PLACES]
    if len(widths) > 1:
        claimed.append(_left_at_any_width(runs, widths))
    if runs.arms(PARTIAL):
        claimed.append(_full_is_needed(runs))
    if runs.arms(CROSS):
        claimed.append(_cross_equivariant(runs))
    if len(runs.arms(CROSS)) > 1:
        claimed.append(_finer(runs))
    return claimed


def _unsigned(mean: Difference, digits: int = 3) -> str:
    return interval_text(mean, digits, sign="")


def _log_ratio(runs: Runs, part: str, arm: str, over: str, under: str) -> Difference | None:
    return paired_log_ratio(runs.measured(part, arm, over), runs.measured(part, arm, under))


def _after(steps: int) -> str:
    return f"{steps:,} step" + ("" if steps == 1 else "s")


def _judge_nothing_left(parts: dict[str, Difference]) -> str:
    """Return whether the mean is equivariant in all these places: no interval, corrected for their
    number, lies above 0, and none reaches beyond `EQUIVARIANT`."""
    highs = [part.high for part in parts.values() if part.high is not None]
    if len(highs) < len(parts) or not parts:
        return "undecided" if parts else "not run"
    p_values = {n: part.p_value for n, part in parts.items() if part.p_value is not None}
    standing = not_rejected(p_values)
    if any(name not in standing and parts[name].mean > 0 for name in p_values):
        return "does not hold"
    return "holds" if max(highs) < EQUIVARIANT else "undecided"


def _left_over(runs: Runs, part: str, arm: str, names: Sequence[str]) -> dict[str, Difference]:
    """Return the part of a member's squared deviation that infinitely many members would have."""
    return present(
        {n: paired(list(runs.measured(part, arm, f"{n}_left_over").values())) for n in names}
    )


def _at_all_steps(runs: Runs) -> Claim:
    steps = _steps_of(runs)
    left_over = _left_over(runs, TOY, "toy", [f"step_{step}" for step in steps])
    texts = [
        f"{_after(step)}: {_cell(runs, TOY, 'toy', f'step_{step}_member', 2)} and"
        f" {_unsigned(left_over[f'step_{step}'])}"
        for step in steps
    ]
    return Claim(
        "Toy: the ensemble's mean is equivariant at all steps, members are not",
        "curves at 0, 1, 2, 3 and 2000 steps: members lopsided, mean symmetric",
        "deviation of a member, and part of its square that infinitely many members would have: "
        + "; ".join(texts),
        _judge_nothing_left(left_over),
    )


def _closed_curves(runs: Runs) -> Claim:
    steps = _steps_of(runs)
    largest = max(
        v for s in steps for v in runs.measured(TOY, "toy", f"step_{s}_closed_form").values()
    )
    ratios = {
        s: _log_ratio(runs, TOY, "toy", f"step_{s}_from_closed_form",
                      f"step_{s}_from_closed_form_expected") for s in steps
    }  # fmt: skip
    text = "; ".join(f"{_after(s)}: {math.exp(d.mean):.2f}" for s, d in ratios.items() if d)
    return Claim(
        "Toy: the infinite ensemble is exactly even at all steps",
        "theorem",
        f"largest deviation of the closed form {largest:.1g}; distance of the ensemble's mean from"
        f" it, over that expected of so few members: {text}",
        "holds" if largest < 1e-10 else "does not hold",
    )


def _as_predicted(runs: Runs, arm: str, place: str) -> Claim:
    sizes = [size for size in GROUPED if runs.measured(ISING, arm, f"{place}_deviation_{size}")]
    size = max(sizes, default=1)
    member, mean = (
        _log_ratio(runs, ISING, arm, f"{place}_deviation_{n}", f"{place}_predicted_{n}")
        for n in (1, size)
    )
    verdict = judge_interval(
        mean,
        lambda low, high: low * high <= 0 and high - low < 2 * NEAR,
        lambda low, high: low * high > 0,
    )
    return Claim(
        f"Ising, {arm}, {PLACES[place]}: finite ensembles deviate by s/√M",
        "points near the NTK line (figure, no numbers)",
        f"measured over predicted: one member {ratio_text(member, 3)}, means of {size}"
        f" {ratio_text(mean, 3)}",
        "undecided" if mean is None else verdict,
    )


def _left_at_any_width(runs: Runs, arms: Sequence[str]) -> Claim:
    left_over = {
        f"{arm}, {place.upper()}": part
        for arm in arms
        for place, part in _left_over(runs, ISING, arm, list(PLACES)).items()
    }
    return Claim(
        "Ising: the mean of infinitely many members is invariant, on and off the data",
        "holds at infinite width",
        "part of a member's squared deviation: "
        + "; ".join(f"{name} {_unsigned(part, 4)}" for name, part in left_over.items()),
        _judge_nothing_left(left_over),
    )


def _full_is_needed(runs: Runs) -> Claim:
    spreads: dict[str, list[float]] = {}
    for arm in runs.arms(PARTIAL):
        for findings in runs.findings(PARTIAL, arm).values():
            rows = [row for row in findings.rows if "_relative_" in row.metric]
            spreads.setdefault(arm, []).extend(float(row.value or 0.0) for row in rows)
    full = max(spreads.pop("all four", [math.nan]))
    least = {arm: min(values) for arm, values in spreads.items()}
    text = ", ".join(f"{arm} {value:.2g}" for arm, value in least.items())
    holds = full < 1e-10 and all(value > 1e-3 for value in least.values())
    return Claim(
        "Exactness needs the full orbit, and then holds at every t, on and off the data",
        "theorem",
        f"relative orbit deviation at infinite width: all four at most {full:.1g};"
        f" at least: {text}",
        "holds" if holds else "does not hold",
    )


def _cross_equivariant(runs: Runs) -> Claim:
    arm = runs.arms(CROSS)[0]
    left_over = _left_over(runs, CROSS, arm, [f"{place}_solid" for place in PLACES])
    return Claim(
        f"Cross product: with {arm} rotations the mean is equivariant, members are not",
        "not in the talk",
        "deviation of a member, and part of its square that infinitely many would have: "
        + "; ".join(
            f"{name.split('_')[0].upper()} {_cell(runs, CROSS, arm, f'{name}_member', 2)} and"
            f" {_unsigned(part, 4)}"
            for name, part in left_over.items()
        ),
        _judge_nothing_left(left_over),
    )


def _finer(runs: Runs) -> Claim:
    arms = runs.arms(CROSS)
    metric = "id_continuous_closed_form"
    deviations = [runs.measured(CROSS, arm, metric) for arm in arms]
    ratios = [paired_log_ratio(b, a) for a, b in zip(deviations, deviations[1:], strict=False)]
    clear = [judge_sign(ratio, sign=-1) == "holds" for ratio in ratios]
    text = " to ".join(_cell(runs, CROSS, arm, metric, 3) for arm in arms)
    return Claim(
        "Cross product: finer sets of rotations come nearer to the continuous group",
        "not in the talk (a lemma of the paper)",
        f"deviation at any rotation, infinite ensemble, {' to '.join(arms)}: {text}",
        "holds" if all(clear) else "undecided",
    )
