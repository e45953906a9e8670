"""Reconstructions of an image: pictures beside the truth, and errors against what was predicted.

In the pictures, images share one grey scale, and error and standard deviation share another one, so
that one sees at once whether the error bars are where the errors are, and as large. In the second
figure, pixels are sorted into bins by their predicted standard deviation; on the diagonal errors
are as large as predicted, above it a method is too sure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.axes import plain_log
from polymode.plots.display import INK, PALE, Display, Style, palette
from polymode.plots.lines import LineDisplay
from polymode.plots.sources import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

ERROR, SD = "|error|", "standard deviation"
COLORS = "viridis"


class ReconstructionPictures(Display):
    """Images in a row, then error and standard deviation."""

    dense = True

    def __init__(self, data: dict[str, np.ndarray], **more: Any) -> None:
        self.size = (0.6 + 1.25 * sum(values.ndim == 2 for values in data.values()), 1.75)
        super().__init__(data, **more)

    @property
    def panels(self) -> list[str]:
        """Names of the pictures."""
        return [name for name, values in self.data.items() if values.ndim == 2]

    def plot(self, ax: Axes, panel: str = "") -> Axes:
        """Draw one picture, by default the first."""
        panel = panel or self.panels[0]
        uncertain = panel in (ERROR, SD)
        low, high = self.data["uncertain range" if uncertain else "range"]
        ax.imshow(
            self.data[panel],
            cmap=COLORS if uncertain else "gray",
            vmin=low,
            vmax=high,
            interpolation="none",
        )
        ax.set(xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.set_title(panel, color=INK, fontsize=8)
        return ax

    def draw(self, figure: FigureBase) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        axes = figure.subplots(1, len(self.panels), squeeze=False)[0]
        for ax, panel in zip(axes, self.panels, strict=True):
            self.plot(ax, panel)
        scale = ScalarMappable(Normalize(*self.data["uncertain range"]), COLORS)
        bar = figure.colorbar(scale, ax=axes, pad=0.01, aspect=14, shrink=0.75)
        bar.outline.set_visible(False)  # type: ignore[operator]
        figure.suptitle(self.label, fontsize=9, color=INK)


def reconstruction_pictures(
    truth: Any,
    mean: Any,
    sd: Any = None,
    *,
    others: Mapping[str, Any] | None = None,
    label: str = "reconstruction",
    style: Style | None = None,
) -> ReconstructionPictures:
    """Return the pictures of one image: truth, others, reconstruction, error, standard deviation.

    Traps: one image is an example, not a score; a colour scale for each panel would hide that a
    standard deviation is ten times too small.

    Args:
        truth, mean, sd: the image, its reconstruction and its standard deviations, (H, W), tensors
            or arrays; axes of length 1 are dropped. Without `sd` there is no such panel.
        others: further reconstructions by name, e.g. {"FBP": ...}.
        label: the title. style: not used, pictures have their own colours.
    """
    check_call(reconstruction_pictures, locals())
    images = {"truth": truth, **(others or {}), "reconstruction": mean}
    data = {name: _picture(name, image) for name, image in images.items()}
    spread = None if sd is None else _picture("sd", sd)
    shapes = {values.shape for values in (*data.values(), *([] if spread is None else [spread]))}
    if len(shapes) > 1:
        raise ValueError(f"the images of reconstruction_pictures must have one size, got {shapes}")
    error = data[ERROR] = np.abs(data["reconstruction"] - data["truth"])
    if spread is not None:
        data[SD] = spread
    top = max(float(data[name].max()) for name in (ERROR, SD) if name in data)
    data["range"] = np.array([data["truth"].min(), data["truth"].max() + 1e-12])
    data["uncertain range"] = np.array([0.0, max(top, 1e-12)])
    rmse = float(np.sqrt((error**2).mean()))
    errors = f"root mean squared error {rmse:.3g}"
    if spread is not None:
        errors += f", root mean squared standard deviation {float(np.sqrt((spread**2).mean())):.3g}"
    height, width = error.shape
    return ReconstructionPictures(
        data,
        label=label,
        style=style,
        caption=f"An image of {height} × {width} pixels and its reconstructions in one grey scale,"
        " that of the truth; error and standard deviation in one colour scale from 0 to"
        f" {data['uncertain range'][1]:.2g}.",
        own=f"{errors[0].upper()}{errors[1:]}.",
        alt=f"Pictures of {', '.join(k for k, v in data.items() if v.ndim == 2)} of {label}:"
        f" {errors} over {height * width:,} pixels.",
    )


class ErrorCalibration(LineDisplay):
    """Error against predicted standard deviation, a line for each method."""

    size = (3.6, 3.2)

    def _lines(self, ax: Axes) -> None:
        low, high = self.data["limits"]
        ax.plot([low, high], [low, high], color=PALE, linestyle="--", linewidth=1, zorder=1)
        for name, style in self.styles.items():
            ax.plot(
                self.data[f"{name}: predicted"],
                self.data[f"{name}: error"],
                color=style.color,
                marker=style.marker,
                markersize=3.5,
                linewidth=1.2,
                label=name,
            )
        ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        ax.set(xlabel="predicted standard deviation", ylabel="root mean squared error")
        plain_log(ax.xaxis)
        plain_log(ax.yaxis)
        ax.set_title(self.title, color=INK)


def error_calibration(
    curves: Mapping[str, tuple[Any, Any]],
    *,
    label: str = "calibration of pixels",
    pixels: int | None = None,
) -> ErrorCalibration:
    """Return root mean squared errors of bins of pixels against their predicted deviations.

    Traps: a method that predicts one deviation for all pixels is one point, which may lie on the
    diagonal; pixels of an image are not independent, so there is no band of chance.

    Args:
        curves: by method, predicted standard deviation and root mean squared error of each bin, two
            sequences of positive numbers of one length.
        label: the title. pixels: how many are behind each curve, for the caption.
    """
    check_call(error_calibration, locals())
    if not curves:
        raise ValueError("there is nothing to draw: 0 curves")
    data: dict[str, np.ndarray] = {}
    ratios = []
    for name, (predicted, error) in curves.items():
        x, y = numbers(predicted), numbers(error)
        if x.shape != y.shape or x.ndim != 1 or not (np.all(x > 0) and np.all(y > 0)):
            raise ValueError(
                f"the curve '{name}' of error_calibration must be two sequences of positive numbers"
                f" of one length, got shapes {x.shape} and {y.shape}, least {min(x.min(), y.min())}"
            )
        data[f"{name}: predicted"], data[f"{name}: error"] = x, y
        ratio = float(np.exp(np.log(y / x).mean()))
        ratios.append(f"{name} {ratio:.2g}")
    every = np.concatenate(list(data.values()))
    data["limits"] = np.array([every.min() / 1.3, every.max() * 1.3])
    of = f" ({pixels:,} pixels per method)" if pixels else ""
    return ErrorCalibration(
        data,
        label=label,
        styles=palette(curves),
        caption="Pixels in bins by their predicted standard deviation: root mean squared error"
        f" against it{of}. On the dashed line errors are as large as predicted; above it a method"
        " is too sure.",
        own=f"Error over prediction, geometric mean of the bins: {', '.join(ratios)}.",
        alt=f"Error against predicted standard deviation; error over prediction, geometric mean of"
        f" the bins: {', '.join(ratios)}.",
    )


def _picture(name: str, image: Any) -> np.ndarray:
    values = numbers(image)
    values = values.reshape([n for n in values.shape if n > 1])
    if values.ndim != 2:
        raise ValueError(
            f"`{name}` of reconstruction_pictures must be one image (H, W), got {values.shape};"
            " pick one of several, e.g. reconstruction.mean[0]"
        )
    return values
