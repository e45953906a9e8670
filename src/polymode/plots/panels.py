"""Several displays of one kind side by side on shared axes, one panel per method."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polymode.core.checks import check_call
from polymode.plots.display import INK, LETTER, Display
from polymode.plots.regression_band import RegressionBand
from polymode.plots.uncertainty_maps import UncertaintyMaps, color_bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

ACROSS = 4  # panels in a row, at most
WIDTH, HEIGHT = 2.0, 1.9  # inches of a panel


class Panels(Display):
    """A grid of one panel from each of several displays."""

    displays: Sequence[Display]

    def plot(self, ax: Axes, label: str = "") -> Axes:
        """Draw one panel, by default the first."""
        names = [display.label for display in self.displays]
        _panel(self.displays[names.index(label) if label else 0], ax)
        return ax

    def draw(self, figure: FigureBase) -> None:
        across = min(ACROSS, len(self.displays))
        down = -(-len(self.displays) // across)
        axes = np.atleast_1d(figure.subplots(down, across, sharex=True, sharey=True)).ravel()
        for ax, display in zip(axes, self.displays, strict=False):
            _panel(display, ax)
            ax.set_ylabel(ax.get_ylabel() if ax.get_subplotspec().is_first_col() else "")  # type: ignore[union-attr]
            ax.set_xlabel(ax.get_xlabel() if ax.get_subplotspec().is_last_row() else "")  # type: ignore[union-attr]
        for ax in axes[len(self.displays) :]:
            ax.set_visible(False)
        first = self.displays[0]
        if isinstance(first, UncertaintyMaps):
            color_bar(figure, list(axes), first.data["limits"])
        else:
            handles, names = axes[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower center", ncols=len(names))


def _panel(display: Display, ax: Axes) -> None:
    if isinstance(display, RegressionBand):
        display.bands(ax, "epistemic")
    else:
        display.plot(ax)
    ax.set_title(textwrap.fill(display.label, int(WIDTH / LETTER)), color=INK)


def panels(
    displays: Mapping[str, Display] | Sequence[Display], *, label: str, caption: str
) -> Panels:
    """Return the epistemic bands, or the maps of predictive entropy, of several methods together.

    Args:
        displays: of `regression_band`, drawn with the same `view`, or of `uncertainty_maps`, drawn
            with the same `limits`; at least one.
        label: the title in lists. caption: what is shown; the alt texts of the displays follow it.
    """
    check_call(panels, locals())
    several = list(displays.values() if isinstance(displays, Mapping) else displays)
    if not several:
        raise ValueError("there is nothing to draw: give at least one display")
    kinds: set[Callable[..., Any]] = {type(panel) for panel in several}
    if len(kinds) > 1 or not isinstance(several[0], (RegressionBand, UncertaintyMaps)):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"panels shows bands of regressions or maps of uncertainty, got {names}")
    data = {
        f"{display.label}: {key}": values
        for display in several
        for key, values in display.data.items()
        if key not in ("aleatoric", "epistemic")  # maps that are not drawn here
    }
    grid = Panels(
        data,
        label=label,
        caption=caption,
        alt=f"{label}, {len(several)} panels. " + " ".join(panel.alt for panel in several),
    )
    grid.displays = several
    across = min(ACROSS, len(several))
    down = -(-len(several) // across)
    grid.size = (0.6 + WIDTH * across, 0.6 + HEIGHT * down)
    return grid
