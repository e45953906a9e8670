"""Examinations: measurements of a posterior itself, not of its predictions.

Read `examination` first: their registry, and `examine`; `findings` is what one returns. Here are
`convergence`, `pairs`, `laplace_evidence` and `reference_posterior`, with figures in `plots`; a
subject has its examination and figures in its own room.
"""

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
