"""Reliability diagram: is a class named with probability p right with frequency p?

Top label, 15 bins of equal mass: of equal width most would be empty, networks being mostly sure.
Equal confidences stay in one bin, so there may be fewer bins than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polymode.metrics.classification import ece
from polymode.metrics.results import Kept, Results
from polymode.plots.display import INK, PALE, Display, Style
from polymode.prediction import CategoricalPrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Z90 = 1.6448536269514722  # of a two-sided 90 % interval


class Reliability(Display):
    """Accuracy against confidence with 90 % intervals, and a strip of how often each is claimed."""

    size = (3.6, 3.7)

    def plot(self, ax: Axes) -> Axes:
        data, color = self.data, self.style.color
        ax.plot([0, 1], [0, 1], color=PALE, linestyle="--", linewidth=1, zorder=1)
        reach = np.abs(np.stack([data["low"], data["high"]]) - data["accuracy"])
        ax.errorbar(
            data["confidence"],
            data["accuracy"],
            yerr=reach,
            fmt=self.style.marker,
            color=color,
            ecolor=color,
            elinewidth=0.9,
            linestyle="-",
        )
        start = float(data["start"][0])
        margin = 0.02 * (1 - start)
        ax.set(xlim=(start, 1 + margin), ylim=(start, 1 + 2 * margin))
        ax.set(xlabel="confidence", ylabel="accuracy")
        ax.set_title(f"{self.label}\nECE {float(data['ece'][0]):.3f}", color=INK)
        return ax

    def draw(self, figure: FigureBase) -> None:
        strip, main = figure.subplots(2, 1, sharex=True, height_ratios=(1, 5))
        self.plot(main)
        edges, counts = self.data["histogram_edges"], self.data["histogram"]
        strip.stairs(counts, edges, fill=True, color=self.style.color, alpha=0.6)
        strip.set_ylabel("count", fontsize=7.5)
        strip.set_yticks([0, int(counts.max())])
        strip.tick_params(labelsize=7)
        strip.set_title(main.get_title(), color=INK)
        main.set_title("")


def reliability(
    results: Results | Sequence[Results],
    *,
    label: str = "",
    dataset: str = "test",
    num_bins: int = 15,
    start: float = 0.0,
    style: Style | None = None,
) -> Reliability:
    """Return the diagram of one method: of one result, or of several seeds pooled.

    The intervals are Wilson's, 90 %, for the count of one seed: the seeds share the examples.

    Args:
        results: with `kept` predictions of classes.
        label: the method's name in the figure; by default its registered one.
        dataset: "test" or "shift:NAME:SEVERITY".
        num_bins: of equal mass, at least 1.
        start: of both axes, which end at 1; see `default_start`.
        style: see `palette`.
    """
    several = [results] if isinstance(results, Results) else list(results)
    kept = [_kept(each, dataset) for each in several]
    parts = [(k.prediction.confidence, k.prediction.classes == k.targets) for k in kept]  # type: ignore[attr-defined]
    confidence, hit = (
        np.concatenate([part[i].cpu().numpy().astype(np.float64) for part in parts]) for i in (0, 1)
    )
    data = bins_of_equal_mass(confidence, hit, num_bins)
    data["low"], data["high"] = wilson(data["accuracy"], data["count"] / len(several))
    data["histogram"], data["histogram_edges"] = np.histogram(confidence, 25, (start, 1))
    errors = [ece(k.prediction, k.targets).value for k in kept if k.targets is not None]
    data["ece"], data["start"] = np.array([np.mean(errors)]), np.array([start])
    label = label or several[0].method
    n = len(kept[0].prediction)
    over = f", {len(several)} seeds pooled" if len(several) > 1 else ""
    return Reliability(
        data,
        label=label,
        style=style or Style(),
        caption=f"Top-label confidence against accuracy on {dataset} (n = {n:,}{over}) in"
        f" {len(data['count'])} bins of equal mass; bars: 90 % Wilson intervals; above: how often"
        " a confidence is given.",
        alt=f"Reliability diagram of {label}: ECE {data['ece'][0]:.3f}; mean confidence"
        f" {confidence.mean():.3f}, accuracy {hit.mean():.3f}.",
    )


def default_start(displays: Sequence[Reliability]) -> float:
    """Return a round number below all bins and intervals, for axes shared by several diagrams."""
    least = min(min(d.data["confidence"].min(), d.data["low"].min()) for d in displays)
    return float(np.floor(10 * max(least, 0.0)) / 10)


def bins_of_equal_mass(
    confidence: np.ndarray, hit: np.ndarray, num_bins: int
) -> dict[str, np.ndarray]:
    """Return mean confidence, accuracy and count of each bin; ties are never torn apart."""
    if num_bins < 1:
        raise ValueError(f"`num_bins` of reliability must be at least 1, got {num_bins}")
    inner = np.quantile(confidence, np.linspace(0, 1, num_bins + 1)[1:-1], method="higher")
    which = np.searchsorted(np.unique(inner), confidence, side="right")
    count = np.bincount(which)
    full = count > 0
    return {
        "confidence": np.bincount(which, confidence)[full] / count[full],
        "accuracy": np.bincount(which, hit)[full] / count[full],
        "count": count[full],
    }


def wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's 90 % interval of a share seen in `count` trials."""
    shrink = 1 + Z90**2 / count
    middle = (share + Z90**2 / (2 * count)) / shrink
    reach = Z90 / shrink * np.sqrt(share * (1 - share) / count + Z90**2 / (4 * count**2))
    low, high = middle - reach, middle + reach
    return np.minimum(low, share), np.maximum(high, share)  # rounding at shares of 0 and 1


def _kept(results: Results, dataset: str) -> Kept:
    kept = results.kept.get(dataset)
    if kept is None or kept.targets is None:
        raise ValueError(
            f"these results keep no prediction of '{dataset}' with targets; `kept` is not part of"
            " the JSON: take what `evaluate` returned"
        )
    if not isinstance(kept.prediction, CategoricalPrediction):
        raise ValueError("a reliability diagram is of classes; for regression see regression_band")
    return kept
