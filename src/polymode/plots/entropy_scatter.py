"""Mutual information against expected entropy of each input: ignorance against noise.

The two add up to the predictive entropy, so lines of equal total run from upper left to lower
right. An input that is merely ambiguous lies to the right; one that the members disagree about lies
high.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from polymode.core.checks import check_call
from polymode.metrics.ood import auroc
from polymode.metrics.results import Results
from polymode.plots.axes import joint, legend_below, margin, thinned
from polymode.plots.display import INK, PALE, Display, Style
from polymode.plots.sources import kept_of, numbers
from polymode.prediction import CategoricalPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

POINTS = 1500  # of each set, at most
BINS = 30
TEST_COLOR = "#6e7781"
PARTS = {"ee": "expected entropy [nats]", "mi": "mutual information [nats]"}


class EntropyScatter(Display):
    """One dot per input, test set grey and OOD coloured; margins are shares of each set."""

    size = (4.2, 3.9)
    dense = True

    def plot(self, ax: Axes) -> Axes:
        """Draw the main panel alone."""
        self._dots(ax)
        ax.legend(handletextpad=0.2)
        return ax

    def _dots(self, ax: Axes) -> None:
        data = self.data
        for name, color, marker in self._sets():
            ax.scatter(
                data[f"{name} ee"],
                data[f"{name} mi"],
                s=7,
                color=color,
                marker=marker,
                alpha=0.45,
                linewidths=0,
                rasterized=True,
            )
            set_name = "test" if name == "test" else str(data["ood name"][0])
            ax.scatter([], [], s=16, color=color, marker=marker, label=set_name)
        highest = float(data["most"][0])  # log C: no input has more in all
        ax.plot([0, highest], [highest, 0], color=PALE, linestyle="--", linewidth=1, zorder=0)
        (left, right), (low, high) = data["ee limits"], data["mi limits"]
        ax.set(xlim=(left, right), ylim=(low, high), xlabel=PARTS["ee"], ylabel=PARTS["mi"])

    def draw(self, figure: FigureBase) -> None:
        axes = joint(figure)
        self._dots(axes.main)
        legend_below(figure, axes.main, self.size[0])
        for part, ax, turned in (("ee", axes.above, False), ("mi", axes.beside, True)):
            for name, color, _ in self._sets():
                test, counts = name == "test", self.data[f"{name} {part} share"]
                look: dict[str, Any] = {"fill": test, "alpha": 0.5 if test else 1.0}
                margin(ax, counts, self.data[f"{part} edges"], turned, color=color, **look)
            scale = ax.set_xscale if turned else ax.set_yscale
            scale("function", functions=(np.sqrt, np.square))
            (ax.set_xlim if turned else ax.set_ylim)(0)
        axes.above.set_title(self.title, color=INK)

    def _sets(self) -> list[tuple[str, str, str]]:
        return [("test", TEST_COLOR, "o"), ("ood", self.style.color, "^")]


def entropy_scatter(
    results: Results,
    *,
    ood: str = "",
    label: str = "",
    limits: tuple[float, float] | None = None,
    style: Style | None = None,
) -> EntropyScatter:
    """Return the two parts of the predictive entropy of test inputs and of one OOD set.

    Both sets have the same number of dots, at most 1,500, chosen at random. The margins show all
    inputs, as shares of each set, on a root scale.

    Traps: if one set had more dots, it would hide the other; the mutual information of S members is
    at most log S, so a few members cannot say much.

    Args:
        results: with `kept` predictions of classes, of at least 2 samples.
        ood: name of an OOD set; by default the first one kept.
        label: the method's name in the figure; by default its registered one.
        limits: largest expected entropy and mutual information shown; by default the largest
            values. Give the same limits to compare methods.
        style: see `palette`.
    """
    check_call(entropy_scatter, locals())
    names = [name for name in results.kept if name.startswith("ood:")]
    if not (ood or names):
        raise ValueError("these results keep no prediction of an OOD set")
    ood_name = ood or names[0].removeprefix("ood:")
    sets = {"test": _parts(results, "test"), "ood": _parts(results, f"ood:{ood_name}")}
    num_dots = min(POINTS, *(len(parts["ee"]) for parts in sets.values()))
    data = {
        "ood name": np.array([ood_name]),
        "most": np.array([math.log(results.kept["test"].prediction.mean.shape[-1])]),
    } | _drawn(sets, num_dots, limits)
    label = label or results.method
    set_names = {"test": "test", "ood": ood_name}
    means = "; ".join(
        f"{set_names[key]} {parts['ee'].mean():.3f} and {parts['mi'].mean():.3f}"
        for key, parts in sets.items()
    )
    area = auroc(*(torch.as_tensor(parts["mi"]) for parts in sets.values())).value
    sizes = ", ".join(f"{set_names[key]} {len(parts['ee']):,}" for key, parts in sets.items())
    return EntropyScatter(
        data,
        label=label,
        style=style,
        caption="Expected entropy (noise) and mutual information (ignorance) of"
        f" {num_dots:,} inputs of each set. Margins: all inputs, as shares, on a root scale"
        f" (n: {sizes}; seed {results.seed}). Dashed: the largest possible sum of the two, log C.",
        own=f"Means in nats: {means}.",
        alt=f"Scatter of mutual information against expected entropy of {label}; mean expected"
        f" entropy and mutual information in nats: {means}; AUROC of the mutual information"
        f" {area:.3f}.",
    )


def _drawn(
    sets: dict[str, dict[str, np.ndarray]], num_dots: int, limits: tuple[float, float] | None
) -> dict[str, np.ndarray]:
    """Return equally many dots of both sets, and the margins of all their inputs."""
    data: dict[str, np.ndarray] = {}
    tops = limits or [max(float(e[part].max()) for e in sets.values()) for part in PARTS]
    for part, limit in zip(PARTS, tops, strict=True):
        top = 1.04 * limit or 1.0
        data[f"{part} limits"] = np.array([-0.03 * top, top])
        data[f"{part} edges"] = np.linspace(0, top, BINS + 1)
    for key, parts in sets.items():
        index = thinned(len(parts["ee"]), num_dots)
        for part, values in parts.items():
            edges = data[f"{part} edges"]
            data[f"{key} {part}"] = values[index]
            counts = np.histogram(values.clip(edges[0], edges[-1]), edges)[0]
            data[f"{key} {part} share"] = counts / len(values)
    return data


def _parts(results: Results, dataset: str) -> dict[str, np.ndarray]:
    """Return expected entropy and mutual information of each input."""
    prediction = kept_of(results, dataset).prediction
    if not isinstance(prediction, CategoricalPrediction):
        raise ValueError("entropy_scatter is for classes; for regression see ood_histogram")
    if prediction.num_samples < 2:
        raise ValueError("entropy_scatter needs at least 2 samples, got 1; see ood_histogram")
    return {
        "ee": numbers(prediction.expected_entropy),
        "mi": numbers(prediction.mutual_information),
    }
