"""Loss curves of one fit: training and validation, each member and their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.examinations import DISPLAYS, Findings
from polymode.plots.axes import plain_log
from polymode.plots.display import INK, Display, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 20  # members with a line of their own
WIDE = 20  # ratio of the largest to the smallest loss from which on the axis is logarithmic


class LossCurves(Display):
    """Train loss as a line, validation NLL as points; thin lines are members."""

    size = (4.2, 3.0)
    dense = True

    def plot(self, ax: Axes) -> Axes:
        data, several = self.data, self.data["train loss"].shape[1] > 1
        parts = [("train loss", "train steps", self.style.color, "", "-")]
        if "validation NLL" in data:
            parts.append(("validation NLL", "validation steps", INK, "o", "--"))
        for name, steps, color, marker, line in parts:
            mean = " (mean)" if several else ""
            for member in data[name].T[:MOST] if several else ():
                ax.plot(data[steps], member, color=color, linewidth=0.5, alpha=0.35, linestyle=line)
            look: dict[str, Any] = {
                "color": color,
                "marker": marker,
                "linestyle": line,
                "markersize": 3,
            }
            ax.plot(data[steps], data[name].mean(1), label=f"{name}{mean}", **look)
        ax.set(title=self.title, xlabel="steps", ylabel="nats/example")
        ax.margins(x=0.02)
        values = np.concatenate([np.ravel(data[name]) for name, *_ in parts])
        if np.nanmin(values) > 0 and np.nanmax(values) > WIDE * np.nanmin(values):
            ax.set_yscale("log")
            plain_log(ax.yaxis)
        ax.legend()
        return ax


@DISPLAYS.register("convergence")
def convergence(
    findings: Findings, *, label: str = "", style: Style | None = None
) -> dict[str, Display]:
    """Return the loss curves, by name "curves".

    Args:
        findings: of the examination "convergence". label, style: of the method.
    """
    data = {name: np.asarray(values) for name, values in findings.arrays.items()}
    train = data["train loss"]
    said = f"train loss {train[0].mean():.4g} to {train[-1].mean():.4g}"
    if "validation NLL" in data:
        val = data["validation NLL"].mean(1)
        said += f"; validation NLL {np.nanmin(val):.4g} at best, {val[-1]:.4g} at the end"
    members = f"{train.shape[1]} members" if train.shape[1] > 1 else "one member"
    name = label or "fit"
    return {
        "curves": LossCurves(
            data,
            label=name,
            style=style,
            caption="Loss curves of one seed. Train losses are means over windows of steps; thin"
            " lines are single members.",
            own=f"{name}, {members}: {said}.",
            alt=f"Loss curves of {name}: {said}.",
        )
    }
