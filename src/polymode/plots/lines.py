"""Displays of one panel with a line a method: the legend inside on given axes, else below."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from polymode.plots.axes import legend_below
from polymode.plots.display import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


class LineDisplay(Display):
    """What draws its lines in `_lines`, with their labels."""

    @abstractmethod
    def _lines(self, ax: Axes) -> None:
        """Draw everything but the legend."""

    def plot(self, ax: Axes) -> Axes:
        self._lines(ax)
        ax.legend()
        return ax

    def draw(self, figure: FigureBase) -> None:
        ax = figure.add_subplot()
        self._lines(ax)
        legend_below(figure, ax, self.size[0])
