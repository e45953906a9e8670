"""Uncertainty over the plane of a task with two inputs: total, aleatoric, epistemic.

Predictive entropy = expected entropy + mutual information, in nats. The three panels share one
colour scale, so that the two parts visibly add up to the total.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.metrics.results import Results
from polymode.plots.axes import thinned
from polymode.plots.display import INK, MARKERS, Display, Style
from polymode.plots.sources import kept_of, numbers
from polymode.prediction import CategoricalPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

PANELS = {
    "total": "total: predictive entropy",
    "aleatoric": "aleatoric: expected entropy",
    "epistemic": "epistemic: mutual information",
}
POINTS = 200  # of the training set, at most
COLORS = "viridis"


class UncertaintyMaps(Display):
    """Three maps side by side, training points on them, one colour scale."""

    size = (6.4, 2.6)
    dense = True

    def plot(self, ax: Axes, panel: str = "total") -> Axes:
        """Draw one of the three maps, "total", "aleatoric" or "epistemic"."""
        data = self.data
        x, y = data["x"], data["y"]
        steps = (x[1] - x[0]) / 2, (y[1] - y[0]) / 2
        left, right, low, high = (
            x[0] - steps[0],
            x[-1] + steps[0],
            y[0] - steps[1],
            y[-1] + steps[1],
        )
        if panel in data:
            ax.imshow(
                data[panel].reshape(len(y), len(x)),
                origin="lower",
                extent=(left, right, low, high),
                vmin=data["limits"][0],
                vmax=data["limits"][1],
                cmap=COLORS,
                aspect="auto",
                interpolation="none",
            )
            self._points(ax)
        else:
            words = "n/a\nneeds 2 or more samples"
            ax.text(0.5, 0.5, words, ha="center", va="center", transform=ax.transAxes, color=INK)
        ax.set(xlim=(left, right), ylim=(low, high))
        ax.set_title(PANELS[panel].replace(": ", "\n"), color=INK)
        return ax

    def _points(self, ax: Axes) -> None:
        classes = self.data["train class"]
        for number, label in enumerate(np.unique(classes)):
            of_class = classes == label
            ax.scatter(
                self.data["train x"][of_class],
                self.data["train y"][of_class],
                s=7,
                marker=MARKERS[number % len(MARKERS)],
                color="white" if number % 2 == 0 else "black",
                edgecolors="black" if number % 2 == 0 else "white",
                linewidths=0.35,
                rasterized=True,
            )

    def draw(self, figure: FigureBase) -> None:
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        for ax, panel in zip(axes, PANELS, strict=True):
            self.plot(ax, panel)
        color_bar(figure, list(axes), self.data["limits"])
        figure.suptitle(self.title, fontsize=9, color=INK)


def color_bar(figure: FigureBase, axes: list[Axes], limits: np.ndarray) -> None:
    """Draw the colour scale that all maps share, in nats."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colors = ScalarMappable(Normalize(*limits), COLORS)
    bar = figure.colorbar(colors, ax=axes, label="nats", pad=0.015, aspect=25)
    bar.outline.set_visible(False)  # type: ignore[operator]


def uncertainty_maps(
    results: Results,
    *,
    label: str = "",
    limits: tuple[float, float] | None = None,
    style: Style | None = None,
) -> UncertaintyMaps:
    """Return the maps of one result on a classification task with two inputs.

    Traps: with a colour scale for each method differences are hidden; give the same `limits`, see
    `map_limits`. With one sample there is no mutual information, and its panel stays empty.

    Args:
        results: with the "plane" and "train" that `evaluate` keeps of such tasks.
        label: the method's name in the figure; by default its registered one.
        limits: of the colour scale in nats; by default from 0 to the largest predictive entropy.
        style: see `palette`; the maps do not use it.
    """
    check_call(uncertainty_maps, locals())
    prediction, x, y = plane_of(results)
    train = kept_of(results, "train")
    assert train.inputs is not None and train.targets is not None
    shape = len(y), len(x)
    data: dict[str, np.ndarray] = {"x": x, "y": y}
    data["total"] = numbers(prediction.predictive_entropy).reshape(shape)
    data["aleatoric"] = numbers(prediction.expected_entropy).reshape(shape)
    if prediction.num_samples > 1:
        data["epistemic"] = numbers(prediction.mutual_information).reshape(shape)
    data["limits"] = np.array(limits or map_limits([results]))
    index = thinned(len(train.inputs), POINTS)
    inputs = numbers(train.inputs)[index]
    data["train x"], data["train y"] = inputs[:, 0], inputs[:, 1]
    data["train class"] = numbers(train.targets)[index].astype(int)
    label = label or results.method
    means = ", ".join(
        f"{panel} {data[panel].mean():.3f} (at most {data[panel].max():.3f})"
        if panel in data
        else f"{panel} n/a, one sample"
        for panel in PANELS
    )
    all_of = len(train.inputs)
    count = f"{all_of:,}" if len(index) == all_of else f"{len(index):,} of {all_of:,}"
    return UncertaintyMaps(
        data,
        label=label,
        style=style,
        caption="Predictive entropy, and its parts expected entropy and mutual information, over"
        f" the two inputs, one colour scale from {data['limits'][0]:.2g} to"
        f" {data['limits'][1]:.2g} nats ({len(x)} × {len(y)} points; seed {results.seed}). Dots:"
        f" {count} training points, one shape per class.",
        alt=f"Maps of uncertainty of {label} over two inputs; mean over the plane in nats:"
        f" {means}.",
    )


def map_limits(several: Iterable[Results]) -> tuple[float, float]:
    """Return one colour scale for several results: from 0 to the largest predictive entropy."""
    check_call(map_limits, locals())
    tops = [float(plane_of(results)[0].predictive_entropy.max()) for results in several]
    if not tops:
        raise ValueError("there is nothing to draw: 0 results")
    return 0.0, max(tops)


def plane_of(results: Results) -> tuple[CategoricalPrediction, np.ndarray, np.ndarray]:
    """Return the prediction over the plane, and the coordinates along its two sides."""
    if "plane" not in results.kept or "train" not in results.kept:
        raise ValueError(
            "these results keep no plane; `evaluate` makes it for classes on two inputs, with"
            " `keep=True`"
        )
    plane = results.kept["plane"]
    if not isinstance(plane.prediction, CategoricalPrediction):
        raise ValueError("uncertainty_maps is for classes; for regression see regression_band")
    assert plane.inputs is not None
    inputs = numbers(plane.inputs)
    side = math.isqrt(len(inputs))
    if inputs.shape != (side * side, 2) or side < 2:
        raise ValueError(f"a plane has n × n inputs of 2 numbers, n >= 2, got {inputs.shape}")
    grid = inputs.reshape(side, side, 2)
    x, y = grid[0, :, 0], grid[:, 0, 1]
    if not (np.allclose(grid[..., 0], x) and np.allclose(grid[..., 1], y[:, None])):
        raise ValueError("the inputs of a plane must be an even grid, the first input fastest")
    return plane.prediction, x, y
