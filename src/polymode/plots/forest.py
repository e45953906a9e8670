"""Paper versus ours: is each number of a table reproduced within its tolerance?

Every row is drawn in units of its own tolerance, (ours − paper) / tolerance, so that one figure can
hold different metrics: the band from −1 to 1 counts as reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.display import INK, LETTER, OKABE_ITO, PALE, Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIEW = 3.0  # tolerances to either side; points farther away are arrows at the edge
VERDICTS = {
    "reproduced": ("✓", OKABE_ITO[2]),
    "better": ("↗", OKABE_ITO[0]),
    "outside": ("✗", OKABE_ITO[1]),
    "n/a": ("–", PALE),
}
HEIGHT = 0.25  # inches a row


class Comparison(NamedTuple):
    """One number of a paper compared with ours.

    Attributes:
        label: what it is, such as "deep ensemble, CIFAR-10, NLL".
        paper: its value. paper_spread: the paper's ±, None if it has none.
        ours: mean over our seeds, None if it was not run. standard_error: of that, None if unknown.
        tolerance: largest difference that counts as reproduced, > 0, in the same unit.
        unit: of all of them. direction: "up" or "down" is better, "" if neither.
    """

    label: str
    paper: float
    paper_spread: float | None
    ours: float | None
    standard_error: float | None
    tolerance: float
    unit: str = ""
    direction: str = ""

    @property
    def deviation(self) -> float:
        """How many tolerances ours is above the paper's; NaN if it was not run."""
        return math.nan if self.ours is None else (self.ours - self.paper) / self.tolerance

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: within the tolerance, outside and better, outside, or not run."""
        if self.ours is None:
            return "n/a"
        if abs(self.ours - self.paper) <= self.tolerance:
            return "reproduced"
        up = self.ours > self.paper
        return "better" if self.direction == ("up" if up else "down") else "outside"


class Forest(Display):
    """A row per number: the tolerance as a band, the paper at 0, ours coloured by verdict."""

    def plot(self, ax: Axes) -> Axes:
        data = self.data
        rows = np.arange(len(data["deviation"]))[::-1]
        ax.axvspan(-1, 1, color=PALE, alpha=0.3, lw=0)
        ax.axvline(0, color=PALE, linewidth=1)
        spread = np.nan_to_num(data["paper spread"]).clip(max=VIEW)
        ax.barh(rows, 2 * spread, left=-spread, height=0.16, color=PALE, zorder=2)
        for row, place, error, verdict in zip(
            rows, data["deviation"], data["s.e."], data["verdict"], strict=True
        ):
            sign, color = VERDICTS[str(verdict)]
            if verdict != "n/a":
                beyond = abs(place) > VIEW
                shape = ("<" if place < 0 else ">") if beyond else "o"
                reach = 0.0 if beyond else float(np.nan_to_num(error))
                ax.errorbar(
                    np.clip(place, -VIEW, VIEW),
                    row,
                    xerr=reach,
                    marker=shape,
                    color=color,
                    markersize=5.5,
                    elinewidth=1.4,
                )
            ax.text(1.07 * VIEW, row, sign, color=color, va="center", ha="left", fontsize=10)
        words = ax.twinx()  # the numbers are its tick labels, so the layout makes room for them
        words.set_ylim(-0.7, len(rows) - 0.3)
        texts = [*(str(text) for text in data["words"]), "paper → ours (tolerance)"]
        words.set_yticks([*rows, len(rows) - 0.4], texts, fontsize=7.5)
        words.tick_params(axis="y", length=0, pad=18)
        words.spines[:].set_visible(False)
        ax.set_yticks(rows, [str(label) for label in data["label"]])
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set(xlim=(-1.05 * VIEW, 1.05 * VIEW), ylim=(-0.7, len(rows) - 0.3))
        ax.set_xticks([-3, -2, -1, 0, 1, 2, 3])
        ax.set_xlabel("(ours − paper) / tolerance")
        ax.set_title(self.title, color=INK)
        return ax


def forest(rows: Sequence[Comparison], *, label: str = "paper versus ours") -> Forest:
    """Return the forest plot of a table: paper's value, ours ± s.e., tolerance, verdict.

    Traps: a wide tolerance reproduces everything, so it is shown with the numbers; the verdict
    concerns our mean only, and an error bar across the border means that more seeds are needed; a
    paper's ± is a standard deviation or a standard error, and often it does not say which.

    Args:
        rows: see `Comparison`, at least one. label: the title.
    """
    check_call(forest, locals())
    rows = list(rows)
    if not rows:
        raise ValueError("there is nothing to draw: give at least one Comparison")
    for row in rows:
        if not (math.isfinite(row.tolerance) and row.tolerance > 0):
            raise ValueError(f"`tolerance` of '{row.label}' must be > 0, got {row.tolerance}")
        if not math.isfinite(row.paper) or not (row.ours is None or math.isfinite(row.ours)):
            raise ValueError(
                f"values of '{row.label}' must be finite, got {row.paper} and {row.ours};"
                " give None for what was not run"
            )
    verdicts = [row.verdict for row in rows]
    data = {
        "label": np.array([row.label for row in rows]),
        "paper": np.array([row.paper for row in rows]),
        "ours": np.array([np.nan if row.ours is None else row.ours for row in rows]),
        "tolerance": np.array([row.tolerance for row in rows]),
        "deviation": np.array([row.deviation for row in rows]),
        "paper spread": np.array([_in_tolerances(row.paper_spread, row) for row in rows]),
        "s.e.": np.array([_in_tolerances(row.standard_error, row) for row in rows]),
        "verdict": np.array(verdicts),
        "words": np.array([_compare(row) for row in rows]),
    }
    counts = [f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts]
    ran = len(rows) - verdicts.count("n/a")
    missed = [row.label for row in rows if row.verdict == "outside"]
    display = Forest(
        data,
        label=label,
        caption=f"{len(rows)} numbers in units of their tolerance (band): paper at 0 with its"
        " spread as a grey bar, ours ± s.e. coloured by verdict (✓ reproduced, ↗ outside and"
        f" better, ✗ outside, – not run). {', '.join(counts)}.",
        alt=f"Paper versus ours: {verdicts.count('reproduced')} of {ran} within tolerance"
        f" ({', '.join(counts)}){'; outside: ' + ', '.join(missed) if missed else ''}.",
    )
    longest = [max(map(len, texts)) for texts in (data["label"], data["words"])]
    display.size = (2.6 + LETTER * longest[0] + 0.9 * LETTER * longest[1], 1 + HEIGHT * len(rows))
    return display


def _in_tolerances(spread: float | None, row: Comparison) -> float:
    return np.nan if spread is None else spread / row.tolerance


def _compare(row: Comparison) -> str:
    parts = []
    for value, spread in ((row.paper, row.paper_spread), (row.ours, row.standard_error)):
        text = "n/a" if value is None else f"{value:.4g}".replace("-", "−")
        parts.append(text if spread is None else f"{text} ± {spread:.2g}")
    unit = f" {row.unit}" if row.unit else ""
    return f"{' → '.join(parts)}{unit} ({row.tolerance:g})"
