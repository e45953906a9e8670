"""How much each pair of members differs, as a map ordered by clustering: blocks are clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.display import INK, Display, Style
from polymode.plots.sources import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELLS = 100  # per side, at most; above it neighbouring members are averaged
NAMES = 12  # largest number of members whose names are shown
COLORS = "viridis"


class DiversityHeatMap(Display):
    """The matrix in clustered order without its diagonal; the title gives the mean."""

    size = (3.6, 3.2)
    dense = True

    def plot(self, ax: Axes) -> Axes:
        data = self.data
        order = data["order"].astype(int)
        count = len(order)
        cells = averaged(data["matrix"][np.ix_(order, order)], CELLS)
        image = ax.imshow(
            np.ma.masked_invalid(cells),
            extent=(-0.5, count - 0.5, count - 0.5, -0.5),
            vmin=data["limits"][0],
            vmax=data["limits"][1],
            cmap=COLORS,
            interpolation="none",
        )
        measure, unit = (str(data[key][0]) for key in ("measure", "unit"))
        bar = ax.figure.colorbar(image, cax=ax.inset_axes((1.04, 0, 0.05, 1)))
        bar.set_label(f"{measure} [{unit}]" if unit else measure)
        bar.outline.set_visible(False)  # type: ignore[operator]
        if count <= NAMES:
            ax.set_yticks(range(count), [str(name) for name in data["name"][order]], fontsize=7)
            ax.set_xticks([])
            ax.tick_params(length=0)
        else:
            ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.set(xlabel=f"{count:,} members, similar ones adjacent")
        ax.set_title(f"{self.title}\nmean {measure} {float(data['mean'][0]):.3g}", color=INK)
        return ax


def diversity_heat_map(
    matrix: Any,
    *,
    measure: str = "disagreement",
    unit: str = "",
    label: str = "",
    names: Sequence[str] | None = None,
    similarity: bool = False,
    limits: tuple[float, float] | None = None,
    style: Style | None = None,
) -> DiversityHeatMap:
    """Return the map of a pairwise measure of S members.

    Members are ordered by average linkage with optimal leaf order. A matrix that is not symmetric
    is ordered by the mean of both directions and drawn as it is: row i, column j.

    Traps: with a colour scale for each method all maps look alike, so give `limits`; cosines of
    weights are not invariant under the symmetries of networks, so a cosine of 0 does not prove
    diversity.

    Args:
        matrix: (S, S), S >= 2, finite except on the diagonal, which is left out. See
            `polymode.metrics.diversity`.
        measure, unit: what the matrix contains. label: the title.
        names: of the members; by default 0, 1, ...
        similarity: True if a high value means similar, as for cosines.
        limits: of the colours; by default from the smallest value off the diagonal, or 0, to the
            largest.
        style: see `palette`; the map does not use it.
    """
    check_call(diversity_heat_map, locals())
    values = as_matrix(matrix, "diversity_heat_map")
    count = len(values)
    names = [str(i) for i in range(count)] if names is None else [str(name) for name in names]
    if len(names) != count:
        raise ValueError(f"`names` of diversity_heat_map must be {count}, got {len(names)}")
    off = values[~np.eye(count, dtype=bool)]
    order = clustered(values, similarity)
    cells = values.copy()
    np.fill_diagonal(cells, np.nan)
    least, most = float(off.min()), float(off.max())
    data = {
        "matrix": cells,
        "order": order,
        "name": np.array(names),
        "mean": np.array([off.mean()]),
        "limits": np.array(limits or (min(least, 0.0), most if most > min(least, 0.0) else 1.0)),
        "measure": np.array([measure]),
        "unit": np.array([unit]),
    }
    in_unit = f" {unit}" if unit else ""
    return DiversityHeatMap(
        data,
        label=label or "members",
        style=style,
        caption=f"{measure.capitalize()} of each pair of members, ordered by average linkage so"
        " that similar members are adjacent. The diagonal is left out.",
        own=f"{count:,} members: mean over pairs {off.mean():.3g}, from {least:.3g} to"
        f" {most:.3g}{in_unit}.",
        alt=f"Heat map of {measure} between {count:,} members ({label or 'one ensemble'}): mean"
        f" {off.mean():.3g}, smallest {least:.3g}, largest {most:.3g}{in_unit}.",
    )


def as_matrix(matrix: Any, plot: str) -> np.ndarray:
    """Return (S, S) float64 from a tensor or array, or raise what is wrong with it."""
    values = numbers(matrix)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) < 2:
        raise ValueError(f"`matrix` of {plot} must be (S, S) with S >= 2, got {values.shape}")
    wrong = ~np.isfinite(values) & ~np.eye(len(values), dtype=bool)
    if wrong.any():
        raise ValueError(
            f"`matrix` of {plot} has {int(wrong.sum())} NaN or infinite values off the diagonal;"
            " take a bounded measure, such as pairwise_mutual_information"
        )
    return values


def clustered(matrix: np.ndarray, similarity: bool = False) -> np.ndarray:
    """Return the order (S,) in which similar members are neighbours."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    distance = 0.5 * (matrix + matrix.T)
    np.fill_diagonal(distance, 0.0)
    off = ~np.eye(len(matrix), dtype=bool)
    distance[off] = distance[off].max() - distance[off] if similarity else distance[off]
    distance[off] -= distance[off].min()  # an even shift leaves the order of the links
    if len(matrix) == 2:
        return np.arange(2)
    best = len(matrix) <= 200  # optimal leaf order costs S³ and more
    return leaves_list(linkage(squareform(distance), "average", optimal_ordering=best))


def averaged(matrix: np.ndarray, most: int) -> np.ndarray:
    """Return the matrix, or means of its blocks if it has more than `most` rows; NaN left out."""
    count = len(matrix)
    if count <= most:
        return matrix
    starts = np.linspace(0, count, most, endpoint=False).round().astype(int)
    finite = np.isfinite(matrix)
    sums = np.add.reduceat(
        np.add.reduceat(np.where(finite, matrix, 0.0), starts, axis=0), starts, axis=1
    )
    counts = np.add.reduceat(np.add.reduceat(finite.astype(float), starts, axis=0), starts, axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
