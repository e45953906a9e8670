"""Figures of equivariance: predictions along an orbit, and what more members are worth.

Along an orbit, an invariant predictor is flat. The figure shows the members and their mean, the
group average (the mean over θ of that mean), and a control: the prediction for the input that was
resampled as for g(θ) and put back, so that the effect of interpolation is not mistaken for a lack
of symmetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.examinations import DISPLAYS, Findings
from polymode.plots.axes import legend_below, panel_title
from polymode.plots.display import INK, Display, Style
from polymode.plots.sources import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


MEMBERS = 15  # thin lines, at most


class OrbitCurve(Display):
    """The prediction above, the uncertainty below, both over θ."""

    size = (4.4, 4.2)

    def plot(self, ax: Axes) -> Axes:
        """Draw the prediction alone."""
        self._prediction(ax)
        ax.set_xlabel(str(self.data["axis"][0]))
        ax.legend()
        return ax

    def draw(self, figure: FigureBase) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        self._prediction(above)
        data, theta = self.data, self.data["theta"]
        below.plot(theta, data["uncertainty"], color=self.style.color, linewidth=1.4)
        if "control uncertainty" in data:
            below.plot(theta, data["control uncertainty"], color=INK, linestyle=":", linewidth=1.2)
        below.set_xlabel(str(data["axis"][0]))
        panel_title(below, str(data["uncertainty name"][0]))
        below.set_ylim(bottom=0)
        figure.suptitle(self.title, fontsize=9, color=INK)
        legend_below(figure, above, self.size[0])

    def _prediction(self, ax: Axes) -> None:
        data, color = self.data, self.style.color
        theta, mean, spread = data["theta"], data["mean"], data["spread"]
        if len(data["members"]) > 1:
            ax.fill_between(
                theta, mean - spread, mean + spread, color=color, alpha=0.22, lw=0, label="± s.d."
            )
            for number, values in enumerate(data["members"][:MEMBERS]):
                name = "members" if number == 0 else None
                ax.plot(theta, values, color=color, linewidth=0.5, alpha=0.7, label=name)
        ax.plot(theta, mean, color=color, linewidth=1.7, label="mean")
        average = float(data["group average"][0])
        ax.axhline(average, color=INK, linestyle="--", linewidth=1, label="group average")
        if "control" in data:
            name = "control, not moved"
            ax.plot(theta, data["control"], color=INK, linestyle=":", linewidth=1.2, label=name)
        ax.set_xlim(theta[0], theta[-1])
        panel_title(ax, str(data["value name"][0]))
        turn = theta[-1] - theta[0]
        if str(data["unit"][0]) == "°" and turn >= 180:
            ax.set_xticks(np.arange(theta[0], theta[-1] + 1e-9, 45 if turn < 300 else 90))


def orbit_curve(
    theta: Any,
    members: Any,
    *,
    uncertainty: Any = None,
    control: Any = None,
    control_uncertainty: Any = None,
    label: str = "",
    parameter: str = "θ",
    unit: str = "°",
    value: str = "probability of the true class",
    uncertainty_name: str = "",
    style: Style | None = None,
) -> OrbitCurve:
    """Return prediction and uncertainty of one input along the orbit of a transformation.

    The group average is the mean of the members' mean over the T values of θ; the standard
    deviation along the orbit is taken over θ too. Space θ evenly, and leave out the end of a full
    turn, or 0° counts twice.

    Traps: rotating an image interpolates, and that alone changes predictions: give the control.
    The mean over members may be flat where no member is, so the caption gives both deviations.

    Args:
        theta: (T,) increasing parameters, T >= 2.
        members: (S, T) what each member predicts, one number; (T,) of one member.
        uncertainty: (T,) >= 0; by default the members' standard deviation.
        control, control_uncertainty: (T,) the same for the input resampled but not moved.
        label: the title. parameter, unit: of θ. value, uncertainty_name: what is on the axes.
        style: see `palette`.
    """
    check_call(orbit_curve, locals())
    data = _curves(theta, members, uncertainty)
    places, values, count = data["theta"], data["members"], len(data["theta"])
    controls = {"control": control, "control uncertainty": control_uncertainty}
    for key, curve in controls.items():
        if curve is not None:
            data[key] = _along(curve, count, key.replace(" ", "_"))
    name = uncertainty_name or ("uncertainty" if uncertainty is not None else "s.d. of members")
    words = {"axis": f"{parameter} [{unit}]" if unit else parameter, "unit": unit}
    words |= {"value name": value, "uncertainty name": name}
    data |= {key: np.array([text]) for key, text in words.items()}
    of_member, of_mean = data["orbit s.d."]
    largest = places[np.argmax(data["uncertainty"])]
    noise = f" The control varies by {data['control'].std():.3g}." if "control" in data else ""
    return OrbitCurve(
        data,
        label=label or "orbit",
        style=style,
        caption=f"{value.capitalize()} along {parameter} from {places[0]:g} to {places[-1]:g}"
        f" {unit} ({count} steps, {len(values)} members, ± their s.d.; dashed: group average)."
        f" Standard deviation along the orbit: {of_member:.3g} per member, {of_mean:.3g} for their"
        f" mean.{noise}",
        alt=f"{value.capitalize()} along an orbit of {count} steps of {label or 'one input'}:"
        f" group average {values.mean():.3g}; standard deviation along the orbit {of_member:.3g}"
        f" per member, {of_mean:.3g} for the mean; most uncertain at {parameter} = {largest:g}"
        f" {unit}.{noise}",
    )


def _curves(theta: Any, members: Any, uncertainty: Any) -> dict[str, np.ndarray]:
    """Return the members' curves, their mean and spread, and how much they vary along θ."""
    places, values = _numbers(theta), np.atleast_2d(_numbers(members))
    count = places.size
    if places.ndim != 1 or count < 2 or (np.diff(places) <= 0).any():
        raise ValueError(f"`theta` of orbit_curve must increase, (T,), T >= 2, got {places.shape}")
    if values.ndim != 2 or values.shape[1] != count:
        raise ValueError(
            f"`members` of orbit_curve must be (S, {count}), one value for each theta, got"
            f" {values.shape}"
        )
    mean, spread = values.mean(0), values.std(0)
    return {
        "theta": places,
        "mean": mean,
        "spread": spread,
        "group average": np.array([values.mean()]),
        "uncertainty": spread if uncertainty is None else _along(uncertainty, count, "uncertainty"),
        "orbit s.d.": np.array([values.std(1).mean(), mean.std()]),
        "members": values,
    }


