"""Histograms of an uncertainty score on the test set and on OOD sets, with shared bins.

Heights are shares of each set, so that sets of different sizes can be compared. Two mistakes are
possible, and the figure reports both: a test input flagged, and an OOD input accepted. Seeds are
pooled in the histograms; AUROC and the other measures are means over seeds, as in tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.metrics.ood import SCORES, aupr_in, aupr_out, auroc, fpr95
from polymode.metrics.results import Results
from polymode.plots.axes import plain_log
from polymode.plots.display import INK, PALE, Display, Style
from polymode.plots.sources import numbers, seeds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = ("-", "--", ":", "-.")
UNITS = {"predictive_entropy": "nats", "mutual_information": "nats"}
LOG = ("variance", "epistemic_variance")  # scores that span orders of magnitude
SMALLEST = 1e-6  # of the largest score: below, all is in the first bin of a logarithmic axis


class OODHistogram(Display):
    """The test set filled, each OOD set a line; the less they overlap, the better."""

    size = (3.6, 2.7)

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
                label=f"{_bare(name)}: AUROC {area:.3f}",
            )
        unit = UNITS.get(score)
        ax.set_yscale("function", functions=(np.sqrt, np.square))
        ax.set_xlabel(score.replace("_", " ") + (f" [{unit}]" if unit else "") + ", OOD →")
        ax.set_ylabel("share of inputs, root scale")
        if score in LOG:
            ax.set_xscale("log")
        ax.set_xlim(edges[0], edges[-1])
        if score in LOG:
            plain_log(ax.xaxis)
        ax.set_yticks([0, 0.05, 0.25, 0.5, 1])
        ax.set_title(self.title, color=INK)
        ax.legend(loc="upper right")
        highest = max(float(self.data[key].max()) for key in ["test", *names])
        ax.set_ylim(0, 2.4 * highest)  # room for the legend
        return ax


def ood_histogram(
    results: Results | Sequence[Results],
    *,
    score: str = "predictive_entropy",
    label: str = "",
    limits: tuple[float, float] | None = None,
    num_bins: int = 25,
    style: Style | None = None,
) -> OODHistogram:
    """Return the histograms of one method, with AUROC, FPR95 and AUPR against each OOD set.

    Several seeds are pooled in the histograms, and the measures are means over them.

    Traps: the direction of the score: here higher means more likely OOD, and OOD is the positive
    class except for AUPR-in. AUPR depends on the sizes of the sets. Papers define FPR95 in two
    ways, so both are given: test inputs flagged where 95 % of OOD inputs are found, and OOD inputs
    accepted where 95 % of test inputs are.

    Args:
        results: one, or several seeds, with `kept` predictions of the test set and of OOD sets.
        score: one of `metrics.ood.SCORES`; higher means more likely OOD.
        label: the method's name in the figure; by default its registered one.
        limits: of the shared bins; by default the range of all scores. Give the same limits to
            compare methods.
        num_bins: at least 1. style: see `palette`.
    """
    check_call(ood_histogram, locals())
    if score not in SCORES:
        raise ValueError(f"Unknown score '{score}'.{suggest(score, SCORES)} Known: {list(SCORES)}")
    several = seeds_of(results)
    seeds = [scores(each, score) for each in several]
    values = {name: np.concatenate([each[name] for each in seeds]) for name in _in_all(seeds)}
    outside = [name for name in values if name != "test"]
    if "test" not in values or not outside:
        raise ValueError("these results keep no predictions of the test set and of an OOD set")
    every = np.concatenate(list(values.values()))
    edges = _edges(*(limits or (float(every.min()), float(every.max()))), num_bins, score in LOG)
    data: dict[str, np.ndarray] = {"edges": edges, "score": np.array([score])}
    for name, each in values.items():
        data[name] = np.histogram(np.clip(each, edges[0], edges[-1]), edges)[0] / len(each)
    for name in outside:
        measured = [measures(each["test"], each[name]) for each in seeds]
        for measure in measured[0]:
            data[f"{measure} {name}"] = np.array([np.mean([each[measure] for each in measured])])
    label = label or several[0].method
    words = score.replace("_", " ")
    counts = ", ".join(f"{_bare(n)} {len(seeds[0][n]):,}" for n in values)
    over = f"{len(several)} seeds pooled" if len(several) > 1 else f"seed {several[0].seed}"
    mean = ", mean over seeds" if len(several) > 1 else ""
    separations = "; ".join(
        f"{_bare(name)} {_describe(data, name)}{_areas(data, name)}" for name in outside
    )
    return OODHistogram(
        data,
        label=label,
        style=style,
        caption=f"{words.capitalize()} of test and OOD inputs (n: {counts}; {over}); higher means"
        " more likely OOD, and OOD is the positive class. FPR95: test inputs flagged where 95 % of"
        " OOD inputs are found (in brackets: OOD inputs accepted where 95 % of test inputs are)"
        f"{mean}.",
        own=f"{'; '.join(f'{_bare(name)}: {_describe(data, name)}' for name in outside)}.",
        alt=f"Histograms of {words} of {label}, higher for OOD. Test set against {separations}.",
    )


def measures(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """Return how well scores separate an OOD set from the test set; both mistakes count."""
    test, ood = torch.as_tensor(inside), torch.as_tensor(outside)
    return {
        "auroc": auroc(test, ood).value,
        "fpr95": fpr95(test, ood).value,
        "fpr95 reversed": fpr95(-ood, -test).value,
        "aupr out": aupr_out(test, ood).value,
        "aupr in": aupr_in(test, ood).value,
    }


def _describe(data: dict[str, np.ndarray], name: str) -> str:
    area, flagged, accepted = (
        float(data[f"{measure} {name}"][0]) for measure in ("auroc", "fpr95", "fpr95 reversed")
    )
    return f"AUROC {area:.3f}, FPR95 {flagged:.3f} ({accepted:.3f})"


def _areas(data: dict[str, np.ndarray], name: str) -> str:
    """Say the areas with OOD and with the test set as the positive class."""
    out, test = (float(data[f"aupr {side} {name}"][0]) for side in ("out", "in"))
    return f", AUPR {out:.3f} with OOD positive and {test:.3f} with the test set positive"


def _in_all(seeds: Sequence[dict[str, np.ndarray]]) -> list[str]:
    """Return the data sets that every seed has."""
    return [name for name in seeds[0] if all(name in seed for seed in seeds)]


def _bare(name: str) -> str:
    return name.removeprefix("ood:")


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
        name: numbers(SCORES[score](results.kept[name].prediction))
        for name in results.kept
        if name == "test" or name.startswith("ood:")
    }
