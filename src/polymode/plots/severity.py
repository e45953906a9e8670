"""How scores fall as a shift grows: severity 0 is the test set itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.metrics.leaderboard import Leaderboard
from polymode.metrics.results import title_of
from polymode.plots.display import INK, Display, Style, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


class Severity(Display):
    """One line a method, mean ± s.e. over seeds; one panel a metric."""

    size = (3.6, 4.6)

    def __init__(
        self,
        data: dict[str, np.ndarray],
        *,
        styles: dict[str, Style],
        units: dict[str, str],
        label: str,
        caption: str,
        alt: str,
    ) -> None:
        super().__init__(data, label=label, caption=caption, alt=alt, style=Style())
        self.styles, self.units = styles, units
        self.metrics = list(units)

    def plot(self, ax: Axes, metric: str = "") -> Axes:
        """Draw one metric, by default the first."""
        metric = metric or self.metrics[0]
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
                elinewidth=0.9,
                label=label,
            )
        ax.set_ylabel(f"{title_of(metric)} [{self.units[metric]}]")
        return ax

    def draw(self, figure: FigureBase) -> None:
        panels = np.atleast_1d(figure.subplots(len(self.metrics), 1, sharex=True))
        for ax, metric in zip(panels, self.metrics, strict=True):
            self.plot(ax, metric)
        panels[0].set_title(self.label, color=INK)
        panels[0].legend()
        panels[-1].set_xlabel("severity (0: test set)")
        panels[-1].set_xticks(self.data["severity"])


def severity(
    board: Leaderboard,
    shift: str,
    *,
    metrics: list[str] | None = None,
    styles: dict[str, Style] | None = None,
) -> Severity:
    """Return scores against the severity of one shift, all methods of a leaderboard.

    Args:
        shift: its name in the task. metrics: by default accuracy (or RMSE) and NLL.
        styles: one a label, see `palette`.
    """
    levels = sorted(
        {int(c.dataset.rsplit(":", 1)[1]) for c in board.columns if _of(c.dataset, shift)}
    )
    if not levels:
        raise ValueError(
            f"the leaderboard has no shift '{shift}'; it has {shifts(board) or 'none'}"
        )
    datasets = ["test", *(f"shift:{shift}:{level}" for level in levels)]
    known = {column.metric for column in board.columns if column.dataset == "test"}
    metrics = metrics or [name for name in ("accuracy", "rmse", "nll") if name in known]
    data: dict[str, np.ndarray] = {"severity": np.array([0, *levels])}
    for label in board.labels:
        for metric in metrics:
            cells = [board[label, dataset, metric] for dataset in datasets]
            if any(cell.mean is None for cell in cells):
                continue
            data[f"{label} {metric}"] = np.array([cell.mean for cell in cells])
            errors = [np.nan if c.standard_error is None else c.standard_error for c in cells]
            data[f"{label} {metric} s.e."] = np.array(errors)
    ends = "; ".join(
        f"{key} from {values[0]:.3f} to {values[-1]:.3f}"
        for key, values in data.items()
        if key != "severity" and not key.endswith("s.e.")
    )
    seeds = len(board.seeds)
    spread = f"mean ± s.e. over {seeds} seeds" if seeds > 1 else "one seed"
    title = shift.replace("_", " ")
    return Severity(
        data,
        label=title,
        styles=styles or palette(board.labels),
        units={c.metric: c.unit for m in metrics for c in board.columns if c[:2] == ("test", m)},
        caption=f"Scores as the shift '{title}' grows, severity 0 being the test set; {spread}.",
        alt=f"Scores against severity of {title}: {ends}.",
    )


def shifts(board: Leaderboard) -> list[str]:
    """Return the names of the shifts that a leaderboard has."""
    names = [c.dataset.split(":")[1] for c in board.columns if c.dataset.count(":") == 2]
    return list(dict.fromkeys(names))


def _of(dataset: str, shift: str) -> bool:
    return dataset.startswith(f"shift:{shift}:")
