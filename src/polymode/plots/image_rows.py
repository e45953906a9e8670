"""Images in rows, one row per kind, such as samples of several priors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.plots.display import INK, Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


class ImageRows(Display):
    """Rows of grey images, with one grey scale per row."""

    dense = True

    def plot(self, ax: Axes, row: str = "", column: int = 0) -> Axes:
        """Draw one image, by default the first."""
        name = row or next(iter(self.data))
        images = self.data[name]
        ax.imshow(
            images[column], cmap="gray", vmin=images.min(), vmax=images.max(), interpolation="none"
        )
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        return ax

    def draw(self, figure: FigureBase) -> None:
        count = max(len(images) for images in self.data.values())
        axes = figure.subplots(len(self.data), count, squeeze=False)
        for line, (name, images) in zip(axes, self.data.items(), strict=True):
            for column, ax in enumerate(line):
                if column < len(images):
                    self.plot(ax, name, column)
                else:
                    ax.set_visible(False)
            line[0].set_ylabel(name, color=INK, fontsize=8)


def image_rows(
    rows: Mapping[str, Sequence[Any] | np.ndarray], *, label: str, caption: str, summary: str
) -> ImageRows:
    """Return images in rows.

    Args:
        rows: images (N, H, W) by the name of the row. label: the title in lists.
        caption: what is shown. summary: its numbers, which are also the description of the figure.
    """
    data = {name: np.asarray(images, float) for name, images in rows.items()}
    for name, images in data.items():
        if images.ndim != 3 or not len(images):
            raise ValueError(f"'{name}' of image_rows must be images (N, H, W), got {images.shape}")
    display = ImageRows(data, label=label, caption=caption, own=summary, alt=f"{label}: {summary}")
    across = max(len(images) for images in data.values())
    display.size = (0.4 + 1.3 * across, 0.2 + 1.3 * len(data))
    return display
