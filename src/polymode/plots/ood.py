"""Histograms of an uncertainty score on the test set and on OOD sets, on shared bins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.core.registry import suggest
from polymode.metrics.ood import SCORES, auroc
from polymode.metrics.results import Results
from polymode.plots.display import INK, PALE, Display, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = ("-", "--", ":", "-.")
UNITS = {"predictive_entropy": "nats", "mutual_information": "nats"}
LOG = ("variance", "epistemic_variance")  # scores that span orders of magnitude
SMALLEST = 1e-6  # of the largest score: below, all is in the first bin of a logarithmic axis


class OODHistogram(Display):
    """The test set filled, each OOD set a line; the better they are apart, the better."""

    def plot(self, ax: Axes) -> Axes:
        edges, score = self.data["edges"], str(self.data["score"][0])
        ax.stairs(self.data["test"], edges, fill=True, color=PALE, label="test")
        names = [key for key in self.data if key.startswith("ood:")]
        for number, name in enumerate(names):
            area = float(self.data[f"auroc {name}"][0])
            ax.stairs(
                self.data[name],
                edges,
                color=self.style.color,
                linestyle=LINES[number % len(LINES)],
                linewidth=1.6,
                label=f"{name.removeprefix('ood:')}: AUROC {area:.3f}",
            )
        unit = UNITS.get(score)
        ax.set_yscale("function", functions=(np.sqrt, np.square))
        ax.set(xlabel=score.replace("_", " ") + (f" [{unit}]" if unit else ""))
        ax.set_ylabel("share of inputs, root scale")
        if score in LOG:
            from matplotlib.ticker import NullFormatter

            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlim(edges[0], edges[-1])
        ax.set_yticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
        ax.set_title(self.label, color=INK)
        ax.legend(loc="upper right")
        highest = max(float(self.data[key].max()) for key in ["test", *names])
        ax.set_ylim(0, 1.9 * highest)  # room for the legend
        return ax


def ood_histogram(
    results: Results,
    *,
    score: str = "predictive_entropy",
    label: str = "",
    limits: tuple[float, float] | None = None,
    num_bins: int = 25,
    style: Style | None = None,
) -> OODHistogram:
    """Return the histograms of one result.

    Args:
        results: with `kept` predictions of the test set and of OOD sets.
        score: one of `metrics.ood.SCORES`; high means rather OOD.
        label: the method's name in the figure; by default its registered one.
        limits: of the shared bins; by default the range of all scores. Give the same to compare.
        num_bins: at least 1. style: see `palette`.
    """
    if score not in SCORES:
        raise ValueError(f"Unknown score '{score}'.{suggest(score, SCORES)} Known: {list(SCORES)}")
    values = scores(results, score)
    outside = [name for name in values if name != "test"]
    if "test" not in values or not outside:
        raise ValueError("these results keep no predictions of the test set and of an OOD set")
    every = np.concatenate(list(values.values()))
    edges = _edges(*(limits or (float(every.min()), float(every.max()))), num_bins, score in LOG)
    data: dict[str, np.ndarray] = {"edges": edges, "score": np.array([score])}
    for name, each in values.items():
        data[name] = np.histogram(np.clip(each, edges[0], edges[-1]), edges)[0] / len(each)
    kept = results.kept
    for name in outside:
        pair = (SCORES[score](kept[key].prediction) for key in ("test", name))
        data[f"auroc {name}"] = np.array([auroc(*pair).value])
    label = label or results.method
    areas = ", ".join(f"{n.removeprefix('ood:')} {data[f'auroc {n}'][0]:.3f}" for n in outside)
    counts = ", ".join(f"{n.removeprefix('ood:')} {len(values[n]):,}" for n in values)
    return OODHistogram(
        data,
        label=label,
        style=style or Style(),
        caption=f"{score.replace('_', ' ').capitalize()} of test and OOD inputs (n: {counts}; seed"
        f" {results.seed}). AUROC has OOD as the positive class.",
        alt=f"Histograms of {score.replace('_', ' ')} of {label}; AUROC against the test set:"
        f" {areas}.",
    )


def _edges(low: float, high: float, num_bins: int, log: bool) -> np.ndarray:
    """Return the bins' edges, evenly spaced, or evenly spaced in the logarithm."""
    if not log:
        return np.linspace(low, high if high > low else low + 1, num_bins + 1)
    high = high if high > 0 else 1.0
    low = min(max(low, high * SMALLEST), high / 10)
    edges = np.geomspace(low, high, num_bins + 1)
    edges[0], edges[-1] = low, high  # geomspace rounds, and the extremes must stay inside
    return edges


def scores(results: Results, score: str) -> dict[str, np.ndarray]:
    """Return the scores of the test set and of each OOD set that is kept."""
    return {
        name: SCORES[score](kept.prediction).double().cpu().numpy()
        for name, kept in results.kept.items()
        if name == "test" or name.startswith("ood:")
    }
