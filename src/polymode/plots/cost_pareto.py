"""What quality costs: a metric against training and prediction time, with the Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.metrics.leaderboard import Column, Entry, Leaderboard
from polymode.metrics.paired import mean_and_error
from polymode.metrics.score import ARROWS
from polymode.plots.axes import legend_below, over_seeds, plain_log
from polymode.plots.display import PALE, Display, Style, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

UNITS = {"train": "s", "predict": "ms per 1,000"}
TIMES = {"train": "training time", "predict": "prediction time"}


class CostPareto(Display):
    """One point per method; on the step line nothing is both cheaper and better."""

    size = (5.6, 2.7)

    def plot(self, ax: Axes, time: str = "") -> Axes:
        """Draw one panel, "train" or "predict"; by default the first that has numbers."""
        self._points(ax, time or self._times()[0])
        ax.legend()
        return ax

    def _times(self) -> list[str]:
        return [time for time in TIMES if f"{time} frontier cost" in self.data]

    def draw(self, figure: FigureBase) -> None:
        times = self._times()
        axes = np.atleast_1d(figure.subplots(1, len(times), sharey=True))
        for ax, time in zip(axes, times, strict=True):
            self._points(ax, time)
        for ax in axes[1:]:
            ax.set_ylabel("")
        legend_below(figure, axes[-1], self.size[0])

    def _points(self, ax: Axes, time: str) -> None:
        data = self.data
        if f"{time} frontier cost" not in data:
            raise ValueError(f"no entry has a {TIMES[time]}")
        ax.plot(
            data[f"{time} frontier cost"],
            data[f"{time} frontier score"],
            drawstyle="steps-post",
            color=PALE,
            linewidth=1.5,
            zorder=0,
        )
        for label, style in self.styles.items():
            cost, score = data.get(f"{label} {time}"), data.get(f"{label} score")
            if cost is None or score is None:
                continue
            ax.errorbar(
                cost[0],
                score[0],
                xerr=np.nan_to_num(cost[1:]),
                yerr=np.nan_to_num(score[1:]),
                color=style.color,
                marker=style.marker,
                markersize=7,
                markerfacecolor=style.color if label in data["pareto"] else "white",
                elinewidth=0.9,
                linestyle="",
                label=label,
            )
        ax.set_xscale("log")
        scores = np.array([data[f"{k} score"][0] for k in self.styles if f"{k} score" in data])
        base = str(data["baseline"][0])
        ax.set_xlabel(f"{TIMES[time]}, × {base}" if len(base) < 15 else f"{TIMES[time]}, multiples")
        ax.set_ylabel(str(data["title"][0]))
        if scores.min() > 0 and scores.max() > 5 * scores.min():
            ax.set_yscale("log")
            plain_log(ax.yaxis)
        ax.margins(x=0.12, y=0.12)
        plain_log(ax.xaxis)


def cost_pareto(
    board: Leaderboard,
    *,
    metric: str = "nll",
    dataset: str = "test",
    baseline: str = "",
    styles: dict[str, Style] | None = None,
) -> CostPareto:
    """Return a metric against training and prediction time, times as multiples of one entry's.

    Filled markers are `board.pareto()`: no other entry is as good in the metric and in both times.
    The step line is the frontier for the time of its panel only.

    Traps: times are wall times of one machine, and nearly equal ones change places between runs;
    members trained together cost less than one by one.

    Args:
        board: with measured times; entries without a training time are left out of that panel.
        metric, dataset: a column of the board that scores.
        baseline: label of the entry that costs 1; by default the fastest to train.
        styles: one per label, see `palette`.
    """
    check_call(cost_pareto, locals())
    column = _column(board, dataset, metric)
    times = {entry.label: _times(entry) for entry in board.entries}
    base = _baseline(times, baseline)
    title = f"{column.title} {ARROWS[column.direction]} [{column.unit}]"
    front = board.pareto(metric, dataset)
    data: dict[str, np.ndarray] = {
        "title": np.array([title]),
        "baseline": np.array([base]),
        "pareto": np.array(front, dtype=str),
    }
    for label, spent in times.items():
        cell = board[label, dataset, metric]
        if cell.mean is None:
            continue
        data[f"{label} score"] = np.array([cell.mean, _number(cell.standard_error)])
        for time, unit in times[base].items():
            if time in spent:
                data[f"{label} {time}"] = np.array(spent[time]) / unit[0]
    scored = [label for label in board.labels if f"{label} score" in data]
    if not scored:
        raise ValueError(f"no entry has a value of {metric} on '{dataset}'")
    data |= _frontiers(data, scored, column.direction == "up")
    absolute = ", ".join(
        f"{TIMES[time]} {spent[0]:.3g} {UNITS[time]}" for time, spent in times[base].items()
    )
    return CostPareto(
        data,
        label=f"{column.title} and cost",
        styles=styles or palette(board.labels),
        caption=f"{title} on {dataset} against time ({over_seeds(len(board.seeds))}); 1 × is"
        f" {base}: {absolute}. Line: the Pareto frontier of each panel. Filled: no other entry is"
        f" as good in the metric and in both times ({', '.join(front) or 'n/a'}).",
        alt=f"{column.title} against cost: {'; '.join(_describe(k, data) for k in scored)}. Not"
        f" beaten in all at once: {', '.join(front) or 'n/a'}.",
    )


def frontier(points: Sequence[tuple[float, float]], up: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return costs and scores of the points better than all that cost no more."""
    sign = -1.0 if up else 1.0
    ordered = sorted((float(cost), sign * float(score)) for cost, score in points)
    on = [p for i, p in enumerate(ordered) if all(p[1] < cheaper[1] for cheaper in ordered[:i])]
    costs, scores = np.array(on).T
    return costs, sign * scores


