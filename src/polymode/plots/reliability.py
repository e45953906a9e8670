"""Reliability diagram: is a class predicted with probability p right with frequency p?

Top label, 15 bins of equal mass: most bins of equal width would be empty, since networks are mostly
sure. Equal confidences stay in one bin, so there may be fewer bins than asked for.

If the confidences are right, the band contains the accuracy of a bin in 90 % of all samples of this
size: labels are drawn from the confidences themselves (consistency resampling; J. Bröcker,
L. A. Smith, Increasing the reliability of reliability diagrams, Weather and Forecasting 22, 2007).
Unlike a bootstrap of the accuracies, it does not shrink to nothing where all of a bin are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch

from polymode.core.checks import Range, check_call
from polymode.metrics.calibration import adaptive_ece, debiased_ece, ece, reliability_bins
from polymode.metrics.results import Results
from polymode.metrics.score import NotDefined
from polymode.plots.display import INK, PALE, Display, Style
from polymode.plots.sources import classes_of, seeds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

DRAWS = 1000  # samples of labels behind the band
ERRORS = {"ece": ece, "adaptive ece": adaptive_ece, "debiased ece": debiased_ece}


class Reliability(Display):
    """Accuracy against confidence with a band of chance, and how often each confidence occurs."""

    size = (3.6, 3.7)

    def plot(self, ax: Axes) -> Axes:
        data, color = self.data, self.style.color
        start = float(data["start"][0])
        ax.plot([0, 1], [0, 1], color=PALE, linestyle="--", linewidth=1, zorder=1)
        where = data["confidence"]
        ax.fill_between(where, data["band low"], data["band high"], color=PALE, alpha=0.35, lw=0)
        ax.plot(where, data["accuracy"], marker=self.style.marker, color=color, linewidth=1.3)
        margin = 0.02 * (1 - start)
        ax.set(xlim=(start, 1 + margin), ylim=(start, 1 + 2 * margin))
        ax.set(xlabel="confidence in the top label", ylabel="accuracy")
        ax.set_title(f"{self.title}\nECE {float(data['ece'][0]):.3f}", color=INK)
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
    start: Annotated[float, Range("in [0, 1)", lambda start: 0 <= start < 1)] = 0.0,
    style: Style | None = None,
) -> Reliability:
    """Return the diagram of one method: of one result, or of several seeds pooled.

    Seeds share the examples, so the band is that of one seed's count.

    Traps: bins of equal width would be empty where a network is never unsure; this concerns the top
    label, not every class; chance makes the ECE larger than 0, so compare it with the debiased one.

    Args:
        results: with `kept` predictions of classes.
        label: the method's name in the figure; by default its registered one.
        dataset: "test" or "shift:NAME:SEVERITY".
        num_bins: of equal mass, at least 1.
        start: of both axes, which end at 1; see `default_start`.
        style: see `palette`.
    """
    check_call(reliability, locals())
    several = seeds_of(results)
    pairs = [classes_of(seed, dataset, "a reliability diagram") for seed in several]
    confidence, hit = pooled(several, dataset, "a reliability diagram")
    data = bins_of_equal_mass(confidence, hit, num_bins, len(several))
    data["histogram"], data["histogram_edges"] = np.histogram(confidence, 25, (start, 1))
    for name, error in ERRORS.items():
        try:
            data[name] = np.array([np.mean([error(*pair).value for pair in pairs])])
        except NotDefined:  # debiased: no bin has two examples
            data[name] = np.array([np.nan])
    data["start"] = np.array([start])
    label = label or several[0].method
    over = f", {len(several)} seeds pooled" if len(several) > 1 else ""
    errors = ", ".join(_format_error(name, float(data[name][0])) for name in ERRORS)
    return Reliability(
        data,
        label=label,
        style=style,
        caption=f"Accuracy against confidence in the top label on {dataset} (n ="
        f" {len(pairs[0][0]):,}{over}), bins of equal mass. Band: where the bins of a calibrated"
        " method fall 90 % of the time. Strip above: how often each confidence occurs.",
        own=f"{len(data['count'])} bins; {errors}.",
        alt=f"Reliability diagram of {label}: {errors}; mean confidence {confidence.mean():.3f},"
        f" accuracy {hit.mean():.3f}; {off_by_more_than_chance(data).sum()} of"
        f" {len(data['count'])} bins are outside the 90 % band of a calibrated method.",
    )


def default_start(displays: Sequence[Reliability]) -> float:
    """Return a round number below all bins and bands, for axes shared by several diagrams."""
    keys = ("confidence", "accuracy", "band low")
    least = min(float(display.data[key].min()) for display in displays for key in keys)
    return float(np.floor(10 * max(least, 0.0)) / 10)


def pooled(results: Sequence[Results], dataset: str, plot: str) -> tuple[np.ndarray, np.ndarray]:
    """Return top-label confidences and hits, 0 or 1, of all seeds one after the other."""
    parts = []
    for seed in results:
        prediction, labels = classes_of(seed, dataset, plot)
        hit = prediction.classes == labels.to(prediction.classes.device)
        parts.append((prediction.confidence.double().clamp(max=1), hit.double()))
    confidence, hits = (torch.cat([part[i] for part in parts]).cpu().numpy() for i in (0, 1))
    return confidence, hits


def bins_of_equal_mass(
    confidence: np.ndarray, hit: np.ndarray, num_bins: int, num_seeds: int = 1
) -> dict[str, np.ndarray]:
    """Return means, count and band of each bin that is not empty.

    Args:
        confidence, hit: (n,), the seeds one after the other, each of the same examples.
    """
    if num_bins < 1:
        raise ValueError(f"`num_bins` of a diagram must be at least 1, got {num_bins}")
    bins = reliability_bins(torch.as_tensor(confidence), torch.as_tensor(hit), num_bins, "mass")
    full = (bins.count > 0).numpy()
    count, mean, accuracy, upper = (
        part.numpy()[full] for part in (bins.count, bins.confidence, bins.accuracy, bins.upper)
    )
    where = np.searchsorted(upper[:-1], confidence)
    band = consistency_band(confidence, where, len(count), num_seeds)
    return {
        "confidence": mean,
        "accuracy": accuracy,
        "count": count,
        "band low": band[0],
        "band high": band[1],
    }


def consistency_band(
    confidence: np.ndarray, where: np.ndarray, num_bins: int, num_seeds: int = 1
) -> np.ndarray:
    """Return the 5 % and 95 % quantiles (2, num_bins) of the bins' accuracies if calibrated.

    A top label is right if a uniform number, drawn for each example and shared by the seeds, is
    below the confidence. The result is the same at each call.

    Args:
        where: (n,) the bin of each confidence.
    """
    stream = np.random.default_rng(0)
    order = np.argsort(where, kind="stable")
    starts = np.searchsorted(where[order], np.arange(num_bins))
    count = np.bincount(where, minlength=num_bins)
    level = confidence.astype(np.float32)
    parts, rows = [], max(1, min(DRAWS, 2_000_000 // len(level)))
    for first in range(0, DRAWS, rows):
        shape = min(rows, DRAWS - first), len(level) // num_seeds
        drawn = np.tile(stream.random(shape, dtype=np.float32), num_seeds)
        hits = (drawn < level)[:, order].astype(np.float32)
        parts.append(np.add.reduceat(hits, starts, axis=1) / count)
    return np.quantile(np.concatenate(parts), [0.05, 0.95], axis=0)


def off_by_more_than_chance(bins: dict[str, np.ndarray]) -> np.ndarray:
    """Return which bins have an accuracy outside their band; of a calibrated method, one in ten."""
    return (bins["accuracy"] < bins["band low"]) | (bins["accuracy"] > bins["band high"])


def _format_error(name: str, value: float) -> str:
    title = name.replace("ece", "ECE")
    return f"{title} n/a" if np.isnan(value) else f"{title} {value:.3f}"
