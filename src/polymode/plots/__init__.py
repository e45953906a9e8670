"""Plots: Display objects that compute once and draw many times; see `display.Display`.

Read `display` first. `lines` has displays of one line per method, `axes` and `sources` what several
figures share; every other file is one figure, `severity` two.

Calibration: `reliability`, `confidence_gap`, `regression_calibration`. Selective prediction:
`risk_coverage`. Mistakes: `confusion`, `example_pictures`. Uncertainty: `ood_histogram`,
`entropy_scatter`, `uncertainty_maps`, `regression_band`. Shift: `severity`, `severity_spread`.
Members: `diversity_heat_map`, `diversity_plane`, `pair_density`, `size_curve`. Symmetry:
`orbit_curve`. Pixels: `map_pictures`, `pixel_reliability`. Images: `reconstruction_pictures`,
`error_calibration`. Attacks: `attack_curves`, `detection_curves`, `attack_trajectory`. Choices:
`cost_pareto`, `sweep`. Papers: `dots`, `forest`, `panels`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polymode.plots.confidence_gap import confidence_gap
from polymode.plots.confusion import confusion
from polymode.plots.cost_pareto import cost_pareto
from polymode.plots.display import Display, Style, palette
from polymode.plots.diversity_heat_map import diversity_heat_map
from polymode.plots.diversity_plane import diversity_plane
from polymode.plots.dots import dots
from polymode.plots.entropy_scatter import entropy_scatter
from polymode.plots.example_pictures import example_pictures
from polymode.plots.forest import Comparison, forest
from polymode.plots.map_pictures import map_pictures
from polymode.plots.ood_histogram import ood_histogram
from polymode.plots.pair_density import pair_density
from polymode.plots.panels import panels
from polymode.plots.pixel_reliability import pixel_reliability
from polymode.plots.regression_band import regression_band
from polymode.plots.regression_calibration import regression_calibration
from polymode.plots.reliability import reliability
from polymode.plots.risk_coverage import risk_coverage
from polymode.plots.severity import severity, severity_spread
from polymode.plots.size_curve import size_curve
from polymode.plots.sweep import sweep
from polymode.plots.uncertainty_maps import map_limits, uncertainty_maps

if TYPE_CHECKING:
    from polymode.adversary.plots import attack_curves, attack_trajectory, detection_curves
    from polymode.equivariance.plots import orbit_curve
    from polymode.tomography.plots import error_calibration, reconstruction_pictures

__all__ = [
    "Comparison",
    "Display",
    "Style",
    "attack_curves",
    "attack_trajectory",
    "confidence_gap",
    "confusion",
    "cost_pareto",
    "detection_curves",
    "diversity_heat_map",
    "diversity_plane",
    "dots",
    "entropy_scatter",
    "error_calibration",
    "example_pictures",
    "forest",
    "map_limits",
    "map_pictures",
    "ood_histogram",
    "orbit_curve",
    "pair_density",
    "palette",
    "panels",
    "pixel_reliability",
    "reconstruction_pictures",
    "regression_band",
    "regression_calibration",
    "reliability",
    "risk_coverage",
    "severity",
    "severity_spread",
    "size_curve",
    "sweep",
    "uncertainty_maps",
]

# Pictures of a subject are in its room, which builds on this one: imported on demand.
_SUBJECTS = {
    "attack_curves": "adversary",
    "attack_trajectory": "adversary",
    "detection_curves": "adversary",
    "error_calibration": "tomography",
    "orbit_curve": "equivariance",
    "reconstruction_pictures": "tomography",
}


def __getattr__(name: str) -> Any:
    if name not in _SUBJECTS:
        raise AttributeError(f"module 'polymode.plots' has no attribute '{name}'")
    return getattr(import_module(f"polymode.{_SUBJECTS[name]}.plots"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
