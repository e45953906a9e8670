"""Metrics against a hyperparameter: one panel per metric, mean ± s.e. over seeds.

The axis is logarithmic; a value of 0, often the method without the swept term, stands separately at
the left, behind a break.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.axes import axis_title, error_line, over_seeds, panel_title
from polymode.plots.display import INK, PALE, Style, palette
from polymode.plots.lines import PanelDisplay
from polymode.plots.sources import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP = 0.9  # between 0 and the least other value, in steps of the grid
MARKS = ("-.", ":", (0, (1, 3)))


class Sweep(PanelDisplay):
    """Panels on one axis of the hyperparameter; the chosen value is marked in all."""

    size = (4.0, 2.4)
    legend_more = (0, 2)

    def _lines(self, ax: Axes, metric: str) -> None:
        data, places = self.data, self.data["place"]
        first = 1 if data["value"][0] == 0 else 0
        for label, style in self.styles.items():
            key = f"{label} {metric}".strip()
            if key not in data:
                continue
            mean, error = data[key], data[f"{key} s.e."]
            if first:  # a point without a line to the others
                error_line(ax, places[:1], mean[:1], error[:1], style, None)
            error_line(ax, places[first:], mean[first:], error[first:], style, label or None)
        for number, mark in enumerate(data["mark"]):
            chosen = str(mark) == "chosen"
            ax.axvline(
                data["mark place"][number],
                color=INK if chosen else PALE,
                linestyle="--" if chosen else MARKS[number % len(MARKS)],
                linewidth=1,
                zorder=0,
                label=f"{mark}: {data['mark value'][number]:.3g}",
            )
        panel_title(ax, axis_title(metric))

    def _axis(self, ax: Axes) -> None:
        data = self.data
        places, values = data["place"], data["value"]
        some = _named(values)
        ax.set_xticks(places[some], [f"{float(f'{value:.3g}'):g}" for value in values[some]])
        ax.set_xlabel(str(data["name"][0]))
        if values[0] == 0 and len(values) > 1:
            middle = 0.5 * (places[0] + places[1])
            ax.text(
                middle,
                0,
                "//",
                transform=ax.get_xaxis_transform(),
                ha="center",
                va="center",
                color=INK,
            )


def sweep(
    values: Sequence[float],
    panels: Mapping[str, Any],
    *,
    name: str,
    chosen: float | None = None,
    marks: Mapping[str, float] | None = None,
    styles: dict[str, Style] | None = None,
) -> Sweep:
    """Return metrics against the values of a hyperparameter, on a logarithmic axis.

    Traps: a value chosen by a metric of the test set is not a result; give in `chosen` the value
    that the validation set chose. Means hide seeds that failed: NaN is left out, and counted.

    Args:
        values: (V,) increasing, >= 0; a 0 is drawn at the left behind a break.
        panels: by metric (a registered name, or any words), an array (V, R) of R seeds, or (V,); or
            by label again, for several methods.
        name: of the hyperparameter, with its unit.
        chosen: the value that is used. marks: other values to mark, such as
            {"median heuristic": 0.7}.
        styles: one per label, see `palette`.
    """
    check_call(sweep, locals())
    if not panels:
        raise ValueError("there is nothing to draw: give at least one panel")
    first = {} if chosen is None else {"chosen": chosen}
    grid, marked = _checked(values, {**first, **(marks or {})})
    tables = {
        (str(label), metric): _table(array, len(grid), metric)
        for metric, methods in panels.items()
        for label, array in (methods if isinstance(methods, Mapping) else {"": methods}).items()
    }
    data: dict[str, np.ndarray] = {
        "value": grid,
        "place": _places(grid, grid),
        "metric": np.array(list(panels)),
        "name": np.array([name]),
        "mark": np.array(list(marked), dtype=str),
        "mark value": np.array(list(marked.values())),
        "mark place": _places(np.array(list(marked.values())), grid),
    }
    for (label, metric), table in tables.items():
        key = f"{label} {metric}".strip()
        data[key], data[f"{key} s.e."] = _mean(table)
    extremes = "; ".join(_describe(f"{k} {m}".strip(), data) for k, m in tables)
    lost = sum(int(np.isnan(table).sum()) for table in tables.values())
    note = f"; {lost} runs without a number are left out" if lost else ""
    spread = over_seeds(max(table.shape[1] for table in tables.values()))
    at = "".join(f" {key.capitalize()}: {value:.3g}." for key, value in marked.items())
    display = Sweep(
        data,
        label=name,
        styles=styles or palette(label for label, _ in tables),
        caption=f"{', '.join(panels)} against {name} ({len(grid)} values; {spread}{note}).{at}",
        alt=f"Sweep over {name}: {extremes}.{at}",
    )
    display.size = (display.size[0], display.size[1] + 1.35 * (len(panels) - 1))
    return display


def _checked(
    values: Sequence[float], marks: Mapping[str, float]
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the grid (V,) and the marked values, or raise what is wrong with them."""
    grid = np.array([float(value) for value in values])
    if len(grid) < 2 or (np.diff(grid) <= 0).any() or grid[0] < 0 or not np.isfinite(grid).all():
        raise ValueError(f"`values` of sweep must increase from 0 or more, got {grid.tolist()}")
    marked = {str(key): float(value) for key, value in marks.items()}
    if wrong := [value for value in marked.values() if not 0 <= value < math.inf]:
        raise ValueError(f"a mark of sweep must be finite and >= 0, got {wrong[0]}")
    return grid, marked


def _describe(key: str, data: dict[str, np.ndarray]) -> str:
    """Describe the smallest and the largest mean, and their values of the hyperparameter."""
    ends = np.nanargmin(data[key]), np.nanargmax(data[key])
    low, high = (f"{data[key][i]:.3g} at {data['value'][i]:.3g}" for i in ends)
    return f"{key} from {low} to {high}"


def _places(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return positions on the axis: logarithms, and a step before the smallest for 0."""
    positive = np.log10(grid[grid > 0])
    step = float(np.median(np.diff(positive))) if len(positive) > 1 else 1.0
    with np.errstate(divide="ignore"):
        logs = np.log10(values)
    return np.where(values > 0, logs, positive[0] - (1 + GAP) * step)


def _named(values: np.ndarray) -> np.ndarray:
    """Return the indices of labelled values: all if they are few, else 0 and the powers of ten."""
    if len(values) <= 7:
        return np.arange(len(values))
    powers = np.log10(np.where(values > 0, values, 1.0))
    some = np.flatnonzero((values == 0) | (np.abs(powers - powers.round()) < 1e-9))
    if 3 <= len(some) <= 9:
        return some
    return np.unique(np.linspace(0, len(values) - 1, 6).round().astype(int))


def _table(values: Any, count: int, metric: str) -> np.ndarray:
    """Return (V, R) float64."""
    array = numbers(values)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[0] != count or array.shape[1] < 1:
        raise ValueError(
            f"`panels` of {metric} must be ({count}, R) or ({count},), got {array.shape}"
        )
    if (~np.isfinite(array)).all():
        raise ValueError(f"`panels` of {metric} have no finite number")
    return np.where(np.isfinite(array), array, np.nan)


def _mean(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and s.e. over the seeds that have a number; NaN where there are too few."""
    counts = np.isfinite(table).sum(1)
    total = np.where(counts > 0, np.nansum(table, 1), np.nan)
    mean = total / np.maximum(counts, 1)
    squares = np.nansum((table - mean[:, None]) ** 2, 1)
    error = np.sqrt(squares / np.maximum(counts - 1, 1) / np.maximum(counts, 1))
    return mean, np.where(counts > 1, error, np.nan)
