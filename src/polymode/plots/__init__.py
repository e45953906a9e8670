"""Plots: Display objects that compute once and draw many times; see `display.Display`."""

from __future__ import annotations

from polymode.plots.display import Display, Style, palette
from polymode.plots.ood import ood_histogram
from polymode.plots.regression import regression_band
from polymode.plots.reliability import reliability
from polymode.plots.severity import severity

__all__ = [
    "Display",
    "Style",
    "ood_histogram",
    "palette",
    "regression_band",
    "reliability",
    "severity",
]
