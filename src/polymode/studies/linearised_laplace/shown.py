"""Tables and figures of the study, from results alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polymode.metrics.compare import compare
from polymode.metrics.leaderboard import SHIFT_MEAN
from polymode.metrics.paired import Difference, mean_and_error, paired
from polymode.metrics.table import decimals_for, number
from polymode.plots import Display
from polymode.plots.display import palette
from polymode.plots.lines import LineDisplay
from polymode.plots.severity_spread import severity_spread
from polymode.plots.sweep import sweep
from polymode.studies.linearised_laplace.experiments import PRECISIONS
from polymode.studies.linearised_laplace.published import TABLE
from polymode.studies.linearised_laplace.variants import KINDS, MEANS, VARIANTS
from polymode.studies.study import Runs, Table, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS = {"jacobian": "h = Jθ", "offset": "h = f + J(θ − θ̃)"}
PLACES = {"frozen": "statistics frozen", "inside": "statistics in the tangent"}
_PAIRED = "paired over seeds, 95 % t-interval; * leaves out zero"


def tables(runs: Runs) -> dict[str, Table]:
    """Return the tables of the parts that were run."""
    found = {
        "training": training(runs),
        "illustration": illustration(runs),
        "scale": scale(runs),
        "networks": networks(runs),
        "networks_differences": differences(runs),
        "networks_details": details(runs),
        "unet": unet(runs),
        "networks_paper": printed() if runs.arms("networks") or runs.arms("unet") else None,
        "shifts": scored(runs, "shifts", "Rotated and corrupted MNIST", shifted=True),
        "large": scored(runs, "large", "A large network with Kronecker factors", shifted=False),
    }
    return {name: table for name, table in found.items() if table is not None}


def figures(runs: Runs) -> dict[str, Display]:
    """Return the figures of the parts that were run."""
    found = {
        "error_bars": figure_error_bars(runs),
        "along_training": figure_training(runs),
        "severity": figure_severity(runs),
    }
    return {name: display for name, display in found.items() if display is not None}


def values(runs: Runs, part: str, arm: str, metric: str) -> dict[int, float]:
    """Return a number of an experiment by seed."""
    return runs.values(part, arm, f"examined:{part}", metric)


def gap(runs: Runs, part: str, arm: str, first: str, second: str) -> Difference | None:
    """Return the difference of two numbers of one arm, paired by seed."""
    ours, theirs = values(runs, part, arm, first), values(runs, part, arm, second)
    return paired([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def ratio(runs: Runs, part: str, arm: str, first: str, second: str) -> list[float]:
    """Return the ratios of two numbers of one arm, by seed."""
    ours, theirs = values(runs, part, arm, first), values(runs, part, arm, second)
    return [ours[seed] / theirs[seed] for seed in ours if seed in theirs]


def said(found: Difference | None, digits: int = 3) -> str:
    """Return a difference in words."""
    return "n/a" if found is None else with_interval(found, digits) + "*" * found.clear


def _column(runs: Runs, part: str, arms: Sequence[str], metric: str, most: int = 3) -> list[str]:
    found = []
    for arm in arms:
        numbers = list(values(runs, part, arm, metric).values())
        found.append(mean_and_error(numbers) if numbers else (None, None))
    digits = min(decimals_for(*zip(*found, strict=True)), most)
    return [number(mean, error, digits) for mean, error in found]


def _range(numbers: Sequence[float]) -> str:
    return f"{min(numbers):.2f} to {max(numbers):.2f}" if numbers else "n/a"


def _seeds(runs: Runs, part: str) -> str:
    counts = {len(runs.of(part, arm)) for arm in runs.arms(part)}
    return " to ".join(map(str, sorted(counts)))


def training(runs: Runs) -> Table | None:
    """Return what training does to λ and the error bars, at θ̃ and θ*."""
    arms = runs.arms("training")
    if not arms:
        return None
    rows = []
    for arm in arms:
        rows.append(
            (
                arm,
                _range(ratio(runs, "training", arm, "precision_linear", "precision_trained")),
                _range(
                    ratio(runs, "training", arm, "gap_sd_trained_single", "gap_sd_linear_single")
                ),
            )
        )
    metrics = {
        "W₂, single λ": "wasserstein_single",
        "gap NLL θ̃": "gap_nll_trained_single",
        "gap NLL θ*": "gap_nll_linear_single",
        "gap NLL θ*, own mean": "gap_own_nll_linear_single",
        "test NLL θ̃": "test_nll_trained_single",
        "test NLL θ*, own mean": "test_own_nll_linear_single",
    }
    columns = [_column(runs, "training", arms, metric) for metric in metrics.values()]
    lines = tuple((*row, *rest) for row, rest in zip(rows, zip(*columns, strict=True), strict=True))
    return Table(
        title="Error bars along training, 1-D",
        head=("trained for", "λ at θ* / λ at θ̃", "largest gap s.d., θ̃ / θ*", *metrics),
        lines=lines,
        note=f"single λ; ratios from least to largest over {_seeds(runs, 'training')} seeds, the"
        " rest mean ± s.e.; NLL in nats per standardised value, around the network's outputs"
        " unless `own mean`, h(θ*)",
    )


def illustration(runs: Runs) -> Table | None:
    """Return evidences and held-out NLL at the talk's λ, for the longest training."""
    if not runs.arms("training"):
        return None
    arm = runs.arms("training")[-1]
    metrics = {
        "log evidence at θ̃": "illustration_trained_{}",
        "log evidence at θ*": "illustration_linear_{}",
        "test NLL": "illustration_test_nll_{}",
        "gap NLL": "illustration_gap_nll_{}",
    }
    rows = []
    for value in PRECISIONS:
        cells = [
            _column(runs, "training", [arm], m.format(f"{value:g}"))[0] for m in metrics.values()
        ]
        rows.append((f"λ = {value:g}", *cells))
    return Table(
        title=f"The prior precision and what the evidence says of it, after {arm}",
        head=("single λ", *metrics),
        lines=tuple(rows),
        note=f"nats, mean ± s.e. over {_seeds(runs, 'training')} seeds; the evidence is of all"
        " training examples, NLL is per value",
    )


