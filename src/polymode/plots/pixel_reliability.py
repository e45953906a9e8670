"""Reliability over pixels: is a class predicted with confidence p right in a share p of the pixels?

Top label, 15 bins of equal width, exact sums over all pixels. Pixels of an image are not
independent, so a bin's accuracy has an error over images: the delete-a-group jackknife of the ratio
of hits to pixels, with groups of images (`metrics/dense/sums.py`). The bars are 90 % intervals;
counting pixels would make them a hundred times too short.

`G` groups of images, `C` classes, `K` bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.metrics.results import Results
from polymode.plots.display import PALE, Display, Style
from polymode.plots.sources import seeds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

NORMAL = 1.645  # standard errors to each side of a 90 % interval


class PixelReliability(Display):
    """Accuracy against confidence with intervals over images, and the share of pixels above."""

    size = (3.6, 3.7)

    def plot(self, ax: Axes) -> Axes:
        data, color = self.data, self.style.color
        ax.plot([0, 1], [0, 1], color=PALE, linestyle="--", linewidth=1, zorder=1)
        ax.errorbar(
            data["confidence"],
            data["accuracy"],
            yerr=NORMAL * data["standard error"],
            color=color,
            marker=self.style.marker,
            linewidth=1.3,
            elinewidth=1,
            capsize=2,
        )
        start = float(np.floor(10 * min(data["confidence"].min(), data["accuracy"].min())) / 10)
        ax.set(xlim=(start, 1.02), ylim=(start, 1.02))
        ax.set(xlabel="confidence in the top label", ylabel="share of pixels that are right")
        ax.set_title(f"{self.title}\nECE {float(data['ece'][0]):.3f}")
        return ax

    def draw(self, figure: FigureBase) -> None:
        strip, main = figure.subplots(2, 1, sharex=True, height_ratios=(1, 5))
        self.plot(main)
        edges, share = self.data["edges"], self.data["share"]
        strip.stairs(share, edges, fill=True, color=self.style.color, alpha=0.6)
        strip.set_ylabel("share of\npixels", fontsize=7.5)
        strip.tick_params(labelsize=7)
        strip.set_title(main.get_title())
        main.set_title("")


def pixel_reliability(
    results: Results | Sequence[Results], *, label: str = "", style: Style | None = None
) -> PixelReliability:
    """Return the diagram over the pixels of the test set, of one result or of seeds pooled.

    Traps: a bin with few images has a wide bar, however many pixels it has; this concerns the top
    label, not every class.

    Args:
        results: of `evaluate` on a task with a label at each pixel.
        label: the method's name in the figure; by default its registered one.
        style: see `palette`.
    """
    check_call(pixel_reliability, locals())
    several = seeds_of(results)
    missing = [r.method for r in several if "bins" not in r.arrays.get("pixels", {})]
    if missing:
        raise ValueError(
            f"these results of {missing[0]} have no bins of pixels: evaluate makes them for tasks"
            " with a label at each pixel; else see plots.reliability"
        )
    bins = sum(np.asarray(r.arrays["pixels"]["bins"], dtype=float).sum(1) for r in several)
    assert isinstance(bins, np.ndarray)  # (G, K, 3)
    data = _data(bins)
    label = label or several[0].method
    over = f", {len(several)} seeds pooled" if len(several) > 1 else ""
    pixels = float(bins[..., 0].sum())
    return PixelReliability(
        data,
        label=label,
        style=style,
        caption="Share of pixels that are right against confidence on test"
        f" ({pixels:,.0f} pixels in {len(bins)} groups of images{over}), bins of equal width."
        " Bars: 90 % intervals over"
        " images. Strip above: how often each confidence occurs.",
        own=f"ECE {float(data['ece'][0]):.3f}.",
        alt=f"Reliability over pixels of {label}: ECE {float(data['ece'][0]):.3f};"
        f" {_off(data)} of {len(data['confidence'])} bins are off the diagonal by more than their"
        " 90 % interval.",
    )


def _data(bins: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is drawn of counts, confidences and hits by group, (G, K, 3)."""
    total = bins.sum(0)
    full = total[:, 0] > 0
    counts, confidences, hits = total[full].T
    groups = len(bins)
    rest = total[full] - bins[:, full]  # (G, k, 3): without each group
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(rest[..., 0] > 0, rest[..., 2] / rest[..., 0], np.nan)
    deviations = ratios - np.nanmean(ratios, 0)
    error = np.sqrt((groups - 1) / groups * np.nansum(np.square(deviations), 0))
    error = np.where(np.isnan(ratios).any(0), np.nan, error)  # one group has all of a bin
    gaps = np.abs(hits - confidences).sum() / counts.sum()
    return {
        "confidence": confidences / counts,
        "accuracy": hits / counts,
        "standard error": error,
        "count": counts,
        "share": total[:, 0] / counts.sum(),
        "edges": np.linspace(0, 1, len(total) + 1),
        "ece": np.array([gaps]),
    }


def _off(data: dict[str, np.ndarray]) -> int:
    """Return how many bins are off the diagonal by more than their interval."""
    gap = np.abs(data["accuracy"] - data["confidence"])
    return int((gap > NORMAL * data["standard error"]).sum())
