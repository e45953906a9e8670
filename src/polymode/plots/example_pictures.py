"""The test images that a method is least sure of, and those that it gets wrong with confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polymode.core.checks import check_call
from polymode.metrics.examples import MOST, is_image, telling
from polymode.metrics.results import Results
from polymode.plots.confusion import class_names
from polymode.plots.display import INK, Display, Style
from polymode.plots.sources import classes_of, kept_of, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

ORDERS = {"uncertain": "most uncertain", "wrong": "wrong with most confidence"}
LETTERS = 11  # of a class's name above a picture


class ExamplePictures(Display):
    """Two rows of pictures, each with the true class, the predicted one and a number."""

    size = (3.6, 2.45)
    dense = True

    def plot(self, ax: Axes, order: str = "uncertain", place: int = 0) -> Axes:
        """Draw one picture, by default the most uncertain one; `order` is uncertain or wrong."""
        picture = self.data[f"{order} picture"][place]
        low, high = self.data["range"]
        scaled = np.clip((picture - low) / (high - low), 0, 1)
        image = scaled[0] if len(scaled) == 1 else scaled.transpose(1, 2, 0)
        ax.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="none")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        names = [str(self.data[f"{order} {part}"][place]) for part in ("true", "predicted")]
        true, predicted = (n if len(n) <= LETTERS else f"{n[: LETTERS - 1]}…" for n in names)
        value = float(self.data[f"{order} value"][place])
        words = f"{true} → {predicted}" if true != predicted else f"{true} ✓"
        ax.set_title(f"{words}\n{value:.2f}", fontsize=7, color=INK, pad=2)
        return ax

    def draw(self, figure: FigureBase) -> None:
        words = {"uncertain": "most uncertain", "wrong": "surely wrong"}
        grid = figure.subplots(len(ORDERS), int(self.data["shown"][0]), squeeze=False)
        for order, axes in zip(ORDERS, grid, strict=True):
            count = len(self.data[f"{order} value"])
            for place, ax in enumerate(axes):
                if place < count:
                    self.plot(ax, order, place)
                else:
                    ax.axis("off")
            if count:
                axes[0].set_ylabel(words[order], fontsize=7.5, color=INK)
            else:
                axes[0].text(0, 0.5, "none is wrong", color=INK, fontsize=8)
        figure.suptitle(self.label, fontsize=9, color=INK)


def example_pictures(
    results: Results, *, label: str = "", most: int = MOST, style: Style | None = None
) -> ExamplePictures:
    """Return the test images with the largest predictive entropy, and the surest mistakes.

    Above each picture: the true class → the predicted one (✓ where they agree) and the predictive
    entropy in nats, or the confidence.

    Traps: these are the extremes of one seed, not typical examples; several surest mistakes that
    look right to you may be wrong labels.

    Args:
        results: with the "examples" that `evaluate` keeps, of a task with images and classes.
        label: the method's name in the figure; by default its registered one.
        most: pictures in each row, from 1 to 6.
        style: see `palette`; the pictures do not use it.
    """
    check_call(example_pictures, locals())
    if not 1 <= most <= MOST:
        raise ValueError(f"`most` of example_pictures must be from 1 to {MOST}, got {most}")
    examples = kept_of(results, "examples")
    prediction, labels = classes_of(results, "examples", "example_pictures")
    if examples.inputs is None or not is_image(examples.inputs.shape[1:]):
        raise ValueError("example_pictures is for images (C, H, W) with 1 or 3 channels")
    names = class_names(results, prediction.mean.shape[-1])
    pictures = numbers(examples.inputs)
    low, high = float(pictures.min()), float(pictures.max())
    limits = (0.0, 1.0) if low >= -0.01 and high <= 1.01 else (low, max(high, low + 1e-9))
    data = {"range": np.array(limits), "shown": np.array([most])}
    values = (numbers(prediction.predictive_entropy), numbers(prediction.confidence))
    indices = [places.numpy() for places in telling(prediction, labels, most)]
    for order, index, value in zip(ORDERS, indices, values, strict=True):
        data[f"{order} picture"] = pictures[index]
        data[f"{order} value"] = value[index]
        for part, classes in (("true", labels), ("predicted", prediction.classes)):
            words = [names[int(classes[i])] for i in index]
            data[f"{order} {part}"] = np.array(words, dtype=str)
    label = label or results.method
    rows = "; ".join(f"{title}: {_describe(data, order)}" for order, title in ORDERS.items())
    display = ExamplePictures(
        data,
        label=label,
        style=style,
        caption="Test images with the largest predictive entropy (in nats), and wrong answers with"
        f" the highest confidence: true class → predicted class (seed {results.seed}).",
        alt=f"Test images of {label}, true class → predicted class. {rows}.",
    )
    display.size = (0.4 + 0.8 * most, display.size[1])
    return display


def _describe(data: dict[str, np.ndarray], order: str) -> str:
    parts = (data[f"{order} {part}"] for part in ("true", "predicted", "value"))
    pictures = [
        f"{true} → {predicted} {value:.2f}" for true, predicted, value in zip(*parts, strict=True)
    ]
    return ", ".join(pictures) or "none"
