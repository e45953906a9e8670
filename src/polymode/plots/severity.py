"""How scores change as a shift grows: severity 0 is the test set itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.metrics.leaderboard import Leaderboard
from polymode.plots.axes import axis_title, over_seeds, panel_title
from polymode.plots.display import INK, Style, palette
from polymode.plots.lines import PanelDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


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
            ax.errorbar(
                self.data["severity"],
                mean,
                yerr=np.nan_to_num(error),
                color=style.color,
                marker=style.marker,
                linewidth=1.3,
                elinewidth=0.9,
                label=label,
            )
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
    units = {c.metric: c.unit for c in board.columns if c.dataset == "test"}
    metrics = metrics or default_metrics(board)
    if unknown := [metric for metric in metrics if metric not in units]:
        raise ValueError(
            f"the leaderboard has no metric '{unknown[0]}'.{suggest(unknown[0], units)}"
        )
    data: dict[str, np.ndarray] = {
        "severity": np.array([0, *levels]),
        "metric": np.array(metrics),
    } | {f"unit {metric}": np.array([units[metric]]) for metric in metrics}
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
    known = {column.metric for column in board.columns if column.dataset == "test"}
    return [name for name in ("accuracy", "rmse", "nll", "ece") if name in known]
