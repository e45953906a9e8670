"""Diversity against accuracy of pairs: members should be good and differ, which is a trade-off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.axes import thinned
from polymode.plots.display import PALE, Style, palette
from polymode.plots.diversity_heat_map import as_matrix
from polymode.plots.lines import LineDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 1000  # pairs of a method that are drawn, at most


class DiversityPlane(LineDisplay):
    """One dot per pair of members, one colour per method, its mean as a large marker."""

    size = (4.2, 3.4)
    legend_more = (0, 1)
    dense = True

    def _lines(self, ax: Axes) -> None:
        data = self.data
        for label, style in self.styles.items():
            ax.scatter(
                data[f"{label} accuracy"],
                data[f"{label} diversity"],
                s=8,
                color=style.color,
                marker=style.marker,
                alpha=0.4,
                linewidths=0,
                rasterized=True,
            )
        for label, style in self.styles.items():
            ax.plot(
                *data[f"{label} mean"],
                marker=style.marker,
                color=style.color,
                markersize=9,
                markeredgecolor="white",
                linestyle="",
                label=label,
            )
        if "independent" in data:
            left, right = ax.get_xlim()
            inside = (data["line accuracy"] >= left) & (data["line accuracy"] <= right)
            ax.plot(
                data["line accuracy"][inside],
                data["independent"][inside],
                color=PALE,
                linestyle="--",
                linewidth=1,
                zorder=0,
                label="independent errors",
            )
            ax.set_xlim(left, right)
        ax.set_ylim(bottom=0)
        measure, unit = (str(data[key][0]) for key in ("measure", "unit"))
        ax.locator_params(axis="x", nbins=4)
        ax.set_xlabel("mean accuracy of the two members")
        ax.set_ylabel(f"{measure} [{unit}]" if unit else measure)


def diversity_plane(
    members: Mapping[str, tuple[Any, Any]],
    *,
    measure: str = "disagreement",
    unit: str = "",
    num_classes: int | None = None,
    styles: dict[str, Style] | None = None,
) -> DiversityPlane:
    """Return each pair's diversity against its accuracy, all methods in one plane.

    With `num_classes`, a dashed line shows how much two members of accuracy a would disagree if
    their errors were independent and even over the wrong classes,
    :math:`1 - a^2 - (1 - a)^2 / (C - 1)` (as in S. Fort et al., Deep ensembles: a loss landscape
    perspective, 2019).

    Traps: bad members disagree anyway, so compare heights at equal accuracy only; pairs share
    members, so the S (S - 1) / 2 dots are not independent.

    Args:
        members: by label, the members' accuracies (S,) in [0, 1], and the matrix (S, S) of a
            pairwise measure, see `polymode.metrics.diversity`.
        measure, unit: what the matrix contains.
        num_classes: for the line of independent errors; with disagreement only.
        styles: one per label, see `palette`.
    """
    check_call(diversity_plane, locals())
    if not members:
        raise ValueError("there is nothing to draw: give at least one method's members")
    if num_classes is not None and measure != "disagreement":
        raise ValueError(f"the line of `num_classes` is for disagreement, not for {measure}")
    if num_classes is not None and num_classes < 2:
        raise ValueError(f"`num_classes` of diversity_plane must be at least 2, got {num_classes}")
    data: dict[str, np.ndarray] = {"measure": np.array([measure]), "unit": np.array([unit])}
    means, counts = [], []
    for label, (accuracy, matrix) in members.items():
        x, y = _pairs(accuracy, matrix, label)
        index = thinned(len(x), POINTS)
        data[f"{label} accuracy"], data[f"{label} diversity"] = x[index], y[index]
        data[f"{label} mean"] = np.array([x.mean(), y.mean()])
        means.append(f"{label} {y.mean():.3g} at accuracy {x.mean():.3g}")
        counts.append(f"{label} {len(accuracy):,}")
    if num_classes is not None:
        a = np.linspace(0, 1, 401)
        data["line accuracy"] = a
        data["independent"] = 1 - a**2 - (1 - a) ** 2 / (num_classes - 1)
    line = "; dashed: independent errors" if num_classes is not None else ""
    return DiversityPlane(
        data,
        label=f"{measure} and accuracy",
        styles=styles or palette(members),
        caption=f"{measure.capitalize()} of pairs of members against the mean accuracy of the two"
        f" (members: {', '.join(counts)}). Large markers: mean over pairs{line}.",
        own=f"{'; '.join(means)}.",
        alt=f"{measure.capitalize()} of pairs against their accuracy, means: {'; '.join(means)}.",
    )


def _pairs(accuracy: Any, matrix: Any, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean accuracy and the measure of each pair, averaged over both orders."""
    values = as_matrix(matrix, "diversity_plane")
    accuracies = np.array([float(a) for a in accuracy])
    if accuracies.shape != (len(values),) or not ((accuracies >= 0) & (accuracies <= 1)).all():
        raise ValueError(
            f"accuracies of {label} must be {len(values)} numbers in [0, 1], one per member of the"
            f" matrix, got {accuracies.tolist()[:5]}"
        )
    first, second = np.triu_indices(len(values), 1)
    means = 0.5 * (values[first, second] + values[second, first])
    return 0.5 * (accuracies[first] + accuracies[second]), means
