"""Recalibration: predictions corrected on labelled data that the user names, never silently.

`recalibrate` (in `recalibration`, read it first) fits a correction on a prediction and its targets;
called on another prediction, the correction returns the corrected one. `temperature`, `affine`,
`one_vs_rest`, `scale` and `cdf_map` hold the methods, `minimise` the one- and many-dimensional
minimisers.
"""

from __future__ import annotations

from polymode.recalibration.recalibration import METHODS, Recalibration, recalibrate
from polymode.recalibration.temperature import fit_temperature

__all__ = ["METHODS", "Recalibration", "fit_temperature", "recalibrate"]