def scale(runs: Runs) -> Table | None:
    """Return how far error bars move when normalised weights are scaled."""
    arms = runs.arms("scale")
    if not arms:
        return None
    rows = []
    for form, formula in FORMS.items():
        for place, where in PLACES.items():
            for kind, prior in KINDS.items():
                metric = f"change_{form}_{place}_{kind}"
                cells = []
                for arm in arms:
                    found = list(values(runs, "scale", arm, metric).values())
                    cells.append(f"{max(found):.2g} %" if found else "n/a")
                rows.append((f"{formula}, {where}, {prior}", *cells))
    return Table(
        title="Normalised weights times k: largest change of a standard deviation",
        head=("linear model at θ*", *arms),
        lines=tuple(rows),
        note=f"the largest over a grid and over {_seeds(runs, 'scale')} seeds, compared with k = 1;"
        " eps of the norms is scaled by k², so that the function stays",
    )


def name_of(net: str) -> str:
    """Return a network's name as it is shown.

    >>> name_of("preactivation_resnet")
    'pre-activation ResNet'
    """
    names = {
        "cnn": "CNN", "resnet": "ResNet", "preactivation_resnet": "pre-activation ResNet",
        "fixup": "FixUp", "unet": "U-Net", "transformer": "transformer",
    }  # fmt: skip
    return names[net]


def networks(runs: Runs) -> Table | None:
    """Return Table 1: test NLL of the four variants and of the network alone."""
    arms = runs.arms("networks")
    if not arms:
        return None
    rows = []
    for prefix, suffix in (("nll", ""), ("own_nll", ", own mean")):
        for mean, kind in VARIANTS:
            if prefix == "own_nll" and mean == "trained":
                continue
            cells = [_column(runs, "networks", [arm], f"{prefix}_{mean}_{kind}")[0] for arm in arms]
            rows.append((f"{MEANS[mean]}, {KINDS[kind]}{suffix}", *cells))
    rows.append(("MAP", *(_column(runs, "networks", [arm], "nll_map")[0] for arm in arms)))
    return Table(
        title="Table 1: test NLL of five networks, whole curvature",
        head=("evidence at", *map(name_of, arms)),
        lines=tuple(rows),
        note=f"nats per image; mean ± s.e. over"
        f" {_seeds(runs, 'networks')} seeds; h = Jθ, statistics frozen, around the network's"
        " outputs unless `own mean`, h(θ*)",
    )


