"""Examinations: what is measured of a posterior itself, not of its predictions."""

from __future__ import annotations

from polymode.examinations.examination import EXAMINATIONS, Asked, examine, read_asked
from polymode.examinations.findings import (
    DISPLAYS,
    Findings,
    NotApplicable,
    findings_of,
    measure,
)

__all__ = [
    "DISPLAYS",
    "EXAMINATIONS",
    "Asked",
    "Findings",
    "NotApplicable",
    "examine",
    "findings_of",
    "measure",
    "read_asked",
]
