"""Calibration of a regression: PIT histogram, and the coverage of its central intervals.

The PIT, :math:`F_n(y_n)` under the mixture, is uniform if predictions are calibrated: a hump means
too wide, a U too narrow, a slope biased. The second panel has the share of targets inside the
central interval of each level; below the diagonal a method is too sure. Bands contain the value of
a calibrated prediction in 90 % of all samples of this size, each bin or level by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from polymode.core.checks import check_call
from polymode.metrics.intervals import pit, quantile_coverage
from polymode.metrics.results import Results
from polymode.plots.display import INK, PALE, Display, Style
from polymode.plots.sources import seeds_of, values_of
from polymode.prediction import DensityPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

LEVELS = np.linspace(0.05, 0.95, 19)


class RegressionCalibration(Display):
    """PIT histogram and coverage curve, each with the band of a calibrated prediction."""

    size = (5.6, 2.9)

    def plot(self, ax: Axes) -> Axes:
        """Draw the coverage curve alone."""
        self._coverage(ax)
        ax.set_title(self.title, color=INK)
        return ax

    def draw(self, figure: FigureBase) -> None:
        left, right = figure.subplots(1, 2)
        self._histogram(left)
        self._coverage(right)
        figure.suptitle(self.title, fontsize=9, color=INK)

    def _histogram(self, ax: Axes) -> None:
        data = self.data
        low, high = data["pit band"]
        ax.axhspan(low, high, color=PALE, alpha=0.35, lw=0)
        ax.axhline(1, color=PALE, linestyle="--", linewidth=1)
        for fill, alpha in ((True, 0.35), (False, 1.0)):
            ax.stairs(
                data["pit density"],
                data["pit edges"],
                fill=fill,
                color=self.style.color,
                alpha=alpha,
            )
        ax.set(xlim=(0, 1), ylim=(0, 1.15 * max(float(data["pit density"].max()), high)))
        ax.set(xlabel="PIT", ylabel="density")

    def _coverage(self, ax: Axes) -> None:
        data = self.data
        ax.plot([0, 1], [0, 1], color=PALE, linestyle="--", linewidth=1, zorder=1)
        where = np.concatenate([[0], data["level"], [1]])
        low, high = (np.concatenate([[0], data[f"band {end}"], [1]]) for end in ("low", "high"))
        ax.fill_between(where, low, high, color=PALE, alpha=0.35, lw=0)
        ax.plot(
            data["level"],
            data["coverage"],
            color=self.style.color,
            marker=self.style.marker,
            markersize=3.5,
            linewidth=1.3,
        )
        ax.set(xlim=(0, 1), ylim=(0, 1), xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
        ax.set(xlabel="level of the central interval", ylabel="share of targets inside")


def regression_calibration(
    results: Results | Sequence[Results],
    *,
    label: str = "",
    dataset: str = "test",
    num_bins: int = 10,
    style: Style | None = None,
) -> RegressionCalibration:
    """Return PIT histogram and coverage of one method: of one result, or of several seeds pooled.

    All outputs are pooled; seeds and outputs share the examples, so the bands are computed for the
    number of examples of one seed.

    Traps: a prediction that always gives the distribution of all targets looks perfect, so the
    caption gives sharpness and RMSE; central intervals hide a bias that the PIT shows; examples
    must be independent draws, not the even grid of a curve.

    Args:
        results: with `kept` predictions of a regression.
        label: the method's name in the figure; by default its registered one.
        dataset: "test", "shift:NAME:SEVERITY" or "ood:NAME", with targets.
        num_bins: of the PIT, at least 1. style: see `palette`.
    """
    check_call(regression_calibration, locals())
    if num_bins < 1:
        raise ValueError(f"`num_bins` of regression_calibration must be at least 1, got {num_bins}")
    several = seeds_of(results)
    pairs = [values_of(seed, dataset, "regression_calibration") for seed in several]
    n = len(pairs[0][0])
    data = _counted(pairs, num_bins)
    errors = [(p.mean.double() - y.double()).square().mean().item() for p, y in pairs]
    widths = [p.variance.double().mean().item() for p, _ in pairs]
    data["rmse"], data["sharpness"] = (np.sqrt([np.mean(v)]) for v in (errors, widths))
    shares = data["coverage"]
    label = label or several[0].method
    over = f", {len(several)} seeds pooled" if len(several) > 1 else ""
    gap = float(np.abs(shares - LEVELS).mean())
    off = int(((shares < data["band low"]) | (shares > data["band high"])).sum())
    return RegressionCalibration(
        data,
        label=label,
        style=style,
        caption="Left: PIT, uniform if calibrated (hump: too wide, U: too narrow, slope: biased)."
        f" Right: share of {dataset} targets inside central intervals (n = {n:,}{over}); below the"
        " diagonal the method is too sure. Bands: 90 % of calibrated predictions, bin by bin.",
        own=f"Sharpness {data['sharpness'][0]:.3g}, RMSE {data['rmse'][0]:.3g}.",
        alt=f"PIT histogram and interval coverage of {label}: mean gap between level and coverage"
        f" {gap:.3f}, {off} of {len(LEVELS)} levels outside the 90 % band of calibration;"
        f" sharpness {data['sharpness'][0]:.3g}, RMSE {data['rmse'][0]:.3g}.",
    )


def _counted(pairs: list[tuple[DensityPrediction, Tensor]], num_bins: int) -> dict[str, np.ndarray]:
    """Return histogram and coverage over all seeds, and the bands of one seed's examples."""
    from scipy.stats import binom

    n = len(pairs[0][0])
    places = np.concatenate([pit(*pair).cpu().numpy().ravel() for pair in pairs])
    counts, edges = np.histogram(places.clip(0, 1), num_bins, (0, 1))
    levels = LEVELS.tolist()
    return {
        "pit edges": edges,
        "pit density": counts * num_bins / len(places),
        "pit band": binom.ppf([0.05, 0.95], n, 1 / num_bins) * num_bins / n,
        "level": LEVELS,
        "coverage": np.mean([quantile_coverage(*p, levels).cpu().numpy() for p in pairs], 0),
        "band low": binom.ppf(0.05, n, LEVELS) / n,
        "band high": binom.ppf(0.95, n, LEVELS) / n,
    }