def _along(values: Any, count: int, name: str) -> np.ndarray:
    array = _numbers(values)
    if array.shape != (count,):
        raise ValueError(f"`{name}` of orbit_curve must be ({count},), got {array.shape}")
    return array


def _numbers(values: Any) -> np.ndarray:
    array = numbers(values)
    if not np.isfinite(array).all():
        raise ValueError(
            f"orbit_curve needs finite numbers, got {(~np.isfinite(array)).sum()} that are not"
        )
    return array


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
    displays: dict[str, Display] = {}
    name, sizes = label or "posterior", data["members"]
    if len(sizes) > 1:
        curves = {
            key: values for key, values in data.items() if not key.startswith(("orbit", "theta"))
        }
        metric = next(metric for metric in TITLES if metric in data)
        ends = f"{data[metric][0]:.3g} to {data[metric][-1]:.3g} on the test set,"
        ends += f" {data[f'ood_{metric}'][0]:.3g} to {data[f'ood_{metric}'][-1]:.3g} on"
        ranges = f"{TITLES[metric]} from {ends} {data['ood'][0]}, with 1 to {sizes[-1]:.0f} members"
        displays["members"] = MemberCurves(
            curves, label=name, style=style,
            caption=f"Sub-ensembles of {name}, mean ± s.e. over subsets of its members: {ranges}.",
            alt=f"Orbit metrics of {name} against the number of members: {ranges}.",
        )  # fmt: skip
    turning = "orbit control" in data
    for number, members in enumerate(data.get("orbit members", ())):
        classes = "orbit label" in data
        title = f"{name}, test input {number + 1}"
        title += f", class {data['orbit label'][number]}" if classes else ""
        displays[f"orbit {number + 1}"] = orbit_curve(
            data["theta"], members, label=title, style=style,
            uncertainty=data["orbit entropy"][number] if classes else None,
            uncertainty_name="predictive entropy, nats" if classes else "",
            control=data["orbit control"][number] if turning else None,
            parameter="θ" if turning else "element", unit="°" if turning else "",
            value="probability of the label" if classes else "first output",
        )  # fmt: skip
    return displays
