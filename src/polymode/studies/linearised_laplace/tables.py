"""Tables and figures of the study, from its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polymode.metrics.compare import compare
from polymode.metrics.leaderboard import SHIFT_MEAN
from polymode.metrics.paired import Difference
from polymode.metrics.results import EXAMINED
from polymode.plots import Display
from polymode.plots.display import palette
from polymode.plots.lines import LineDisplay
from polymode.plots.severity import severity_spread
from polymode.plots.sweep import sweep
from polymode.studies.linearised_laplace import occam
from polymode.studies.linearised_laplace.experiments import PRECISIONS
from polymode.studies.linearised_laplace.published import TABLE
from polymode.studies.linearised_laplace.variants import KINDS, MEANS, VARIANTS
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS = {"jacobian": "h = Jθ", "offset": "h = f + J(θ − θ̃)"}
PLACES = {"frozen": "statistics frozen", "inside": "statistics in the tangent"}
_PAIRED = f"{PAIRED}; * leaves out zero"


def tables(runs: Runs) -> dict[str, Table]:
    """Return the tables of the parts that were run."""
    by_name = {
        "training": training(runs),
        "illustration": illustration(runs),
        "scale": scale(runs),
        "occam": occam.table(runs),
        "networks": networks(runs),
        "networks_differences": differences(runs),
        "networks_details": details(runs),
        "unet": unet(runs),
        "networks_paper": printed() if runs.arms("networks") or runs.arms("unet") else None,
        "shifts": scored(runs, "shifts", "Rotated and corrupted MNIST", shifted=True),
        "large": scored(runs, "large", "A large network with Kronecker factors", shifted=False),
    }
    return present(by_name)


def figures(runs: Runs) -> dict[str, Display]:
    """Return the figures of the parts that were run."""
    return present(
        {
            "error_bars": figure_error_bars(runs),
            "along_training": figure_training(runs),
            "severity": figure_severity(runs),
        }
    )


def difference(runs: Runs, part: str, arm: str, first: str, second: str) -> Difference | None:
    """Return the difference of two numbers of one arm, paired by seed."""
    return paired_difference(runs.measured(part, arm, first), runs.measured(part, arm, second))


def ratios(runs: Runs, part: str, arm: str, first: str, second: str) -> list[float]:
    """Return the ratios of two numbers of one arm, by seed."""
    over, under = runs.measured(part, arm, first), runs.measured(part, arm, second)
    return [over[seed] / under[seed] for seed in over if seed in under]


def starred(gap: Difference | None) -> str:
    """Return a difference with its interval, and a star if the interval leaves out zero."""
    return marked_interval(gap, "*")


def _cell(runs: Runs, part: str, arm: str, metric: str) -> str:
    return _column(runs, part, [arm], metric)[0]


def _column(runs: Runs, part: str, arms: Sequence[str], metric: str) -> list[str]:
    return column_cells(runs, part, arms, Column(EXAMINED + part, metric), 3)


def _range(numbers: Sequence[float]) -> str:
    return f"{min(numbers):.2f} to {max(numbers):.2f}" if numbers else "n/a"


def training(runs: Runs) -> Table | None:
    """Return what training does to λ and the error bars, at θ̃ and θ*."""
    arms = runs.arms("training")
    if not arms:
        return None
    ranges = [
        [_range(ratios(runs, "training", arm, *pair)) for arm in arms]
        for pair in (
            ("precision_linear", "precision_trained"),
            ("gap_sd_trained_single", "gap_sd_linear_single"),
        )
    ]
    metrics = {
        "W₂, single λ": "wasserstein_single",
        "gap NLL θ̃": "gap_nll_trained_single",
        "gap NLL θ*": "gap_nll_linear_single",
        "gap NLL θ*, own mean": "gap_own_nll_linear_single",
        "test NLL θ̃": "test_nll_trained_single",
        "test NLL θ*, own mean": "test_own_nll_linear_single",
    }
    columns = [_column(runs, "training", arms, metric) for metric in metrics.values()]
    return Table(
        title="Error bars along training, 1-D",
        head=("trained for", "λ at θ* / λ at θ̃", "largest gap s.d., θ̃ / θ*", *metrics),
        lines=tuple(zip(arms, *ranges, *columns, strict=True)),
        note=f"single λ; ratios from least to largest over {count_seeds(runs, 'training')} seeds,"
        " the rest mean ± s.e.; NLL in nats per standardised value, around the network's outputs"
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
        cells = [_cell(runs, "training", arm, m.format(f"{value:g}")) for m in metrics.values()]
        rows.append((f"λ = {value:g}", *cells))
    return Table(
        title=f"The prior precision and what the evidence says of it, after {arm}",
        head=("single λ", *metrics),
        lines=tuple(rows),
        note=f"nats, mean ± s.e. over {count_seeds(runs, 'training')} seeds; the evidence is of all"
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
                    changes = runs.measured("scale", arm, metric).values()
                    cells.append(f"{max(changes):.2g} %" if changes else "n/a")
                rows.append((f"{formula}, {where}, {prior}", *cells))
    return Table(
        title="Normalised weights times k: largest change of a standard deviation",
        head=("linear model at θ*", *arms),
        lines=tuple(rows),
        note=f"the largest over a grid and over {count_seeds(runs, 'scale')} seeds, compared with"
        " k = 1; eps of the norms is scaled by k², so that the function stays",
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
            cells = [_cell(runs, "networks", arm, f"{prefix}_{mean}_{kind}") for arm in arms]
            rows.append((f"{MEANS[mean]}, {KINDS[kind]}{suffix}", *cells))
    rows.append(("MAP", *(_cell(runs, "networks", arm, "nll_map") for arm in arms)))
    return Table(
        title="Table 1: test NLL of five networks, whole curvature",
        head=("evidence at", *map(name_of, arms)),
        lines=tuple(rows),
        note=f"nats per image; mean ± s.e. over"
        f" {count_seeds(runs, 'networks')} seeds; h = Jθ, statistics frozen, around the network's"
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
        (title, *(starred(difference(runs, "networks", arm, *pair)) for arm in arms))
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
    if not runs.arms("unet"):
        return None
    arm = runs.arms("unet")[0]
    metrics = {
        "NLL": "nll_{}", "NLL, own mean": "own_nll_{}", "noise": "noise_{}", "λ": "precision_{}",
        "pruned groups": "pruned_{}", "log evidence": "log_evidence_{}",
    }  # fmt: skip
    rows = []
    for mean, kind in VARIANTS:
        name = f"{mean}_{kind}"
        cells = [_cell(runs, "unet", arm, m.format(name)) for m in metrics.values()]
        rows.append((f"{MEANS[mean]}, {KINDS[kind]}", *cells))
    nll, noise = (_cell(runs, "unet", arm, name) for name in ("nll_map", "training_error"))
    rows.append(("MAP", nll, "", noise, "", "", ""))
    gaps = {
        title: difference(runs, "unet", arm, f"nll_linear_{kind}", f"nll_trained_{kind}")
        for kind, title in KINDS.items()
    }
    differences = ", ".join(f"{title} {starred(gap)}" for title, gap in gaps.items())
    test = _cell(runs, "unet", arm, "error")
    return Table(
        title="Table 1, U-Net: denoising, test NLL per pixel",
        head=("evidence at", *metrics),
        lines=tuple(rows),
        note=f"nats and noise per standardised pixel; mean ± s.e. over {count_seeds(runs, 'unet')}"
        f" seeds of 44,417 weights in 32 groups; root mean square error on test images {test}; λ of"
        f" several groups: their geometric mean. θ* − θ̃: {differences}; {_PAIRED}",
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
    cells = [column_cells(runs, part, arms, Column(*pair)) for pair in columns.values()]
    note = f"mean ± s.e. over {count_seeds(runs, part)} seeds"
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
    findings = runs.findings("training", arms[-1]) if arms else {}
    seed = min(findings, default=None)
    if seed is None or "grid" not in findings[seed].arrays:
        return None
    arrays = findings[seed].arrays
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
    seeds = seeds_of(runs, "training", arms)

    def by_steps(metric: str) -> np.ndarray:
        return by_seed([runs.measured("training", arm, metric) for arm in arms], seeds)

    return sweep(
        steps,
        {
            "largest gap s.d.": {
                MEANS[mean]: by_steps(f"gap_sd_{mean}_single") for mean in ("trained", "linear")
            },
            "W₂ between predictives": by_steps("wasserstein_single"),
        },
        name="steps of training",
    )


def figure_severity(runs: Runs) -> Display | None:
    """Return accuracy and NLL against the severity of shifts."""
    results = runs.all("shifts")
    return severity_spread(compare(results), metrics=["accuracy", "nll"]) if results else None
