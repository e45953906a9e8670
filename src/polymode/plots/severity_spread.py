"""All shifts together, severity by severity: the mean over kinds, and the worst of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.metrics.leaderboard import Leaderboard
from polymode.plots.axes import axis_title, panel_title
from polymode.plots.display import Style, palette
from polymode.plots.lines import PanelDisplay
from polymode.plots.severity import default_metrics, levels_of, shifts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 0.45  # of a severity's step that the methods stand in, side by side


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
    levels = sorted({level for found in by_kind.values() for level in found})
    facts = {c.metric: c for c in board.columns if c.dataset == "test"}
    if unknown := [metric for metric in metrics if metric not in facts]:
        raise ValueError(f"the leaderboard has no metric '{unknown[0]}' of the test set")
    data: dict[str, np.ndarray] = {
        "severity": np.array([0, *levels]),
        "metric": np.array(metrics),
        "kinds": np.array(kinds),
    } | {f"unit {metric}": np.array([facts[metric].unit]) for metric in metrics}
    said = []
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
        said.append(
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
        f" {'; '.join(said)}.",
    )


def _parts(columns: list[dict[str, float | None]], up: bool) -> dict[str, np.ndarray]:
    """Return for each severity what is drawn of the values of its kinds."""
    values = [np.array([float(v) for v in c.values() if v is not None]) for c in columns]
    least, most = (np.array([end(each) for each in values]) for end in (np.min, np.max))
    return {
        "mean": np.array([each.mean() for each in values]),
        "worst": least if up else most,
        "least": least,
        "first quartile": np.array([np.quantile(each, 0.25) for each in values]),
        "third quartile": np.array([np.quantile(each, 0.75) for each in values]),
        "most": most,
    }
