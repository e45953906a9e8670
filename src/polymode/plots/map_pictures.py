"""Images beside what was predicted at each pixel: truth, prediction, error, entropy and its part.

A row is an image. Of classes: the image, the labels, the predicted labels, where these are wrong,
predictive entropy and mutual information, which is a small part of it and has a colour scale of its
own. Of values: the image, the targets and the means on one scale, the absolute error, and the
standard deviations of the noise and of the networks, all three on one scale, in the units of the
targets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polymode.core.checks import check_call
from polymode.likelihoods.targets import NOT_OBSERVED
from polymode.metrics.examples import MOST, is_image, surely_wrong, telling, uncertainty
from polymode.metrics.results import Results
from polymode.plots.confusion import class_names
from polymode.plots.display import INK, OKABE_ITO, Display, Style
from polymode.plots.sources import kept_of, numbers
from polymode.prediction import CategoricalPrediction, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

ORDERS = {"uncertain": "most uncertain", "wrong": "surely wrong"}
CLASS_COLORS = (*OKABE_ITO, "#F0E442", "#8C564B", "#393B79", "#B5CF6B", "#E7969C")
NOTHING, RIGHT, WRONG = "#9aa4ad", "#e9edf0", "#c1272d"  # no target; right and wrong pixels
SHADES = "viridis"
NAMED = 12  # classes in the legend


class Panel(NamedTuple):
    """One column.

    Attributes:
        title: above it. kind: "image", "class", "error" or "shade".
        scale: the name of the colour scale of shades.
    """

    title: str
    kind: str
    scale: str = ""


CLASS_PANELS = {
    "image": Panel("image", "image"),
    "truth": Panel("truth", "class"),
    "predicted": Panel("prediction", "class"),
    "error": Panel("error", "error"),
    "total": Panel("entropy", "shade", "nats"),
    "epistemic": Panel("mutual inf.", "shade", "nats of networks"),
}
VALUE_PANELS = {
    "image": Panel("image", "image"),
    "truth": Panel("truth", "shade", "targets"),
    "predicted": Panel("mean", "shade", "targets"),
    "error": Panel("error", "shade", "errors"),
    "aleatoric": Panel("noise, s.d.", "shade", "errors"),
    "epistemic": Panel("networks, s.d.", "shade", "errors"),
}


class MapPictures(Display):
    """A grid of pictures: a row for each image, a column for each map."""

    dense = True

    @property
    def panels(self) -> dict[str, Panel]:
        """The columns, in order."""
        panels = CLASS_PANELS if "nats limits" in self.data else VALUE_PANELS
        return {name: panel for name, panel in panels.items() if name in self.data}

    def plot(self, ax: Axes, panel: str = "total", place: int = 0) -> Axes:
        """Draw one picture of one image, by default the entropy, or a map of errors."""
        from matplotlib.colors import to_rgb

        panel = panel if panel in self.panels else "error"
        values, column = self.data[panel][place], self.panels[panel]
        if column.kind == "image":
            low, high = self.data["range"]
            scaled = np.clip((values - low) / (high - low), 0, 1)
            picture = scaled.transpose(1, 2, 0) if len(scaled) == 3 else scaled[0]
            ax.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="none")
        elif column.kind == "shade":
            low, high = self.data[f"{column.scale} limits"]
            masked = np.ma.masked_invalid(values)
            ax.set_facecolor(NOTHING)
            ax.imshow(masked, cmap=SHADES, vmin=low, vmax=high, interpolation="none")
        else:
            error = column.kind == "error"
            colors = (RIGHT, WRONG) if error else CLASS_COLORS
            table = np.array([*map(to_rgb, colors), to_rgb(NOTHING)])
            index = np.where(values < 0, len(colors), values % len(colors))
            ax.imshow(table[index.astype(int)], interpolation="none")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        return ax

    def draw(self, figure: FigureBase) -> None:
        count, panels = len(self.data["value"]), self.panels
        axes = figure.subplots(count, len(panels), squeeze=False)
        for place, row in enumerate(axes):
            for ax, (name, panel) in zip(row, panels.items(), strict=True):
                self.plot(ax, name, place)
                if place == 0:
                    ax.set_title(panel.title, fontsize=7.5, color=INK, pad=3)
            words = f"{self.data['order'][place]}\n{float(self.data['value'][place]):.2f}"
            row[0].set_ylabel(words, fontsize=7, color=INK)
        for scale in dict.fromkeys(panel.scale for panel in panels.values() if panel.scale):
            places = [i for i, panel in enumerate(panels.values()) if panel.scale == scale]
            self._color_bar(figure, list(axes[:, places].ravel()), scale)
        self._legend(figure)
        figure.suptitle(self.label, fontsize=9, color=INK)

    def _color_bar(self, figure: FigureBase, axes: list[Axes], scale: str) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
        from matplotlib.ticker import MaxNLocator

        rows = len(self.data["value"])
        colors = ScalarMappable(Normalize(*self.data[f"{scale} limits"]), SHADES)
        bar = figure.colorbar(
            colors,
            ax=axes,
            location="bottom",
            pad=0.02,
            aspect=10 * len(axes) / rows,
            fraction=0.06,
        )
        bar.set_label("nats" if scale.startswith("nats") else scale, fontsize=7.5)
        bar.locator = MaxNLocator(3)
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.ax.tick_params(labelsize=7)

    def _legend(self, figure: FigureBase) -> None:
        from matplotlib.patches import Patch

        names = self.data.get("classes", np.array([]))[:NAMED]
        colors = (CLASS_COLORS[i % len(CLASS_COLORS)] for i in range(len(names)))
        handles = [Patch(color=c, label=str(n)) for c, n in zip(colors, names, strict=True)]
        if handles:
            figure.legend(
                handles=handles, loc="outside lower left", ncols=min(6, len(handles)), fontsize=7
            )


def map_pictures(
    results: Results, *, label: str = "", most: int = 2, style: Style | None = None
) -> MapPictures:
    """Return the test images with the most uncertain maps, and those wrong with most confidence.

    Beside each row: the mean predictive entropy, or the confidence in wrong pixels as a mean over
    the image; of values the mean predictive variance, or the mean error in standard deviations.

    Traps: these are the extremes of one seed, not typical images; several surest mistakes that look
    right to you may be wrong labels. Of large images every k-th pixel is shown.

    Args:
        results: with the "maps" that `evaluate` keeps of images with a target at each pixel.
        label: the method's name in the figure; by default its registered one.
        most: images of each kind, from 1 to 6.
        style: see `palette`; the pictures do not use it.
    """
    check_call(map_pictures, locals())
    if not 1 <= most <= MOST:
        raise ValueError(f"`most` of map_pictures must be from 1 to {MOST}, got {most}")
    prediction, targets, inputs = kept_of(results, "maps")
    if inputs is None or targets is None or not is_image(inputs.shape[1:]):
        raise ValueError("map_pictures is for images (C, H, W) with 1 or 3 channels")
    orders = telling(prediction, targets, most)
    index = torch.cat(orders)
    words = [title for title, places in zip(ORDERS.values(), orders, strict=True) for _ in places]
    values = [uncertainty(prediction), surely_wrong(prediction, targets)]
    shown = torch.cat([v.cpu()[p].double() for v, p in zip(values, orders, strict=True)])
    chosen, of_chosen = prediction[index], targets[index]
    data = _class_maps(chosen, of_chosen, results) or _value_maps(chosen, of_chosen)
    pictures = numbers(inputs[index])
    low, high = np.quantile(pictures, [0.01, 0.99])  # noise may lie outside
    data |= {
        "image": pictures,
        "range": np.array([0.0, 1.0] if low >= -0.01 and high <= 1.01 else [low, high + 1e-9]),
        "order": np.array(words),
        "value": numbers(shown),
    }
    label = label or results.method
    scores = ", ".join(f"{w} {v:.3f}" for w, v in zip(words, data["value"], strict=True))
    display = MapPictures(
        data,
        label=label,
        style=style,
        caption=_caption(data) + f" Seed {results.seed}.",
        alt=f"Test images of {label} with maps of {', '.join(data_titles(data))}. {scores}.",
    )
    classes = min(len(data.get("classes", ())), NAMED)
    lines = -(-classes // 6)
    display.size = (0.35 + 1.0 * len(display.panels), 0.75 + 0.17 * lines + 1.02 * len(words))
    return display


def data_titles(data: dict[str, np.ndarray]) -> list[str]:
    """Return the titles of the columns there are, in words."""
    panels = CLASS_PANELS if "nats limits" in data else VALUE_PANELS
    return [panel.title.replace("\n", " ") for name, panel in panels.items() if name in data]


def _caption(data: dict[str, np.ndarray]) -> str:
    rows = "Rows: test images with the largest mean"
    if "nats limits" in data:
        epistemic = "; mutual information has its own scale" if "epistemic" in data else ""
        return (
            f"{rows} entropy, and those with the most confidence in wrong pixels. Error: wrong"
            f" pixels red, pixels without a label grey. Entropy in nats{epistemic}."
        )
    return (
        f"{rows} variance, and those with the largest error in standard deviations. Truth and mean"
        " share a scale, and so do the absolute error and the standard deviations of noise and"
        " networks; pixels without a target are grey."
    )


def _class_maps(prediction: Prediction, labels: Tensor, results: Results) -> dict[str, np.ndarray]:
    """Return the maps of classes (n, H, W); nothing for predictions of values."""
    if not isinstance(prediction, CategoricalPrediction):
        return {}
    predicted, labels = prediction.classes.cpu(), labels.cpu()
    observed = labels != NOT_OBSERVED
    wrong = (predicted != labels).long().masked_fill(~observed, -1)
    data = {
        "truth": numbers(labels.masked_fill(~observed, -1)),
        "predicted": numbers(predicted),
        "error": numbers(wrong),
        "total": numbers(prediction.predictive_entropy),
        "classes": np.array(class_names(results, prediction.num_outputs)),
    }
    if prediction.has_epistemic:
        data["epistemic"] = numbers(prediction.mutual_information)
        data["nats of networks limits"] = np.array([0.0, max(data["epistemic"].max(), 1e-6)])
    data["nats limits"] = np.array([0.0, max(float(data["total"].max()), 1e-6)])
    return data


def _value_maps(prediction: Prediction, targets: Tensor) -> dict[str, np.ndarray]:
    """Return the maps of the first value at each pixel, (n, H, W)."""
    truth = targets if targets.dim() < prediction.mean.dim() else targets[..., 0]
    mean = prediction.mean[..., 0].detach().cpu()
    data = {
        "truth": numbers(truth),
        "predicted": numbers(mean),
        "error": numbers((truth.cpu().to(mean) - mean).abs()),
        "aleatoric": numbers(prediction.aleatoric_variance[..., 0].sqrt()),
    }
    if prediction.has_epistemic:
        data["epistemic"] = numbers(prediction.epistemic_variance[..., 0].sqrt())
    both = np.concatenate([data["truth"].ravel(), data["predicted"].ravel()])
    spreads = [data[name] for name in ("error", "aleatoric", "epistemic") if name in data]
    data["targets limits"] = np.array([np.nanmin(both), np.nanmax(both) + 1e-9])
    data["errors limits"] = np.array([0.0, max(float(np.nanmax(s)) for s in spreads) + 1e-9])
    return data
