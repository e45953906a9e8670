"""A regression on one input: how uncertain the mean is, and where y may fall.

Two panels show ± 1, 2 and 3 standard deviations around the mean: on the left the epistemic part
alone, with single functions; on the right epistemic part and noise, with the training points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.metrics.results import Results
from polymode.plots.axes import thinned
from polymode.plots.display import INK, Display, Style
from polymode.plots.sources import numbers
from polymode.prediction import DensityPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

FUNCTIONS = 20  # sample functions that are drawn at most
POINTS = 100  # of the training set, at most
STEPS = 67  # along x of bands, at most; lines have all of the grid
WIDTHS = (3, 2, 1)  # standard deviations, the widest first
TITLES = {"epistemic": "epistemic: of the mean", "all": "all: epistemic and noise"}


class RegressionBand(Display):
    """Mean ± 1, 2 and 3 standard deviations: the epistemic part, and all of it."""

    size = (6.0, 3.0)

    def plot(self, ax: Axes, part: str = "all") -> Axes:
        """Draw one panel, "all" or "epistemic"."""
        self.bands(ax, part)
        ax.set_title(f"{self.title}\n{TITLES[part]}", color=INK)
        ax.legend(ncols=2)
        return ax

    def draw(self, figure: FigureBase) -> None:
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for ax, part in zip(axes, ("epistemic", "all"), strict=True):
            self.bands(ax, part)
            ax.set_title(TITLES[part], color=INK)
        axes[1].set_ylabel("")
        figure.suptitle(self.title, fontsize=9, color=INK)
        legends = [ax.get_legend_handles_labels() for ax in axes]
        handles = {k: h for hs, ks in legends for h, k in zip(hs, ks, strict=True)}
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles))

    def bands(self, ax: Axes, part: str) -> None:
        """Draw bands and functions of one panel, without title and legend."""
        data, color = self.data, self.style.color
        x, mean = data["x"], data["mean"]
        some = np.unique(np.linspace(0, len(x) - 1, min(len(x), STEPS)).round().astype(int))
        functions = [data[key] for key in data if key.startswith("function ")]
        reach = data["epistemic std" if part == "epistemic" else "std"]
        if part == "epistemic" and len(functions) < 2 and not reach.any():
            words = "one sample: n/a"
            ax.text(0.5, 0.95, words, ha="center", va="top", transform=ax.transAxes, color=INK)
        else:
            for width in WIDTHS:
                ends = ((mean + sign * width * reach)[some] for sign in (-1, 1))
                name = "± 1, 2, 3 s.d." if width == 1 else None
                ax.fill_between(x[some], *ends, color=color, alpha=0.17, lw=0, label=name)
        if part == "epistemic":
            for number, values in enumerate(functions if len(functions) > 1 else ()):
                name = "single functions" if number == 0 else None
                ax.plot(x, values, color=color, linewidth=0.5, alpha=0.8, label=name)
        else:
            ax.plot(
                data["train x"],
                data["train y"],
                ".",
                color=INK,
                markersize=2.2,
                zorder=1,
                label="training points",
            )
        ax.plot(x, mean, color=color, label="mean")
        if "truth" in data:
            ax.plot(x, data["truth"], color=INK, linestyle="--", linewidth=1, label="truth")
        ax.set(xlabel="x", ylabel="y", xlim=(x[0], x[-1]), ylim=tuple(data["view"]))


def regression_band(
    results: Results,
    *,
    label: str = "",
    view: tuple[float, float] | None = None,
    style: Style | None = None,
) -> RegressionBand:
    """Return the figure of one result on a task with one input and one output.

    Up to 20 single functions are drawn, the means of single members. The caption says how many test
    targets the 90 % interval contains, where results have that number.

    Traps: the grid is even and reaches beyond the data, so how much of it a band covers says
    nothing about calibration; bands are standard deviations of a mixture, which need not be normal.

    Args:
        results: with the "curve" and "train" that `evaluate` keeps of such tasks.
        label: the method's name in the figure; by default its registered one.
        view: limits of y; by default around data, truth and mean. Give the same to compare.
        style: see `palette`.
    """
    check_call(regression_band, locals())
    curve, train = results.kept.get("curve"), results.kept.get("train")
    if curve is None or train is None or train.inputs is None or train.targets is None:
        raise ValueError("these results keep no curve; it is made for tasks with one input")
    prediction = curve.prediction
    if not isinstance(prediction, DensityPrediction) or prediction.loc.shape[-1] != 1:
        raise ValueError("regression_band draws one output; the task has more")
    assert curve.inputs is not None
    index = thinned(len(train.inputs), POINTS)
    data = {
        "x": numbers(curve.inputs).ravel(),
        "mean": numbers(prediction.mean).ravel(),
        "std": numbers(prediction.std).ravel(),
        "epistemic std": numbers(prediction.epistemic_variance).ravel() ** 0.5,
        "train x": numbers(train.inputs).ravel()[index],
        "train y": numbers(train.targets).ravel()[index],
    }
    if curve.targets is not None:
        data["truth"] = numbers(curve.targets).ravel()
    some = thinned(prediction.num_samples, FUNCTIONS)  # of all modes, which lie one after another
    for number, function in enumerate(some):
        data[f"function {number}"] = numbers(prediction.loc[int(function)]).ravel()
    data["view"] = np.array(view or default_view(data))
    label = label or results.method
    drawn = len(some)
    functions = f"{drawn} single functions." if drawn > 1 else "One function."
    return RegressionBand(
        data,
        label=label,
        style=style,
        caption="Predictive mean, single functions where there are several, and ± 1, 2, 3 standard"
        f" deviations: left the epistemic part, right epistemic part and noise (seed"
        f" {results.seed}); {len(index):,}"
        f"{'' if len(index) == len(train.inputs) else f' of {len(train.inputs):,}'} training"
        " points.",
        own=f"{functions}{_coverage(results)}".strip(),
        alt=f"Regression of {label} over x from {data['x'][0]:.3g} to {data['x'][-1]:.3g};"
        f" {_epistemic(data, drawn)}.{_coverage(results)}",
    )


def default_view(data: dict[str, np.ndarray]) -> tuple[float, float]:
    """Return limits of y with a margin around data, truth and mean; bands may leave them."""
    curves = [data[key] for key in ("train y", "truth", "mean") if key in data]
    low, high = min(map(np.min, curves)), max(map(np.max, curves))
    margin = 0.25 * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def _epistemic(data: dict[str, np.ndarray], num_functions: int) -> str:
    """Say how much of the variance is epistemic and where it is largest."""
    if num_functions < 2 and not data["epistemic std"].any():
        return "one sample, so there is no epistemic part"
    share = float(np.mean(data["epistemic std"] ** 2 / data["std"] ** 2))
    where = data["x"][np.argmax(data["epistemic std"])]
    return (
        f"on average over this grid {100 * share:.0f} % of the predictive variance is epistemic,"
        f" most of it at x = {where:.3g}"
    )


def _coverage(results: Results) -> str:
    """Say how many test targets the 90 % interval contains, where that was computed."""
    row = results.get("test", "coverage_90")
    if row is None or row.value is None:
        return ""
    return f" The 90 % interval contains {100 * row.value:.1f} % of {row.n:,} test targets."
