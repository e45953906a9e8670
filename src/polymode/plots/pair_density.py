"""Pairs of members: mutual information on the test set against that on an OOD set.

If no pair is near 0, no two members became the same function. The upper bound for two members is
log 2 (after a figure of O. Laurent, E. Aldea, G. Franchi, A symmetry-aware exploration of Bayesian
neural network posteriors, ICLR 2024).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.axes import joint, margin
from polymode.plots.display import INK, PALE, Display, Style
from polymode.plots.diversity_heat_map import as_matrix
from polymode.plots.sources import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

BOUND = math.log(2)
SIDES = {"test": "test set", "ood": "OOD set"}


class PairDensity(Display):
    """A 2-D histogram of pairs with margins; the corner shows where it lies below the bound."""

    size = (3.8, 3.6)
    dense = True

    def plot(self, ax: Axes) -> Axes:
        """Draw the main panel alone."""
        from matplotlib.colors import LinearSegmentedColormap

        data = self.data
        x, y = data["test edges"], data["ood edges"]
        color = self.style.color
        # transparent to full in the method's colour, so that an empty cell is the page itself
        colors = LinearSegmentedColormap.from_list("density", [f"{color}00", f"{color}ff"])
        ax.imshow(
            np.sqrt(data["counts"]).T,
            origin="lower",
            extent=(x[0], x[-1], y[0], y[-1]),
            cmap=colors,
            aspect="auto",
            interpolation="none",
        )
        ood = str(data["ood name"][0])
        ax.set(xlabel="MI on the test set [nats]", ylabel=f"MI on {ood} [nats]")
        ax.plot(*data["mean"], marker="+", color=INK, markersize=9, markeredgewidth=1.2)
        return ax

    def draw(self, figure: FigureBase) -> None:
        axes = joint(figure)
        self.plot(axes.main)
        for side, ax, turned in (("test", axes.above, False), ("ood", axes.beside, True)):
            counts, edges = self.data[f"{side} counts"], self.data[f"{side} edges"]
            margin(ax, counts, edges, turned, fill=True, color=self.style.color, alpha=0.6)
        axes.above.set_title(self.title, color=INK)
        self._overview(axes.corner)

    def _overview(self, ax: Axes) -> None:
        """Draw the square up to log 2 in both, and the part of it that the main panel shows."""
        x, y = self.data["test edges"], self.data["ood edges"]
        ax.plot(
            np.array([0, 1, 1, 0, 0]) * BOUND,
            np.array([0, 0, 1, 1, 0]) * BOUND,
            color=PALE,
            linewidth=0.8,
        )
        left, right, low, high = x[0], x[-1], y[0], y[-1]
        ax.fill([left, right, right, left], [low, low, high, high], color=self.style.color)
        ax.set_aspect("equal")
        ax.text(BOUND / 2, -0.05, "0 … log 2", ha="center", va="top", fontsize=6, color=INK)


def pair_density(
    inside: Any,
    outside: Any,
    *,
    ood: str = "OOD",
    label: str = "",
    num_bins: int | None = None,
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None,
    style: Style | None = None,
) -> PairDensity:
    """Return the joint histogram of the mutual information of pairs, test set and OOD set.

    Traps: zoomed in, any cloud looks large; the corner shows this window within the possible range
    from 0 to log 2. Pairs share members and are not independent draws.

    Args:
        inside, outside: matrices (S, S) of `pairwise_mutual_information` on the two sets, or the
            same P >= 1 pairs of both, (P,), in nats, in [0, log 2].
        ood: name of the OOD set. label: whose members they are.
        num_bins: a side, 1 to 100; by default 8 to 40, more for more pairs.
        limits: of the test set's and of the OOD set's values; by default their own ranges.
        style: see `palette`.
    """
    check_call(pair_density, locals())
    if num_bins is not None and not 1 <= num_bins <= 100:
        raise ValueError(f"`num_bins` of pair_density must be from 1 to 100, got {num_bins}")
    values = {"test": _pairs(inside, "inside"), "ood": _pairs(outside, "outside")}
    count = len(values["test"])
    if len(values["ood"]) != count:
        raise ValueError(
            f"`inside` and `outside` must be of the same pairs, got {count} and"
            f" {len(values['ood'])}"
        )
    num_bins = num_bins or int(np.clip(2 * count ** (1 / 3), 8, 40))
    windows = dict(zip(SIDES, limits, strict=True)) if limits else {}
    data: dict[str, np.ndarray] = {"ood name": np.array([ood])}
    for side, pairs in values.items():
        low, high = windows.get(side, _window(pairs))
        data[f"{side} edges"] = np.linspace(low, high, num_bins + 1)
        data[f"{side} counts"] = np.histogram(pairs, data[f"{side} edges"])[0]
    test, outer = values.values()
    data["counts"] = np.histogram2d(test, outer, (data["test edges"], data["ood edges"]))[0]
    data["mean"] = np.array([pairs.mean() for pairs in values.values()])
    spoken = "; ".join(
        f"{SIDES[side]} {pairs.mean():.3g} ({pairs.min():.3g} to {pairs.max():.3g})"
        for side, pairs in values.items()
    )
    both_vary = all(pairs.std() > 0 for pairs in values.values())
    link = f"{np.corrcoef(test, outer)[0, 1]:.2f}" if both_vary and count > 2 else "n/a"
    return PairDensity(
        data,
        label=label or "pairs of members",
        style=style,
        caption=f"Mutual information of {count:,} pairs of members on the test set and on {ood}."
        " The colour is the root of the count, the cross is the mean. Corner: where this window is"
        f" between 0 and log 2 = {BOUND:.3f} nats, the upper bound for two members. Mean and range:"
        f" {spoken}; correlation {link}.",
        alt=f"Joint histogram of the mutual information of {count:,} pairs, mean and range in nats:"
        f" {spoken}; correlation {link}; the bound is {BOUND:.3f}.",
    )


def _pairs(values: Any, name: str) -> np.ndarray:
    """Return one value per pair, each pair once."""
    array = numbers(values)
    if array.ndim == 2:
        array = as_matrix(array, "pair_density")
        array = array[np.triu_indices(len(array), 1)]
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"`{name}` of pair_density must be (S, S) or (P,), got {array.shape}")
    if not ((array >= 0) & (array <= BOUND + 1e-6)).all():
        raise ValueError(
            f"`{name}` of pair_density must be in [0, log 2], got {array.min():.4g} to"
            f" {array.max():.4g}; give the mutual information of pairs, in nats"
        )
    return array


def _window(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or 0.01
    return max(0.0, low - margin), high + margin
