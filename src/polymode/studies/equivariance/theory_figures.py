"""Figure of the toy: truth, one member, the ensemble's mean and the closed form, by steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.plots.axes import legend_below, panel_title
from polymode.plots.display import INK, PALE, Display, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

LINES = ("truth", "one member", "ensemble mean", "closed form")


class ToyCurves(Display):
    """A panel for each number of steps."""

    size = (7.2, 2.4)

    def plot(self, ax: Axes, step: int | None = None) -> Axes:
        """Draw one panel, by default the last."""
        self._panel(ax, int(self.data["step"][-1]) if step is None else step)
        ax.legend()
        return ax

    def draw(self, figure: FigureBase) -> None:
        steps = self.data["step"]
        axes = np.atleast_1d(figure.subplots(1, len(steps), sharex=True, sharey=True))
        for ax, step in zip(axes, steps, strict=True):
            self._panel(ax, int(step))
        legend_below(figure, axes[0], self.size[0])

    def _panel(self, ax: Axes, step: int) -> None:
        data, x = self.data, self.data["x"]
        ax.axvline(0, color=PALE, linewidth=0.8, zorder=0)
        ax.plot(x, data["truth"], color=INK, linewidth=1, label="truth")
        looks: dict[str, Any] = {
            "one member": {"linestyle": "--", "linewidth": 1},
            "ensemble mean": {"linewidth": 1.6},
            "closed form": {"linestyle": ":", "linewidth": 1.6},
        }
        for label, look in looks.items():
            color = self.styles[label].color
            ax.plot(x, data[f"{label} {step}"], color=color, label=label, **look)
        panel_title(ax, f"{step:,} step{'' if step == 1 else 's'}")
        ax.set_xlabel("x")


def toy_curves(arrays: Mapping[str, Any], steps: Sequence[int], seed: int) -> ToyCurves:
    """Return the figure from the arrays of the experiment."""
    keys = dict(zip(LINES[1:], ("member", "mean", "closed"), strict=True))
    data = {"x": np.asarray(arrays["x"]), "truth": np.asarray(arrays["truth"])}
    data["step"] = np.array(steps)
    for step in steps:
        data |= {
            f"{label} {step}": np.asarray(arrays[f"{key}_{step}"]) for label, key in keys.items()
        }
    half = len(data["x"]) // 2

    def lopsided(label: str, step: int) -> float:
        curve = data[f"{label} {step}"]
        return float(np.sqrt(np.mean((curve[:half] - curve[::-1][:half]) ** 2)))

    said = "; ".join(
        f"{step:,} steps: member {lopsided('one member', step):.2g}, mean"
        f" {lopsided('ensemble mean', step):.2g}, closed form {lopsided('closed form', step):.1g}"
        for step in steps
    )
    return ToyCurves(
        data,
        label="Toy curves",
        caption="An even function learnt from points and their mirror images, seed"
        f" {seed}. Root mean square of f(x) − f(−x): {said}.",
        alt=f"Curves of a member, the ensemble's mean and the closed form by steps; {said}.",
        styles=palette(LINES),
    )
