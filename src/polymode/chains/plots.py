"""Chains of a sampler: what they predict draw by draw, and how long they remember it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.examinations import DISPLAYS, Findings
from polymode.plots.display import INK, OKABE_ITO, PALE, Display, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

MOST = 8  # chains with a line of their own
NAMES = ("worst", "median")


class Traces(Display):
    """Draws of each chain, of the prediction with the largest R-hat and of the median one."""

    size = (5.2, 3.4)
    dense = True

    def plot(self, ax: Axes, which: int = 0) -> Axes:
        """Draw the worst prediction (0) or the median one (1)."""
        for number, chain in enumerate(self.data["traces"][which].T[:MOST]):
            color = OKABE_ITO[number % len(OKABE_ITO)]
            ax.plot(np.arange(1, len(chain) + 1), chain, color=color, linewidth=0.7, alpha=0.8)
        ax.set(ylabel=f"{NAMES[which]}, R-hat {self.data['r_hat'][which]:.3g}", xlabel="draw")
        ax.margins(x=0.02)
        return ax

    def draw(self, figure: FigureBase) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for which, ax in enumerate(panels):
            self.plot(ax, which)
        panels[0].set(title=self.title, xlabel="")


class Autocorrelation(Display):
    """Autocorrelation over lags, in draws: mean of the chains as a line, each chain thin."""

    size = (4.2, 2.8)
    dense = True

    def plot(self, ax: Axes) -> Axes:
        ax.axhline(0.0, color=PALE, linewidth=0.8)
        for name, chains, color in zip(
            NAMES, self.data["autocorrelation"], (self.style.color, INK), strict=True
        ):
            for chain in chains.T[:MOST]:
                ax.plot(chain, color=color, linewidth=0.4, alpha=0.3)
            moving = chains[:, ~np.isnan(chains[0])]  # a chain that stands still has none
            mean = moving.mean(1) if moving.size else np.full(len(chains), np.nan)
            ax.plot(mean, color=color, label=f"{name} prediction, mean of chains")
        ax.set(title=self.title, xlabel="lag, draws", ylabel="autocorrelation")
        ax.legend()
        return ax


@DISPLAYS.register("chains")
def chains(
    findings: Findings, *, label: str = "", style: Style | None = None
) -> dict[str, Display]:
    """Return "traces" and "autocorrelation"; nothing of chains too short for either.

    Args:
        findings: of the examination "chains". label, style: of the method.
    """
    if not findings.arrays:
        return {}
    data = {name: np.asarray(values) for name, values in findings.arrays.items()}
    _, length, number = data["traces"].shape
    name = label or "fit"
    worst, middle = data["r_hat"]
    said = (
        f"{number} chains of {length} draws; R-hat {worst:.3g} at worst, {middle:.3g} in the middle"
    )
    shown = f", the first {MOST} drawn" if number > MOST else ""
    return {
        "traces": Traces(
            {key: data[key] for key in ("traces", "r_hat")},
            label=name,
            style=style,
            caption=f"{name}: what chains predict, draw by draw, at the input with the largest"
            f" R-hat and at a median one: {said}{shown}.",
            alt=f"Traces of {name}: {said}.",
        ),
        "autocorrelation": Autocorrelation(
            {key: data[key] for key in ("autocorrelation", "r_hat")},
            label=name,
            style=style,
            caption=f"{name}: autocorrelation of the same two predictions over the kept draws:"
            f" {said}{shown}.",
            alt=f"Autocorrelation of {name}: {said}.",
        ),
    }
