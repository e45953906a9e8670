"""Confusion matrix: which classes are mistaken for which.

Row i, column j: the share of the examples of class i predicted as class j, seeds pooled. The
diagonal is the recall of each class. Colours are on a root scale, so that rare mistakes are visible
beside frequent correct answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from polymode.core.checks import check_call
from polymode.metrics.results import Results
from polymode.plots.display import INK, Display, Style
from polymode.plots.sources import classes_of, seeds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WRITTEN = 12  # largest number of classes whose counts are written into the cells
NAMED = 20  # largest number of classes named on the axes
LETTERS = 12  # of a class's name on the axes
DENSE = 30  # largest number of classes for which a page carries the numbers
MISTAKES = 2  # pairs of classes that the caption names
COLORS = "Blues"


class Confusion(Display):
    """Rows are the true classes, columns the predicted ones; counts where there is room."""

    size = (3.6, 3.4)

    def plot(self, ax: Axes) -> Axes:
        from matplotlib.colors import PowerNorm

        counts, names = self.data["count"], [str(name) for name in self.data["class"]]
        shares = shares_of(counts)
        ax.imshow(shares, cmap=COLORS, norm=PowerNorm(0.5, 0, 1), interpolation="none")
        if len(names) <= WRITTEN:
            for row, column in zip(*np.nonzero(counts), strict=True):
                ink = "white" if shares[row, column] > 0.4 else "#24292e"
                text = f"{int(counts[row, column]):,}"
                ax.text(column, row, text, ha="center", va="center", fontsize=5.5, color=ink)
        if len(names) <= NAMED:
            short = [name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…" for name in names]
            turn = 90 if max(map(len, short)) > 2 else 0
            places = range(len(names))
            ax.set_xticks(places, short, rotation=turn, fontsize=7)
            ax.set_yticks(places, short, fontsize=7)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set(xlabel="predicted class", ylabel="true class")
        ax.set_title(f"{self.title}\naccuracy {float(self.data['accuracy'][0]):.3f}", color=INK)
        return ax


def confusion(
    results: Results | Sequence[Results],
    *,
    label: str = "",
    dataset: str = "test",
    style: Style | None = None,
) -> Confusion:
    """Return the confusion matrix of one method: of one result, or of several seeds pooled.

    Traps: rows are shares of each true class, so rare classes look as weighty as frequent ones;
    read the counts. Pooled counts are of the same examples, once for each seed.

    Args:
        results: with `kept` predictions of classes.
        label: the method's name in the figure; by default its registered one.
        dataset: "test" or "shift:NAME:SEVERITY".
        style: see `palette`; the matrix does not use it.
    """
    check_call(confusion, locals())
    several = seeds_of(results)
    pairs = [classes_of(seed, dataset, "a confusion matrix") for seed in several]
    size = pairs[0][0].mean.shape[-1]
    counts = np.zeros((size, size))
    for prediction, labels in pairs:
        flat = labels.cpu() * size + prediction.classes.cpu()
        counts += torch.bincount(flat, minlength=size**2).reshape(size, size).numpy()
    names = class_names(several[0], size)
    right = float(np.trace(counts) / counts.sum())
    label = label or several[0].method
    over = f", {len(several)} seeds pooled" if len(several) > 1 else ""
    display = Confusion(
        {"class": np.array(names), "count": counts, "accuracy": np.array([right])},
        label=label,
        style=style,
        caption=f"Confusion matrix on {dataset} (n = {len(pairs[0][0]):,}{over}): rows are true"
        " classes, columns predicted ones; the colour is the share of the row, on a root scale.",
        own=_name_mistakes(counts, names),
        alt=f"Confusion matrix of {label}, {size} classes: accuracy {right:.3f}."
        f" {_name_mistakes(counts, names)}",
    )
    display.dense = size > DENSE
    return display


def class_names(results: Results, size: int) -> list[str]:
    """Return the names of the classes, their numbers where results have none."""
    names = list(results.class_names)
    return names if len(names) == size else [str(number) for number in range(size)]


def shares_of(counts: np.ndarray) -> np.ndarray:
    """Return each row divided by its sum; zeros where a class has no examples."""
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def _name_mistakes(counts: np.ndarray, names: list[str]) -> str:
    """Name the most frequent mistakes."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]
    pairs = [np.unravel_index(place, wrong.shape) for place in order]
    mistakes = [
        f"{names[i]} taken for {names[j]} ({int(wrong[i, j]):,} of {int(counts[i].sum()):,})"
        for i, j in pairs
        if wrong[i, j] > 0
    ]
    if not mistakes:
        return "No example was taken for another."
    return f"Most often: {'; '.join(mistakes)}."
