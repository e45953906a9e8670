"""Axes of several figures: margins beside a main panel, legends, ticks, titles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polymode.metrics.results import title_of
from polymode.metrics.score import ARROWS, TABLES
from polymode.plots.display import PALE, Style, legend_columns, legend_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import FigureBase


class Joint(NamedTuple):
    """A main panel, the margins of its two axes, and the corner between the margins."""

    main: Axes
    above: Axes
    beside: Axes
    corner: Axes


def joint(figure: FigureBase) -> Joint:
    """Return empty axes; the margins share the main panel's limits and have no ticks."""
    grid = figure.add_gridspec(2, 2, width_ratios=(4.6, 1), height_ratios=(1, 4.6))
    main = figure.add_subplot(grid[1, 0])
    above = figure.add_subplot(grid[0, 0], sharex=main)
    beside = figure.add_subplot(grid[1, 1], sharey=main)
    corner = figure.add_subplot(grid[0, 1])
    above.tick_params(labelbottom=False, left=False, labelleft=False)
    beside.tick_params(labelleft=False, bottom=False, labelbottom=False)
    above.spines["left"].set_visible(False)
    beside.spines["bottom"].set_visible(False)
    corner.axis("off")
    return Joint(main, above, beside, corner)


def legend_below(figure: FigureBase, ax: Axes, width: float) -> None:
    """Put the legend of `ax` below the figure, in as many columns as fit in `width` inches."""
    handles, labels = ax.get_legend_handles_labels()
    if not labels:
        return
    texts = [legend_text(label, width) for label in labels]
    columns = legend_columns(texts, width)
    figure.legend(handles, texts, loc="outside lower center", ncols=columns)


def plain_log(axis: Axis) -> None:
    """Write the ticks of a logarithmic axis as plain numbers, and label a few of them."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low) if low > 0 else 3.0
    multiples = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
    axis.set_major_locator(LogLocator(subs=multiples, numticks=12 if decades < 4.5 else 4))
    axis.set_major_formatter(lambda value, _: plain_number(value))
    axis.set_minor_formatter(NullFormatter())


def plain_number(value: float) -> str:
    """Return a tick's number without trailing zeros, and with a true minus.

    >>> plain_number(0.001), plain_number(2000.0), plain_number(1e-5), plain_number(-0.5)
    ('0.001', '2,000', '1e−5', '−0.5')
    """
    text = f"{value:,.10g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.10g}".replace("e-0", "e-")
    return text.replace("-", "−")


def error_line(
    ax: Axes, x: np.ndarray, mean: np.ndarray, error: np.ndarray, style: Style, label: str | None
) -> None:
    """Draw one method's line of means with its error bars, none where an error is NaN."""
    look: dict[str, Any] = {"linewidth": 1.3, "elinewidth": 0.9, "label": label}
    ax.errorbar(x, mean, np.nan_to_num(error), color=style.color, marker=style.marker, **look)


def margin(ax: Axes, counts: np.ndarray, edges: np.ndarray, turned: bool, **look: Any) -> None:
    """Draw a histogram beside a main panel, with horizontal bars if `turned`."""
    ax.stairs(counts, edges, orientation="horizontal" if turned else "vertical", **look)


def zero_line(ax: Axes) -> None:
    """Draw the line of no difference behind everything else."""
    ax.axhline(0, color=PALE, linewidth=1, linestyle="--", zorder=0)


def axis_title(metric: str, unit: str = "") -> str:
    """Return a metric's title, the arrow that points to better, and its unit.

    >>> axis_title("nll"), axis_title("mine", "%")
    ('NLL ↓ [nats/example]', 'mine [%]')
    """
    entry = next((table.get(metric) for table in TABLES.values() if metric in table), None)
    facts = {"unit": "", "direction": ""} if entry is None else entry.metadata
    unit = unit or facts["unit"]
    words = [title_of(metric), ARROWS[facts["direction"]]]
    return " ".join([*filter(None, words), *([f"[{unit}]"] if unit else [])])


def panel_title(ax: Axes, title: str) -> None:
    """Write the label of the vertical axis above the panel: beside low panels it would not fit."""
    ax.set_title(title, loc="left", fontsize=8)


def thinned(size: int, most: int) -> np.ndarray:
    """Return the indices of at most `most` of `size` things, at random but always the same."""
    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).choice(size, most, replace=False))


def over_seeds(count: int) -> str:
    """Describe a number with its spread over seeds.

    >>> over_seeds(3), over_seeds(1)
    ('mean ± s.e. over 3 seeds', 'one seed')
    """
    return f"mean ± s.e. over {count} seeds" if count > 1 else "one seed"