def _frontiers(data: dict[str, np.ndarray], scored: list[str], up: bool) -> dict[str, np.ndarray]:
    """Return the frontier of each time that any entry has."""
    frontiers: dict[str, np.ndarray] = {}
    for time in TIMES:
        able = [label for label in scored if f"{label} {time}" in data]
        if able:
            points = [(data[f"{k} {time}"][0], data[f"{k} score"][0]) for k in able]
            costs, scores = frontier(points, up)
            frontiers |= {f"{time} frontier cost": costs, f"{time} frontier score": scores}
    return frontiers


def _column(board: Leaderboard, dataset: str, metric: str) -> Column:
    """Return a column that scores."""
    for column in board.columns:
        if column[:2] == (dataset, metric):
            if not column.direction:
                raise ValueError(
                    f"`{metric}` describes and does not score; choose a metric that scores"
                )
            return column
    metrics = [c.metric for c in board.columns if c.dataset == dataset]
    raise ValueError(f"the board has no {metric} of '{dataset}'.{suggest(metric, metrics)}")


def _times(entry: Entry) -> dict[str, tuple[float, float]]:
    """Return mean and s.e. over seeds: seconds of training, ms of predicting 1,000 inputs."""
    every = [results.cost for results in entry.results]
    trained = [cost.train_seconds for cost in every if cost.train_seconds is not None]
    predicted = [1e6 * cost.predict_seconds / max(cost.predict_examples, 1) for cost in every]
    if min([*trained, *predicted]) <= 0:
        raise ValueError(f"times of {entry.label} must be > 0 to be drawn on a logarithmic axis")
    seconds = {"train": trained, "predict": predicted}
    means = {time: mean_and_error(values) for time, values in seconds.items() if values}
    return {time: (mean, _number(error)) for time, (mean, error) in means.items()}


def _baseline(times: dict[str, dict[str, tuple[float, float]]], label: str) -> str:
    """Return the entry that costs 1: the given one, or the fastest to train, or to predict."""
    if label:
        if label not in times:
            raise ValueError(f"no entry '{label}'.{suggest(label, times)}")
        return label
    first = "train" if any("train" in spent for spent in times.values()) else "predict"
    return min((k for k in times if first in times[k]), key=lambda k: times[k][first][0])


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _describe(label: str, data: dict[str, np.ndarray]) -> str:
    costs = [
        f"{data[f'{label} {time}'][0]:.3g} × {TIMES[time]}"
        for time in TIMES
        if f"{label} {time}" in data
    ]
    return f"{label} {data[f'{label} score'][0]:.4g} at {', '.join(costs)}"
