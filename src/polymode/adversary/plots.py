"""Figures of an attack: scores against ε and against the step, detection, images on the way.

The numbers are those of the examination "attack", or of `pm.adversary.sweep` through
`pm.adversary.arrays_of`: by name arrays over E radii, T + 1 steps, or n images at t steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.examinations import DISPLAYS, Findings
from polymode.metrics.results import title_of
from polymode.plots.axes import panel_title
from polymode.plots.display import INK, PALE, Display, Style, palette
from polymode.plots.lines import PanelDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

Arrays = Mapping[str, np.ndarray]

UNITS = {"predictive_entropy": "nats", "mutual_information": "nats"}
AGAINST = {"eps": "size of the attack, eps", "step": "step of the attack at the largest eps"}
MOST = 100  # points of a line with markers
WORDS, GAP = 0.24, 0.06  # room below and beside an image, in parts of its sides


class AttackCurves(PanelDisplay):
    """One line per method; one panel per score, against ε or the step."""

    def __init__(self, data: dict[str, np.ndarray], **about: Any) -> None:
        self.size = (4.0, 1.3 * (1 + max(2, len(data["metric"]))))
        super().__init__(data, **about)

    def _axis(self, ax: Axes) -> None:
        ax.set_xlabel(AGAINST[str(self.data["against"][0])])

    def _lines(self, ax: Axes, metric: str) -> None:
        if metric.startswith("auroc"):
            ax.axhline(0.5, color=PALE, linewidth=1, linestyle="--", zorder=0)
        for label, style in self.styles.items():
            key = f"{label} {metric}"
            if key in self.data:
                values = self.data[key]
                marker = style.marker if len(values) <= MOST else ""
                ax.plot(
                    self.data[f"{label} x"],
                    values,
                    color=style.color,
                    marker=marker,
                    markersize=3.5,
                    linewidth=1.3,
                    label=label,
                )
        panel_title(ax, _title(metric))


def _title(metric: str) -> str:
    """Return the title of a panel.

    >>> _title("auroc mutual_information"), _title("predictive_entropy")
    ('AUROC by mutual information ↑', 'predictive entropy [nats]')
    """
    if metric.startswith("auroc successful "):
        return f"AUROC by {title_of(metric.split()[-1])}, successful ↑"
    if metric == "auroc":
        return "AUROC ↑"
    if metric.startswith("auroc "):
        return f"AUROC by {title_of(metric.split()[-1])} ↑"
    better = {"accuracy": " ↑", "accepted accuracy": " ↑", "accepted wrong": " ↓"}
    unit = f" [{UNITS[metric]}]" if metric in UNITS else ""
    return f"{title_of(metric)}{better.get(metric, '')}{unit}"


def attack_curves(
    found: Mapping[str, Arrays],
    *,
    against: str = "eps",
    metrics: list[str] | None = None,
    label: str = "",
    styles: dict[str, Style] | None = None,
) -> AttackCurves:
    """Return scores under attack of several methods, or of one.

    Traps: an attack that does not know the detector says nothing about one that does; show the
    adaptive one beside it. Steps of methods with other step sizes are not comparable.

    Args:
        found: arrays of the examination "attack" by label, see the module.
        against: "eps", or "step" at the largest ε.
        metrics: panels; by default accuracy, predictive entropy and mutual information.
        label: of the figure. styles: one per label, see `palette`.
    """
    check_call(attack_curves, locals())
    if against not in AGAINST:
        raise ValueError(f"`against` must be one of {', '.join(AGAINST)}, got {against!r}")
    metrics = metrics or ["accuracy", "predictive_entropy", "mutual_information"]
    prefix = "" if against == "eps" else "step "
    data: dict[str, np.ndarray] = {"against": np.array([against])}
    drawn: list[str] = []
    for name, arrays in found.items():
        for metric in metrics:
            if prefix + metric in arrays:
                values = np.asarray(arrays[prefix + metric], float)
                data[f"{name} {metric}"] = values
                steps = np.arange(len(values), dtype=float)
                data[f"{name} x"] = np.asarray(arrays["eps"], float) if not prefix else steps
                drawn.append(metric)
    if not drawn:
        raise ValueError(f"there is nothing to draw: no {', '.join(metrics)} against {against}")
    data["metric"] = np.array([metric for metric in metrics if metric in drawn])
    ends = "; ".join(
        f"{key} from {values[0]:.3f} to {values[-1]:.3f}"
        for key, values in data.items()
        if key not in ("against", "metric") and not key.endswith(" x") and np.isfinite(values).all()
    )
    raised = {str(flag).partition(":")[0] for a in found.values() for flag in a["flags"]} - {""}
    flags = f" Flags raised: {', '.join(sorted(raised))}." if raised else ""
    detects = any(metric.startswith("auroc") for metric in drawn)
    aurocs = " AUROC is that of attacked against clean inputs." if detects else ""
    sizes = {int(arrays["examples"][0]) for arrays in found.values()}
    count = " and ".join(f"{size:,}" for size in sorted(sizes))
    name = label or ", ".join(found)
    what = "eps grows" if against == "eps" else "the attack goes on"
    return AttackCurves(
        data,
        label=name,
        styles=styles or palette(found),
        caption=f"{name}: means over {count} attacked inputs as {what}.{aurocs}{flags}",
        alt=f"Scores under attack against {against}: {ends or 'curves with gaps'}.",
    )


def detection_curves(
    found: Mapping[str, Arrays], *, label: str = "", styles: dict[str, Style] | None = None
) -> AttackCurves:
    """Return the detection of attacked inputs by uncertainty against ε.

    AUROC by entropy and by mutual information, and for the inputs below a threshold their accuracy
    and the share of all inputs that are accepted and wrong.

    Args:
        found, label, styles: see `attack_curves`.
    """
    check_call(detection_curves, locals())
    panels = ["auroc predictive_entropy", "auroc mutual_information"]
    panels += ["accepted accuracy", "accepted wrong"]
    return attack_curves(found, metrics=panels, label=label, styles=styles)


class AttackTrajectory(Display):
    """Images at a few steps, a row per example; below each what is predicted, and its entropy."""

    dense = True

    def plot(self, ax: Axes) -> Axes:
        """Draw the images of all examples as one, with room below each for words."""
        images = np.clip(self.data["images"], 0, 1)
        rows, columns, channels, height, width = images.shape
        down, across = height * (1 + WORDS), width * (1 + GAP)
        for row in range(rows):
            for column in range(columns):
                tile = images[row, column].transpose(1, 2, 0)
                left, top = column * across, row * down
                ax.imshow(
                    tile[..., 0] if channels == 1 else tile,
                    extent=(left, left + width, top + height, top),
                    cmap="gray",
                    vmin=0,
                    vmax=1,
                    interpolation="none",
                )
                words = f"{self.data['image class'][row, column]:.0f} · "
                words += f"{self.data['image entropy'][row, column]:.2f}"
                place = left + width / 2, top + height * (1 + 0.45 * WORDS)
                ax.text(*place, words, fontsize=6.5, ha="center", va="center", color=INK)
        ax.set(xlim=(0, columns * across), ylim=(rows * down, 0), aspect="equal")
        steps = [f"step {step}" for step in self.data["image step"]]
        ax.set_xticks(np.arange(columns) * across + width / 2, steps)
        labels = [f"label {label}" for label in self.data["image label"]]
        ax.set_yticks(np.arange(rows) * down + height / 2, labels)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        return ax

    def draw(self, figure: FigureBase) -> None:
        self.plot(figure.add_subplot())
        figure.suptitle(self.title, fontsize=9, color=INK)


def attack_trajectory(
    arrays: Arrays, *, label: str = "attack", style: Style | None = None
) -> AttackTrajectory:
    """Return the images of a few examples along an attack.

    Args:
        arrays: of the examination "attack" on images. label: whose. style: not used.
    """
    check_call(attack_trajectory, locals())
    if "images" not in arrays:
        raise ValueError("there are no images on the way: the inputs are none, or none were kept")
    keys = ("images", "image step", "image class", "image entropy", "image label")
    data = {key: np.asarray(arrays[key]) for key in keys}
    rows, columns = data["images"].shape[:2]
    summary = "; ".join(
        f"label {data['image label'][row]}, predicted {data['image class'][row, 0]:.0f} at first"
        f" and {data['image class'][row, -1]:.0f} in the end"
        for row in range(rows)
    )
    display = AttackTrajectory(
        data,
        label=label,
        style=style,
        caption=f"{label}: {rows} inputs along the attack at the largest eps; below each image"
        " the predicted class and the predictive entropy [nats].",
        alt=f"Images along an attack, {rows} × {columns}: {summary}.",
    )
    display.size = (0.85 * columns + 0.7, 1.0 * rows + 0.6)
    return display


@DISPLAYS.register("attack")
def attack(
    findings: Findings, *, label: str = "", style: Style | None = None
) -> dict[str, Display]:
    """Return the figures by name: "strength", "steps", "detection", "scores" (the AUROC by every
    score) and, for images, "trajectory".

    Args:
        findings: of the examination "attack". label, style: of the method.
    """
    name, arrays = label or "attack", dict(findings.arrays)
    look: dict[str, Any] = {"styles": {name: style or Style()}}
    options = findings.label.partition(":")[2]
    title = f"{name} ({options})" if options else name
    areas = {
        title_of(key.removeprefix("auroc ")): {**arrays, "auroc": values}
        for key, values in arrays.items()
        if key.startswith("auroc ") and "successful" not in key
    }
    figures: dict[str, Display] = {
        "strength": attack_curves({name: arrays}, label=title, **look),
        "detection": detection_curves({name: arrays}, label=title, **look),
        "scores": attack_curves(areas, metrics=["auroc"], label=title),
    }
    if len(arrays.get("step accuracy", ())) > 2:
        figures["steps"] = attack_curves({name: arrays}, against="step", label=title, **look)
    if "images" in arrays:
        figures["trajectory"] = attack_trajectory(arrays, label=title, style=style)
    return figures
