"""Figures of the examination `equivariance`: a few orbits, and what more members are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.examinations import DISPLAYS, Findings
from polymode.plots.axes import panel_title
from polymode.plots.display import INK, Display, Style
from polymode.plots.orbit_curve import orbit_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

TITLES = {"same_share": "OSP / |G|", "deviation": "s.d. along orbits"}


class MemberCurves(Display):
    """Orbit metrics against the number of members, on the test set and on the OOD set."""

    size = (5.6, 2.9)

    def plot(self, ax: Axes, metric: str = "") -> Axes:
        """Draw one metric, by default the first."""
        data = self.data
        metric = metric or next(name for name in TITLES if name in data)
        for prefix, label, color, marker in (
            ("", "test set", self.style.color, "o"),
            ("ood_", str(data["ood"][0]), INK, "s"),
        ):
            ax.errorbar(
                data[f"{prefix}members"], data[f"{prefix}{metric}"],
                yerr=data[f"{prefix}{metric} s.e."], color=color, marker=marker, linewidth=1.3,
                label=label,
            )  # fmt: skip
        ax.set_xscale("log", base=2)
        ticks = data["members"]
        ax.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
        ax.xaxis.minorticks_off()
        ax.set_xlabel("members")
        panel_title(ax, TITLES[metric])
        if metric == "deviation":
            ax.set_ylim(bottom=0)
        else:
            ax.set_ylim(top=1.02)
        ax.legend()
        return ax

    def draw(self, figure: FigureBase) -> None:
        names = [name for name in TITLES if name in self.data]
        for ax, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            self.plot(ax, name)
        figure.suptitle(self.title, fontsize=9, color=INK)


@DISPLAYS.register("equivariance")
def equivariance(
    findings: Findings, *, label: str = "", style: Style | None = None
) -> dict[str, Display]:
    """Return "members", and "orbit 1", "orbit 2", ... of the first test inputs.

    Args:
        findings: of the examination "equivariance". label, style: of the method.
    """
    data = {name: np.asarray(values) for name, values in findings.arrays.items()}
    found: dict[str, Display] = {}
    name, sizes = label or "posterior", data["members"]
    if len(sizes) > 1:
        kept = {
            key: values for key, values in data.items() if not key.startswith(("orbit", "theta"))
        }
        metric = next(each for each in TITLES if each in data)
        ends = f"{data[metric][0]:.3g} to {data[metric][-1]:.3g} on the test set,"
        ends += f" {data[f'ood_{metric}'][0]:.3g} to {data[f'ood_{metric}'][-1]:.3g} on"
        said = f"{TITLES[metric]} from {ends} {data['ood'][0]}, with 1 to {sizes[-1]:.0f} members"
        found["members"] = MemberCurves(
            kept, label=name, style=style,
            caption=f"Sub-ensembles of {name}, mean ± s.e. over subsets of its members: {said}.",
            alt=f"Orbit metrics of {name} against the number of members: {said}.",
        )  # fmt: skip
    turning = "orbit control" in data
    for number, members in enumerate(data.get("orbit members", ())):
        classes = "orbit label" in data
        title = f"{name}, test input {number + 1}"
        title += f", class {data['orbit label'][number]}" if classes else ""
        found[f"orbit {number + 1}"] = orbit_curve(
            data["theta"], members, label=title, style=style,
            uncertainty=data["orbit entropy"][number] if classes else None,
            uncertainty_name="predictive entropy, nats" if classes else "",
            control=data["orbit control"][number] if turning else None,
            parameter="θ" if turning else "element", unit="°" if turning else "",
            value="probability of the label" if classes else "first output",
        )  # fmt: skip
    return found
