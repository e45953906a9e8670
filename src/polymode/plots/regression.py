"""A regression on one input: mean, what is noise, what is ignorance, and single functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.metrics.results import Results
from polymode.plots.display import INK, PALE, Display, Style
from polymode.prediction import MixturePrediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FUNCTIONS = 20  # sample functions that are drawn at most
WIDTH = 2.0  # standard deviations


class RegressionBand(Display):
    """Mean ± 2 standard deviations: dark for epistemic, light for epistemic and noise together."""

    size = (4.6, 3.2)

    def plot(self, ax: Axes) -> Axes:
        data, color = self.data, self.style.color
        x, mean = data["x"], data["mean"]
        for name, alpha in (("std", 0.18), ("epistemic std", 0.38)):
            reach = WIDTH * data[name]
            label = {"std": "± 2 s.d., all", "epistemic std": "± 2 s.d., epistemic"}[name]
            ax.fill_between(
                x, mean - reach, mean + reach, color=color, alpha=alpha, lw=0, label=label
            )
        functions = [data[key] for key in data if key.startswith("function ")]
        for values in functions if len(functions) > 1 else ():
            ax.plot(x, values, color=color, linewidth=0.5, alpha=0.7)
        ax.plot(x, mean, color=color, label="mean")
        if "truth" in data:
            ax.plot(x, data["truth"], color=INK, linestyle="--", linewidth=1, label="truth")
        ax.plot(
            data["train x"],
            data["train y"],
            ".",
            color=INK,
            markersize=2.5,
            zorder=1,
            label="train",
        )
        low, high = data["view"]
        ax.set(xlabel="x", ylabel="y", xlim=(x[0], x[-1]), ylim=(low, high))
        ax.axhline(0, color=PALE, linewidth=0.5, zorder=0)
        ax.set_title(self.label, color=INK)
        ax.legend(ncols=2, loc="best")
        return ax


def regression_band(
    results: Results,
    *,
    label: str = "",
    view: tuple[float, float] | None = None,
    style: Style | None = None,
) -> RegressionBand:
    """Return the figure of one result on a task with one input and one output.

    Args:
        results: with the "curve" and "train" that `evaluate` keeps of such tasks.
        label: the method's name in the figure; by default its registered one.
        view: limits of y; by default around data, truth and mean. Give the same to compare.
        style: see `palette`.
    """
    curve, train = results.kept.get("curve"), results.kept.get("train")
    if curve is None or train is None or train.inputs is None or train.targets is None:
        raise ValueError("these results keep no curve; it is made for tasks with one input")
    prediction = curve.prediction
    if not isinstance(prediction, MixturePrediction) or prediction.loc.shape[-1] != 1:
        raise ValueError("regression_band draws one output; the task has more")
    assert curve.inputs is not None
    data = {
        "x": _flat(curve.inputs),
        "mean": _flat(prediction.mean),
        "std": _flat(prediction.std),
        "epistemic std": _flat(prediction.epistemic_variance) ** 0.5,
        "train x": _flat(train.inputs),
        "train y": _flat(train.targets),
    }
    if curve.targets is not None:
        data["truth"] = _flat(curve.targets)
    for number, function in enumerate(prediction.loc[:FUNCTIONS]):
        data[f"function {number}"] = _flat(function)
    data["view"] = np.array(view or default_view(data))
    label = label or results.method
    drawn = min(prediction.num_samples, FUNCTIONS)
    functions = f", {drawn} single functions" if drawn > 1 else ""
    share = float(np.mean(data["epistemic std"] ** 2 / data["std"] ** 2))
    return RegressionBand(
        data,
        label=label,
        style=style or Style(),
        caption=f"Predictive mean{functions} and ± 2 standard deviations, the epistemic part dark,"
        f" with noise light (seed {results.seed}); dots: {len(data['train x']):,} training points.",
        alt=f"Regression of {label} over x from {data['x'][0]:.3g} to {data['x'][-1]:.3g}; on"
        f" average {100 * share:.0f} % of the predictive variance is epistemic.",
    )


def default_view(data: dict[str, np.ndarray]) -> tuple[float, float]:
    """Return limits of y with a margin around data, truth and mean; bands may leave them."""
    shown = [data[key] for key in ("train y", "truth", "mean") if key in data]
    low, high = min(map(np.min, shown)), max(map(np.max, shown))
    margin = 0.25 * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def _flat(tensor: object) -> np.ndarray:
    return np.asarray(tensor.detach().double().cpu()).ravel()  # type: ignore[attr-defined]
