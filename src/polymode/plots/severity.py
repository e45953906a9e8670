"""How scores change as a shift grows, of one kind or of all; severity 0 is the test set."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.metrics.leaderboard import Column, Leaderboard
from polymode.plots.axes import axis_title, error_line, over_seeds, panel_title
from polymode.plots.display import INK, Style, palette
from polymode.plots.lines import PanelDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


WIDTH = 0.45  # share of a step of severity in which methods stand side by side


class Severity(PanelDisplay):
    """One line per method, mean ± s.e. over seeds; one panel per metric."""

    size = (4.0, 5.2)

    def plot(self, ax: Axes, metric: str = "") -> Axes:
        """Draw one metric, by default the first."""
        super().plot(ax, metric).set_xlabel(f"severity of {self.label} (0: test set)")
        return ax

    def draw(self, figure: FigureBase) -> None:
        super().draw(figure)
        figure.suptitle(self.title, fontsize=9, color=INK)

    def _axis(self, ax: Axes) -> None:
        ax.set_xlabel("severity (0: test set)")

    def _lines(self, ax: Axes, metric: str) -> None:
        for label, style in self.styles.items():
            if f"{label} {metric}" not in self.data:
                continue
            mean, error = self.data[f"{label} {metric}"], self.data[f"{label} {metric} s.e."]
            error_line(ax, self.data["severity"], mean, error, style, label)
        panel_title(ax, axis_title(metric, str(self.data[f"unit {metric}"][0])))
        ax.set_xticks(self.data["severity"])


def severity(
    board: Leaderboard,
    shift: str,
    *,
    metrics: list[str] | None = None,
    styles: dict[str, Style] | None = None,
) -> Severity:
    """Return scores against the severity of one shift, all methods of a leaderboard.

    Traps: one kind of shift says nothing about another; for all of them, with the worst, see
    `severity_spread`.

    Args:
        shift: its name in the task. metrics: by default accuracy (or RMSE), NLL and ECE.
        styles: one per label, see `palette`.
    """
    check_call(severity, locals())
    levels = levels_of(board, shift)
    if not levels:
        raise ValueError(
            f"the leaderboard has no shift '{shift}'; it has {shifts(board) or 'none'}"
        )
    datasets = ["test", *(f"shift:{shift}:{level}" for level in levels)]
    metrics = metrics or default_metrics(board)
    _, data = _axes_of(board, metrics, levels)
    for label in board.labels:
        for metric in metrics:
            cells = [board[label, dataset, metric] for dataset in datasets]
            if any(cell.mean is None for cell in cells):
                continue
            data[f"{label} {metric}"] = np.array([cell.mean for cell in cells])
            errors = [np.nan if c.standard_error is None else c.standard_error for c in cells]
            data[f"{label} {metric} s.e."] = np.array(errors)
    keys = [f"{label} {metric}" for label in board.labels for metric in metrics]
    ends = "; ".join(
        f"{key} from {data[key][0]:.3f} to {data[key][-1]:.3f}" for key in keys if key in data
    )
    spread = over_seeds(len(board.seeds))
    title = shift.replace("_", " ")
    return Severity(
        data,
        label=title,
        styles=styles or palette(board.labels),
        caption=f"Scores as a shift grows; severity 0 is the test set; {spread}.",
        alt=f"Scores against severity of {title}: {ends}.",
    )


def _axes_of(
    board: Leaderboard, metrics: list[str], levels: list[int]
) -> tuple[dict[str, Column], dict[str, np.ndarray]]:
    """Return the test columns by metric, and the data of the axes of a figure of these metrics."""
    columns = {c.metric: c for c in board.columns if c.dataset == "test"}
    if unknown := [metric for metric in metrics if metric not in columns]:
        near = suggest(unknown[0], columns)
        raise ValueError(f"the leaderboard has no metric '{unknown[0]}' of the test set.{near}")
    data = {"severity": np.array([0, *levels]), "metric": np.array(metrics)}
    return columns, data | {f"unit {m}": np.array([columns[m].unit]) for m in metrics}


def shifts(board: Leaderboard) -> list[str]:
    """Return the names of the shifts that a leaderboard has."""
    names = [
        c.dataset.split(":")[1]
        for c in board.columns
        if c.dataset.startswith("shift:") and c.dataset.count(":") == 2
    ]
    return list(dict.fromkeys(names))


def levels_of(board: Leaderboard, shift: str) -> list[int]:
    """Return the severities of one shift, sorted."""
    datasets = {c.dataset for c in board.columns if c.dataset.startswith(f"shift:{shift}:")}
    return sorted(int(dataset.rsplit(":", 1)[1]) for dataset in datasets)


def default_metrics(board: Leaderboard) -> list[str]:
    """Return accuracy or RMSE, NLL and ECE, those of them that the leaderboard has."""
    metrics = {column.metric for column in board.columns if column.dataset == "test"}
    return [name for name in ("accuracy", "rmse", "nll", "ece") if name in metrics]


class SeveritySpread(PanelDisplay):
    """A line of means per method; at each severity a thin bar from the best kind of shift to the
    worst, a thick one over the middle half, and a cross at the worst."""

    size = (4.8, 4.2)

    def _axis(self, ax: Axes) -> None:
        ax.set_xlabel("severity (0: test set)")

    def _lines(self, ax: Axes, metric: str) -> None:
        data, levels = self.data, self.data["severity"]
        drawn = [label for label in self.styles if f"{label} {metric} mean" in data]
        step = WIDTH / max(len(drawn), 1)
        for number, label in enumerate(drawn):
            style = self.styles[label]
            x = levels + (number - (len(drawn) - 1) / 2) * step
            low, first, third, high, worst, mean = (
                data[f"{label} {metric} {part}"]
                for part in ("least", "first quartile", "third quartile", "most", "worst", "mean")
            )
            ax.vlines(x, low, high, color=style.color, linewidth=0.8)
            ax.vlines(x, first, third, color=style.color, linewidth=4, alpha=0.35)
            ax.plot(x[1:], worst[1:], "x", color=style.color, markersize=4)
            ax.plot(
                x,
                mean,
                color=style.color,
                marker=style.marker,
                linewidth=0.9,
                markersize=3.5,
                label=label,
            )
        panel_title(ax, axis_title(metric, str(data[f"unit {metric}"][0])))
        ax.set_xticks(levels)


def severity_spread(
    board: Leaderboard,
    *,
    metrics: list[str] | None = None,
    styles: dict[str, Style] | None = None,
) -> SeveritySpread:
    """Return scores against severity over all kinds of shift, with their spread and the worst.

    Values are means over seeds; the bars are over kinds of shift, not over seeds.

    Traps: a mean over shifts hides the one that breaks a method, hence the crosses; severities of
    different kinds are not equally hard.

    Args:
        board: with shifts. metrics: by default accuracy (or RMSE), NLL and ECE.
        styles: one per label, see `palette`.
    """
    check_call(severity_spread, locals())
    kinds = shifts(board)
    if not kinds:
        raise ValueError("the leaderboard has no shifts; evaluate on a task that has some")
    metrics = metrics or default_metrics(board)
    by_kind = {kind: levels_of(board, kind) for kind in kinds}
    levels = sorted({level for kind_levels in by_kind.values() for level in kind_levels})
    facts, data = _axes_of(board, metrics, levels)
    data["kinds"] = np.array(kinds)
    summaries = []
    for metric, label in itertools.product(metrics, board.labels):
        columns = [{"test": board[label, "test", metric].mean}]
        for level in levels:
            having = [kind for kind in kinds if level in by_kind[kind]]
            columns.append({k: board[label, f"shift:{k}:{level}", metric].mean for k in having})
        if any(value is None for column in columns for value in column.values()):
            continue
        up = facts[metric].direction == "up"
        parts = _parts(columns, up)
        data |= {f"{label} {metric} {part}": array for part, array in parts.items()}
        kind = next(k for k, value in columns[-1].items() if value == parts["worst"][-1])
        summaries.append(
            f"{label} {facts[metric].title} mean {parts['mean'][-1]:.3f}, worst"
            f" {parts['worst'][-1]:.3f} ({kind.replace('_', ' ')})"
        )
    seeds = f"means over {len(board.seeds)} seeds" if len(board.seeds) > 1 else "one seed"
    return SeveritySpread(
        data,
        label="all shifts",
        styles=styles or palette(board.labels),
        caption=f"Scores over {len(kinds)} kinds of shift, severity 0 is the test set"
        f" ({seeds}). Line: mean over kinds; thin bar: best to worst kind; thick: middle half; ×:"
        " worst.",
        alt=f"Scores against severity over {len(kinds)} kinds of shift, at severity {levels[-1]}:"
        f" {'; '.join(summaries)}.",
    )


def _parts(columns: list[dict[str, float | None]], up: bool) -> dict[str, np.ndarray]:
    """Return for each severity what is drawn of the values of its kinds."""
    values = [np.array([float(v) for v in c.values() if v is not None]) for c in columns]
    least, most = (np.array([end(kinds) for kinds in values]) for end in (np.min, np.max))
    return {
        "mean": np.array([kinds.mean() for kinds in values]),
        "worst": least if up else most,
        "least": least,
        "first quartile": np.array([np.quantile(kinds, 0.25) for kinds in values]),
        "third quartile": np.array([np.quantile(kinds, 0.75) for kinds in values]),
        "most": most,
    }
