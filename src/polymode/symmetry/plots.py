"""Figures about symmetries: weights in the plane as symmetries are removed; mass along training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.plots.display import INK, PALE, Display, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

STEPS = {
    "as trained": "as trained",
    "scaled": "scaling removed",
    "sorted": "and sorted",
}
"""Names of arrays (N, 2), and the titles of their panels."""


class PlaneSteps(Display):
    """Two weights of each network: as trained, after scaling, after sorting."""

    size = (7.0, 2.6)
    dense = True

    def plot(self, ax: Axes, step: str = "as trained") -> Axes:
        """Draw one panel."""
        points = self.data[step]
        ax.axline((0, 0), slope=1, color=PALE, linewidth=0.8)
        look: dict[str, Any] = {
            "color": self.style.color,
            "alpha": 0.25,
            "linewidths": 0,
            "rasterized": True,
        }
        ax.scatter(points[:, 0], points[:, 1], s=1.5, **look)
        ax.set(title=STEPS[step], xlabel="weight of unit 1", aspect="equal", adjustable="datalim")
        return ax

    def draw(self, figure: FigureBase) -> None:
        axes = figure.subplots(1, len(STEPS))
        for ax, step in zip(axes, STEPS, strict=True):
            self.plot(ax, step)
        axes[0].set_ylabel("weight of unit 2")


def plane_steps(
    arrays: Mapping[str, Any], *, label: str = "toy", style: Style | None = None
) -> PlaneSteps:
    """Return the two weights of a last layer of two units, in three stages.

    Args:
        arrays: points (N, 2) by the names in `STEPS`. label: of the networks.
        style: see `palette`.
    """
    data = {step: np.asarray(arrays[step], float) for step in STEPS}
    for step, points in data.items():
        if points.ndim != 2 or points.shape[1] != 2 or not len(points):
            raise ValueError(f"'{step}' of plane_steps must be (N, 2), got {points.shape}")
    count = len(data["as trained"])
    before, after = (float((data[s][:, 1] > data[s][:, 0]).mean()) for s in ("scaled", "sorted"))
    shares = (
        f"{100 * before:.0f} % lie above the diagonal before sorting, {100 * after:.0f} % after"
    )
    return PlaneSteps(
        data,
        label=label,
        style=style,
        caption=f"The two outgoing weights of the hidden units of {count:,} networks 2-2-1: as"
        f" trained, with the incoming weights of each unit scaled to norm 1, and with the units"
        f" sorted by these weights as well. {shares}.",
        alt=f"Weights of the last layer of {count:,} networks in three stages: {shares}.",
    )


class MassProfile(Display):
    """Mass and least mass along training, and the excess at the end."""

    size = (6.4, 2.8)

    def plot(self, ax: Axes) -> Axes:
        """Draw the curves alone."""
        data, epochs = self.data, self.data["epochs"]
        for name, color, line in (
            ("mass", self.style.color, "-"),
            ("least mass", INK, "--"),
        ):
            low, middle, high = np.quantile(data[name], (0.1, 0.5, 0.9), axis=1)
            ax.plot(epochs, middle, color=color, linestyle=line, label=name)
            ax.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
        ax.set(title=self.title, xlabel="epochs", ylabel="sum of squared weights")
        ax.set_ylim(bottom=0)
        ax.legend()
        return ax

    def draw(self, figure: FigureBase) -> None:
        left, right = figure.subplots(1, 2)
        self.plot(left)
        excess = self.data["mass"][-1] / self.data["least mass"][-1] - 1
        right.hist(100 * excess, bins=min(30, 5 + len(excess) // 8), color=self.style.color)
        right.set(title="at the end", xlabel="excess over the least mass [%]", ylabel="networks")


def mass_profile(
    arrays: Mapping[str, Any], *, label: str = "", style: Style | None = None
) -> MassProfile:
    """Return the squared norm of weights along training, and its minimum over scalings.

    Args:
        arrays: "epochs" (T,), "mass" and "least mass" (T, N). label: of the networks.
        style: see `palette`.
    """
    data = {name: np.asarray(arrays[name], float) for name in ("epochs", "mass", "least mass")}
    if data["mass"].shape != data["least mass"].shape or len(data["epochs"]) != len(data["mass"]):
        raise ValueError(
            "`mass` and `least mass` of mass_profile must be (T, N) with T epochs, got"
            f" {data['mass'].shape}, {data['least mass'].shape} and {len(data['epochs'])}"
        )
    excess = data["mass"][-1] / data["least mass"][-1] - 1
    count = data["mass"].shape[1]
    ends = [float(np.median(data[name][-1])) for name in ("mass", "least mass")]
    low, middle, high = (100 * float(f(excess)) for f in (np.min, np.median, np.max))
    summary = (
        f"at the end {ends[0]:.4g} against {ends[1]:.4g} (medians), an excess of {middle:.1f} %,"
        f" from {low:.1f} to {high:.1f} %"
    )
    return MassProfile(
        data,
        label=label or "networks",
        style=style,
        caption=f"{label}: sum of squared weights of {count:,} networks along training, and the"
        f" least that scalings of their units allow; median and 10 to 90 %.",
        own=f"{summary[0].upper()}{summary[1:]}.",
        alt=f"Mass and least mass along training, {count:,} networks: {summary}.",
    )
