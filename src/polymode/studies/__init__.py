"""Studies: one package a paper, with functions named after its tables and figures."""

from __future__ import annotations

from polymode.runs.part import Arm, Experiment, Part
from polymode.studies.study import STUDIES, Claim, Runs, Study, Table

__all__ = ["STUDIES", "Arm", "Claim", "Experiment", "Part", "Runs", "Study", "Table"]
