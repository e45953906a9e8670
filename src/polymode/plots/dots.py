"""A number of several methods as dots, one per seed, in the order they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.display import INK, PALE, Display, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 0.2  # inches a row
WIDE = 30  # ratio of the largest to the smallest value from which on the axis is logarithmic


class Dots(Display):
    """A row per method: its values as points, their mean as a line; colours by group."""

    def __init__(self, data: dict[str, np.ndarray], **more: object) -> None:
        self.size = (5.0, 0.9 + HEIGHT * len(data["name"]))
        super().__init__(data, **more)  # type: ignore[arg-type]

    def plot(self, ax: Axes) -> Axes:
        data, names = self.data, self.data["name"]
        labelled: set[str] = set()
        for row, group in enumerate(data["group"]):
            values = data["values"][row]
            finite = values[~np.isnan(values)]
            style = self.styles[str(group)]
            ax.axhline(row, color=PALE, linewidth=0.5, zorder=0)
            label = None if group in labelled else str(group)
            ax.plot(
                finite, np.full(len(finite), row), style.marker, color=style.color, markersize=4,
                label=label,
            )  # fmt: skip
            ax.plot([finite.mean()] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=1)
            labelled.add(str(group))
        ax.set_yticks(range(len(names)), [str(name) for name in names])
        ax.set(xlabel=str(data["axis"][0]), ylim=(len(names) - 0.5, -0.5))
        every = data["values"][~np.isnan(data["values"])]
        if every.min() > 0 and every.max() > WIDE * every.min():
            ax.set_xscale("log")
        ax.legend(loc="lower right")
        return ax


def dots(
    values: Mapping[str, Sequence[float]],
    *,
    groups: Mapping[str, str],
    label: str,
    axis: str,
    caption: str,
) -> Dots:
    """Return a row of dots per method.

    Args:
        values: by name, one per seed, at least one. groups: of each name, told apart by colour.
        label: title. axis: what the numbers are. caption: of the figure.
    """
    check_call(dots, locals())
    most = max(map(len, values.values()))
    table = np.full((len(values), most), np.nan)
    for row, seeds in enumerate(values.values()):
        table[row, : len(seeds)] = seeds
    means = {name: float(np.mean(seeds)) for name, seeds in values.items()}
    means_text = "; ".join(f"{name} {mean:.3g}" for name, mean in means.items())
    return Dots(
        {
            "name": np.array(list(values)),
            "group": np.array([groups[name] for name in values]),
            "values": table,
            "axis": np.array([axis]),
        },
        label=label,
        caption=caption,
        alt=f"{label}: a row per method, with a point for each seed. Means: {means_text}.",
        styles=palette(dict.fromkeys(groups[name] for name in values)),
    )