def differences(runs: Runs) -> Table | None:
    """Return what each recommendation changes, paired."""
    arms = runs.arms("networks")
    if not arms:
        return None
    pairs = {
        "θ* − θ̃, single λ": ("nll_linear_single", "nll_trained_single"),
        "θ* − θ̃, multiple λ": ("nll_linear_multiple", "nll_trained_multiple"),
        "multiple − single λ, θ*": ("nll_linear_multiple", "nll_linear_single"),
        "multiple − single λ, θ̃": ("nll_trained_multiple", "nll_trained_single"),
        "θ*, multiple λ − MAP": ("nll_linear_multiple", "nll_map"),
    }
    rows = [
        (title, *(said(gap(runs, "networks", arm, *pair)) for arm in arms))
        for title, pair in pairs.items()
    ]
    return Table(
        title="What each recommendation changes: test NLL",
        head=("difference", *map(name_of, arms)),
        lines=tuple(rows),
        note=_PAIRED,
    )


def unet(runs: Runs) -> Table | None:
    """Return the column of the U-Net, with what the evidence says of its noise."""
    arms = runs.arms("unet")
    if not arms:
        return None
    metrics = {
        "NLL": "nll_{}", "NLL, own mean": "own_nll_{}", "noise": "noise_{}", "λ": "precision_{}",
        "pruned groups": "pruned_{}", "log evidence": "log_evidence_{}",
    }  # fmt: skip
    rows = []
    for mean, kind in VARIANTS:
        name = f"{mean}_{kind}"
        cells = [_column(runs, "unet", arms, m.format(name))[0] for m in metrics.values()]
        rows.append((f"{MEANS[mean]}, {KINDS[kind]}", *cells))
    alone = [_column(runs, "unet", arms, name)[0] for name in ("nll_map", "training_error")]
    rows.append(("MAP", alone[0], "", alone[1], "", "", ""))
    gaps = ", ".join(
        f"{kind} {said(gap(runs, 'unet', arms[0], f'nll_linear_{key}', f'nll_trained_{key}'))}"
        for key, kind in KINDS.items()
    )
    test = _column(runs, "unet", arms, "error")[0]
    return Table(
        title="Table 1, U-Net: denoising, test NLL per pixel",
        head=("evidence at", *metrics),
        lines=tuple(rows),
        note=f"nats and noise per standardised pixel; mean ± s.e. over {_seeds(runs, 'unet')} seeds"
        f" of 44,417 weights in 32 groups; root mean square error on test images {test}; λ of"
        f" several groups: their geometric mean. θ* − θ̃: {gaps}; {_PAIRED}",
    )


def details(runs: Runs) -> Table | None:
    """Return what the networks are, and what was chosen."""
    arms = runs.arms("networks")
    if not arms:
        return None
    metrics = {
        "weights": "weights",
        "groups": "groups",
        "pruned": "pruned_linear_multiple",
        "‖Jθ̃ − f‖/‖f‖": "closeness",
        "λ θ̃": "precision_trained_single",
        "λ θ*": "precision_linear_single",
        "accuracy": "accuracy",
    }
    columns = [_column(runs, "networks", arms, metric) for metric in metrics.values()]
    return Table(
        title="The networks, and their λ",
        head=("network", *metrics),
        lines=tuple(zip(map(name_of, arms), *columns, strict=True)),
        note="groups: normalised groups and the rest; pruned: of these, at θ* with multiple λ; λ:"
        " single; mean ± s.e. over seeds",
    )


def printed() -> Table:
    """Return the talk's table."""
    rows = []
    for mean, kind in VARIANTS:
        cells = []
        for row in TABLE.values():
            pair = getattr(row, f"{mean}_{kind}")
            cells.append("–" if pair is None else f"{pair[0]:.3f} ± {pair[1]:.3f}")
        rows.append((f"{MEANS[mean]}, {KINDS[kind]}", *cells))
    return Table(
        title="Talk: test NLL of six networks",
        head=("evidence at", *map(name_of, TABLE)),
        lines=tuple(rows),
        note="as printed. A second table of the talk, ResNet-50 on CIFAR-10, is left out: it calls"
        " its entries negative log-likelihoods, but all are below 0, which those of ten classes"
        " cannot be; read the other way, they contradict its text",
    )


