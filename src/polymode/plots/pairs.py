"""Figures of the examination `pairs`: the joint density, and diversity by the number of modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.examinations import DISPLAYS, Findings
from polymode.plots.display import INK, Display, Style
from polymode.plots.pair_density import pair_density

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    found: dict[str, Display] = {
        "density": pair_density(
            data["id pairs"], data["ood pairs"], ood=ood, label=label, style=style
        )
    }
    sizes = data["modes"]
    if len(sizes) > 1:
        inside, outside = (data[f"{side} mutual information"] for side in ("id", "ood"))
        said = f"from {inside[0]:.3g} with one mode to {inside[-1]:.3g} with {sizes[-1]:.0f}"
        found["modes"] = ModeCurve(
            {"modes": sizes, "id": inside, "ood": outside},
            label=label or "posterior",
            style=style,
            caption=f"Mutual information of the first modes together, all samples of each: {said}"
            f" on the test set, {outside[0]:.3g} to {outside[-1]:.3g} on {ood}, nats.",
            alt=f"Mutual information against the number of modes: {said} on the test set,"
            f" {outside[0]:.3g} to {outside[-1]:.3g} on {ood}.",
        )
    return found
