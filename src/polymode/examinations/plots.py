"""Figures of the examinations that belong to no subject: loss curves, and diversity of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.examinations.findings import DISPLAYS, Findings
from polymode.plots.axes import plain_log
from polymode.plots.display import INK, Display, Style
from polymode.plots.dots import dots
from polymode.plots.pair_density import pair_density

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
    summary = f"train loss {train[0].mean():.4g} to {train[-1].mean():.4g}"
    if "validation NLL" in data:
        val = data["validation NLL"].mean(1)
        summary += f"; validation NLL {np.nanmin(val):.4g} at best, {val[-1]:.4g} at the end"
    members = f"{train.shape[1]} members" if train.shape[1] > 1 else "one member"
    name = label or "fit"
    return {
        "curves": LossCurves(
            data,
            label=name,
            style=style,
            caption="Loss curves of one seed. Train losses are means over windows of steps; thin"
            " lines are single members.",
            own=f"{name}, {members}: {summary}.",
            alt=f"Loss curves of {name}: {summary}.",
        )
    }


class ModeCurve(Display):
    """Mutual information on both sets against the number of modes."""

    size = (3.8, 2.8)

    def plot(self, ax: Axes) -> Axes:
        data = self.data
        ax.plot(data["modes"], data["id"], marker="o", color=self.style.color, label="test set")
        ax.plot(data["modes"], data["ood"], marker="s", color=INK, linestyle="--", label="OOD set")
        ax.set(title=self.title, xlabel="modes", ylabel="mutual information [nats]")
        ax.set_xscale("log", base=2)
        ax.set_ylim(bottom=0)
        ax.legend()
        return ax


@DISPLAYS.register("pairs")
def pairs(findings: Findings, *, label: str = "", style: Style | None = None) -> dict[str, Display]:
    """Return the figures by name: "density", and "modes" where there are several.

    Args:
        findings: of the examination "pairs". label, style: of the method.
    """
    data = {name: np.asarray(values) for name, values in findings.arrays.items()}
    ood = findings.label.partition("ood=")[2].partition(",")[0] or "the OOD set"
    figures: dict[str, Display] = {
        "density": pair_density(
            data["id pairs"], data["ood pairs"], ood=ood, label=label, style=style
        )
    }
    sizes = data["modes"]
    if len(sizes) > 1:
        inside, outside = (data[f"{side} mutual information"] for side in ("id", "ood"))
        summary = f"from {inside[0]:.3g} with one mode to {inside[-1]:.3g} with {sizes[-1]:.0f}"
        figures["modes"] = ModeCurve(
            {"modes": sizes, "id": inside, "ood": outside},
            label=label or "posterior",
            style=style,
            caption="Mutual information of the first modes together, all samples of each:"
            f" {summary} on the test set, {outside[0]:.3g} to {outside[-1]:.3g} on {ood}, nats.",
            alt=f"Mutual information against the number of modes: {summary} on the test set,"
            f" {outside[0]:.3g} to {outside[-1]:.3g} on {ood}.",
        )
    return figures


@DISPLAYS.register("groups")
def groups(
    findings: Findings, *, label: str = "", style: Style | None = None
) -> dict[str, Display]:
    """Return the NLL of each group as a dot, by name "groups".

    Args:
        findings: of the examination "groups". label, style: of the method.
    """
    worst = sorted(findings.arrays, key=lambda name: -findings.arrays[name][1])[:MOST]
    classes = any(row.metric == "worst_accuracy" for row in findings.rows)
    share = "accuracy" if classes else "coverage"
    named = {
        f"{name} (n = {findings.arrays[name][0]:.0f}, {share} {findings.arrays[name][3]:.2f})": name
        for name in worst
    }
    figure = dots(
        {text: [float(findings.arrays[name][1])] for text, name in named.items()},
        groups={text: name.split(" = ")[0] for text, name in named.items()},
        label=f"NLL by group: {label}" if label else "NLL by group",
        axis="NLL, nats",
        caption=f"Mean NLL of each group of test rows, and its {share}, the worst first.",
    )
    return {"groups": figure}