def scored(runs: Runs, part: str, title: str, *, shifted: bool) -> Table | None:
    """Return clean scores of the methods of a part, and those under shifts."""
    arms = runs.arms(part)
    if not arms:
        return None
    columns = {
        "NLL": ("test", "nll"), "ECE": ("test", "ece"), "accuracy": ("test", "accuracy"),
    }  # fmt: skip
    if shifted:
        columns |= {"shifted NLL": (SHIFT_MEAN, "nll"), "shifted ECE": (SHIFT_MEAN, "ece")}
    cells = []
    for dataset, metric in columns.values():
        found = []
        for arm in arms:
            numbers = list(runs.values(part, arm, dataset, metric).values())
            found.append(mean_and_error(numbers) if numbers else (None, None))
        digits = min(decimals_for(*zip(*found, strict=True)), 4)
        cells.append([number(mean, error, digits) for mean, error in found])
    note = f"mean ± s.e. over {_seeds(runs, part)} seeds"
    if shifted:
        note += "; shifted: mean over rotation and two corruptions, five severities each"
    return Table(
        title=title,
        head=("method", *columns),
        lines=tuple(zip(arms, *cells, strict=True)),
        note=note,
    )


class ErrorBars(LineDisplay):
    """Mean and ± 2 standard deviations of a function, one band per variant."""

    size = (4.2, 3.2)

    def _lines(self, ax: Axes) -> None:
        grid, mean = self.data["grid"], self.data["mean"]
        for label, style in self.styles.items():
            spread = 2 * self.data[f"sd {label}"]
            ax.fill_between(grid, mean - spread, mean + spread, color=style.color, alpha=0.15)
            ax.plot(grid, mean + spread, color=style.color, label=label, linewidth=1)
            ax.plot(grid, mean - spread, color=style.color, linewidth=1)
        ax.plot(grid, mean, color="0.3", linewidth=1)
        ax.set(title=self.title, xlabel="x, standardised", ylabel="y, standardised")
        ax.set_ylim(-6, 6)


def figure_error_bars(runs: Runs) -> Display | None:
    """Return the error bars of the four variants after the longest training, first seed."""
    arms = runs.arms("training")
    found = runs.findings("training", arms[-1]) if arms else {}
    seed = min(found, default=None)
    if seed is None or "grid" not in found[seed].arrays:
        return None
    arrays = found[seed].arrays
    labels = {f"{MEANS[m]}, {KINDS[k]}": f"sd_{m}_{k}" for m, k in VARIANTS}
    data = {"grid": np.asarray(arrays["grid"]), "mean": np.asarray(arrays["mean"])}
    data |= {f"sd {label}": np.asarray(arrays[key]) for label, key in labels.items()}
    widest = {label: float(data[f"sd {label}"].max()) for label in labels}
    text = ", ".join(f"{label} {value:.3g}" for label, value in widest.items())
    return ErrorBars(
        data,
        label=f"Error bars after {arms[-1]}",
        caption=f"Mean ± 2 s.d. of the linear model with the prior of the largest evidence, h = Jθ,"
        f" statistics in the tangent, seed {seed}. Largest s.d.: {text}.",
        alt=f"Error bars of four variants on the 1-D toy; largest standard deviations {text}.",
        styles=palette(labels),
    )


def figure_training(runs: Runs) -> Display | None:
    """Return the distance between predictives of both evidences along training."""
    arms = runs.arms("training")
    if len(arms) < 2:
        return None
    steps = [int(arm.split()[0].replace(",", "")) for arm in arms]
    seeds = sorted({each.seed for arm in arms for each in runs.of("training", arm)})

    def table(metric: str) -> np.ndarray:
        found = [values(runs, "training", arm, metric) for arm in arms]
        return np.array([[each.get(seed, np.nan) for seed in seeds] for each in found])

    return sweep(
        steps,
        {
            "largest gap s.d.": {
                MEANS[mean]: table(f"gap_sd_{mean}_single") for mean in ("trained", "linear")
            },
            "W₂ between predictives": table("wasserstein_single"),
        },
        name="steps of training",
    )


def figure_severity(runs: Runs) -> Display | None:
    """Return accuracy and NLL against the severity of shifts."""
    results = runs.all("shifts")
    return severity_spread(compare(results), metrics=["accuracy", "nll"]) if results else None
