"""Recalibration: predictions corrected on labelled data that the user names, never silently.

`recalibrate` fits a correction on a prediction and its targets; called on another prediction, it
gives the corrected one.
"""

from __future__ import annotations

from polymode.recalibration.recalibration import METHODS, Recalibration, recalibrate
from polymode.recalibration.temperature import fit_temperature

__all__ = ["METHODS", "Recalibration", "fit_temperature", "recalibrate"]
