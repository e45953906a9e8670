"""What more members are worth: a metric against their number, several methods in one figure.

A reference, usually the deep ensemble, turns values into numbers of networks: the deep-ensemble
equivalent of a method is the number of independent networks that are as good (A. Ashukha et al.,
Pitfalls of in-domain uncertainty estimation and ensembling in deep learning, ICLR 2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.core.registry import suggest
from polymode.metrics.diversity.size import SizeCurve, deep_ensemble_equivalent
from polymode.plots.axes import axis_title, error_line
from polymode.plots.display import Style, palette
from polymode.plots.lines import LineDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class SizeCurves(LineDisplay):
    """One line per method, mean ± s.e. over subsets; dotted lines lead to the equivalents."""

    size = (4.2, 3.5)
    legend_more = (15, 0)

    def _lines(self, ax: Axes) -> None:
        data = self.data
        for label, style in self.styles.items():
            sizes, mean = data[f"{label} members"], data[f"{label} mean"]
            mean = np.where(np.isfinite(mean), mean, np.nan)  # an infinite one is off the axis
            equal = data.get(f"{label} equivalent")
            name = label if equal is None else f"{label}: {_networks(float(equal[0]), data)}"
            error_line(ax, sizes, mean, data[f"{label} s.e."], style, name)
            if equal is not None and math.isfinite(equal[0]):
                ends = sorted([float(sizes[-1]), float(equal[0])])
                ax.plot(ends, [mean[-1]] * 2, color=style.color, linestyle=":", linewidth=1)
                ax.plot(equal[0], mean[-1], marker="|", markersize=9, color=style.color, mew=1.5)
        ax.set_xscale("log", base=2)
        largest = max(float(data[f"{label} members"].max()) for label in self.styles)
        ticks = 2 ** np.arange(0, int(math.log2(largest)) + 1)
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.xaxis.minorticks_off()
        ax.set(xlabel="members", ylabel=str(data["title"][0]))


def size_curve(
    curves: Mapping[str, Any],
    *,
    metric: str = "nll",
    unit: str = "",
    reference: str | None = None,
    direction: str = "down",
    styles: dict[str, Style] | None = None,
) -> SizeCurves:
    """Return a metric against the number of members, with deep-ensemble equivalents.

    The equivalent is that of each method's largest size.

    Traps: subsets share members, so the bars do not show how the curve would move with other
    networks; compare temperatures only by "calibrated_nll"; where the reference is flat, small
    differences amount to many networks.

    Args:
        curves: by label, `metrics.diversity.size.SizeCurve`s, whatever else has `sizes`, `mean`
            and `standard_error`, or three arrays (sizes, mean, s.e.); sizes increase.
        metric, unit: of the curves. direction: "up" or "down" is better; metric and direction are
            used only for curves without them.
        reference: label of the curve of independent networks; None for no equivalents.
        styles: one per label, see `palette`.
    """
    check_call(size_curve, locals())
    if not curves:
        raise ValueError("there is nothing to draw: give at least one curve")
    if reference is not None and reference not in curves:
        near = suggest(reference, curves)
        raise ValueError(
            f"`reference` '{reference}' is not a curve.{near} Curves: {', '.join(curves)}"
        )
    checked = {k: _curve(curve, k, metric, direction) for k, curve in curves.items()}
    metrics = {curve.metric for curve in checked.values()}
    if len(metrics) > 1:
        raise ValueError(f"curves must be of one metric, got {', '.join(sorted(metrics))}")
    title = axis_title(metrics.pop(), unit)
    data: dict[str, np.ndarray] = {"title": np.array([title])}
    ends, base = [], None if reference is None else checked[reference]
    for label, curve in checked.items():
        data[f"{label} members"] = np.array(curve.sizes, dtype=float)
        data[f"{label} mean"] = np.array(curve.mean)
        data[f"{label} s.e."] = np.array(curve.standard_error)
        end = f"{label} {curve.mean[0]:.4g} to {curve.mean[-1]:.4g} with {curve.sizes[-1]}"
        if base is not None and label != reference:
            data["most"] = np.array([float(base.sizes[-1])])
            equal = deep_ensemble_equivalent(base, curve.mean[-1])
            data[f"{label} equivalent"] = np.array([equal])
            end += f", {_networks(equal, data)}"
        ends.append(end)
    how = "" if base is None else f"; ≙: how many networks of {reference} are as good"
    return SizeCurves(
        data,
        label=f"{title} and members",
        styles=styles or palette(curves),
        caption=f"{title} against the number of members, mean ± s.e. over subsets of them{how}.",
        own=f"{'; '.join(ends)}.",
        alt=f"{title} against the number of members: {'; '.join(ends)}.",
    )


def _curve(curve: Any, label: str, metric: str, direction: str) -> SizeCurve:
    """Return a curve with checked numbers."""
    if hasattr(curve, "sizes"):
        parts = curve.sizes, curve.mean, curve.standard_error
    elif len(curve) == 3:
        parts = tuple(curve)
    else:
        raise ValueError(
            f"the curve of {label} must be (sizes, mean, s.e.), got {len(curve)} parts"
        )
    sizes, mean, error = (np.array([float(v) for v in part]) for part in parts)
    if not len(sizes) == len(mean) == len(error) >= 1:
        counts = f"{len(sizes)}, {len(mean)} and {len(error)}"
        raise ValueError(f"sizes, mean and s.e. of {label} must be equally many, got {counts}")
    if (np.diff(sizes) <= 0).any() or sizes[0] < 1:
        raise ValueError(f"sizes of {label} must increase from 1 or more, got {sizes.tolist()}")
    if np.isnan(mean).any() or not np.isfinite(mean).any():
        raise ValueError(f"means of {label} must be numbers, got {mean.tolist()}")
    return SizeCurve(
        getattr(curve, "metric", metric),
        getattr(curve, "direction", direction),
        tuple(sizes.astype(int).tolist()),
        tuple(mean.tolist()),
        tuple(np.nan_to_num(error, posinf=0.0).tolist()),
        getattr(curve, "num_subsets", ()),
    )


def _networks(equal: float, data: dict[str, np.ndarray]) -> str:
    """Describe a number of networks; an infinite one exceeds the sizes of the reference."""
    return f"≙ {equal:.1f}" if math.isfinite(equal) else f"≙ more than {data['most'][0]:.0f}"
