"""Displays with one line per method; the legend is inside on given axes, else below the figure."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from polymode.plots.axes import legend_below
from polymode.plots.display import Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


class LineDisplay(Display):
    """One panel, whose labelled lines `_lines` draws."""

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


class PanelDisplay(Display):
    """A panel for each name in `data["metric"]`, one below the other on one horizontal axis."""

    @abstractmethod
    def _lines(self, ax: Axes, metric: str) -> None:
        """Draw one panel except its legend and horizontal axis."""

    @abstractmethod
    def _axis(self, ax: Axes) -> None:
        """Draw the horizontal axis, which the lowest panel has."""

    def plot(self, ax: Axes, metric: str = "") -> Axes:
        """Draw one metric, by default the first."""
        self._lines(ax, metric or str(self.data["metric"][0]))
        self._axis(ax)
        if ax.get_legend_handles_labels()[1]:
            ax.legend()
        return ax

    def draw(self, figure: FigureBase) -> None:
        metrics = [str(metric) for metric in self.data["metric"]]
        panels = np.atleast_1d(figure.subplots(len(metrics), 1, sharex=True))
        for ax, metric in zip(panels, metrics, strict=True):
            self._lines(ax, metric)
        self._axis(panels[-1])
        legend_below(figure, panels[0], self.size[0])
