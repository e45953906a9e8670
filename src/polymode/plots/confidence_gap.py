"""Confidence − accuracy: which methods are overconfident, and where; several in one figure.

The axis of confidence is logarithmic in 1 − p, since networks are mostly confident and differ above
0.9 (as in W. Maddox et al., A simple baseline for Bayesian uncertainty in deep learning, NeurIPS
2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.axes import zero_line
from polymode.plots.display import Style, palette
from polymode.plots.lines import LineDisplay
from polymode.plots.reliability import bins_of_equal_mass, off_by_more_than_chance, pooled
from polymode.plots.sources import Source, by_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUREST = 1e-4  # of 1 − confidence: below, a bin is drawn here
TICKS = (0.0, 0.5, 0.9, 0.99, 0.999)
CLOSEST = 0.18  # share of the axis between two ticks
MORE_TICKS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.95, 0.98, 0.995, 0.998)


class ConfidenceGap(LineDisplay):
    """One line per method around zero: above it too sure, below it not sure enough."""

    size = (4.2, 3.3)

    def _lines(self, ax: Axes) -> None:
        zero_line(ax)
        for label, style in self.styles.items():
            remainder = np.maximum(1 - self.data[f"{label} confidence"], SUREST)
            gap, clear = self.data[f"{label} gap"], self.data[f"{label} clear"] > 0
            look: dict[str, Any] = {"color": style.color, "marker": style.marker}
            ax.plot(remainder, gap, linewidth=1.2, label=label, **look)
            ax.plot(remainder[~clear], gap[~clear], linestyle="", markerfacecolor="white", **look)
        ax.set_xscale("log")
        ax.invert_xaxis()
        low, high = sorted(ax.get_xlim())
        ticks = [tick for tick in TICKS if low <= 1 - tick <= high]
        if len(ticks) < 3:
            ticks = _apart([t for t in sorted(TICKS + MORE_TICKS) if low <= 1 - t <= high])
        ax.set_xticks([1 - tick for tick in ticks], [f"{tick:g}" for tick in ticks])
        ax.xaxis.minorticks_off()
        ax.set_xlabel("confidence in the top label")
        ax.set_ylabel("confidence − accuracy\n(too sure: above 0)")
        ax.margins(y=0.08)


def _apart(ticks: list[float]) -> list[float]:
    """Return the ticks that are far enough apart in log(1 − p) for their names.

    >>> _apart([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    [0.1, 0.5, 0.8, 0.9, 0.95]
    """
    spaced: list[float] = []
    span = np.log((1 - ticks[0]) / (1 - ticks[-1])) if ticks else 0.0
    for tick in ticks:
        if not spaced or np.log((1 - spaced[-1]) / (1 - tick)) >= CLOSEST * span:
            spaced.append(tick)
    return spaced


def confidence_gap(
    source: Source,
    *,
    dataset: str = "test",
    num_bins: int = 15,
    styles: dict[str, Style] | None = None,
) -> ConfidenceGap:
    """Return confidence − accuracy in bins of equal mass, all methods in one, seeds pooled.

    Filled points are off by more than chance: outside the 90 % band of `reliability`.

    Traps: this is about the top label, not class by class; each method has its own bins, so points
    of two methods do not line up; a bin with a confidence above 0.9999 is drawn at 0.9999.

    Args:
        source: a leaderboard, results by label, or results; with `kept` predictions of classes.
        dataset: "test" or "shift:NAME:SEVERITY".
        num_bins: at least 1. styles: one per label, see `palette`.
    """
    check_call(confidence_gap, locals())
    groups = by_label(source)
    data: dict[str, np.ndarray] = {}
    means = {}
    for label, several in groups.items():
        confidence, hit = pooled(several, dataset, "confidence_gap")
        bins = bins_of_equal_mass(confidence, hit, num_bins, len(several))
        data[f"{label} confidence"] = bins["confidence"]
        data[f"{label} gap"] = bins["confidence"] - bins["accuracy"]
        data[f"{label} clear"] = off_by_more_than_chance(bins).astype(float)
        means[label] = confidence.mean() - hit.mean()
    n = len(pooled(next(iter(groups.values()))[:1], dataset, "confidence_gap")[0])
    overall = ", ".join(f"{label} {mean:+.3f}" for label, mean in means.items())
    seeds = max(map(len, groups.values()))
    over = f", {seeds} seeds pooled" if seeds > 1 else ""
    return ConfidenceGap(
        data,
        label=f"confidence − accuracy, {dataset}",
        styles=styles or palette(groups),
        caption=f"Confidence minus accuracy on {dataset} (n = {n:,}{over}), bins of equal mass."
        " Above 0 a method is too sure. Filled points: more than chance explains (90 %).",
        own=f"Overall: {overall}.",
        alt=f"Confidence minus accuracy against confidence; over all examples: {overall}.",
    )
