"""What a check says: a sentence, an estimate with its interval, a test, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from polymode.core.safe_files import json_safe

SEVERITIES = ("none", "low", "medium", "high")
LEVEL = 0.95  # of intervals, and of all tests of an audit together


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A table that stands behind a finding: a title, a head and lines of text."""

    title: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that an audit has looked at.

    Attributes:
        check: name of the check.
        name: what it is about, unique within an audit: "overconfident", "group city=Ulm".
        text: what is so, in a sentence with its numbers.
        remedy: what to do about it; empty where nothing has to be done.
        severity: one of `SEVERITIES`, if the test rejects; a finding whose test does not reject
            after correction is "none".
        estimate, low, high: the quantity with its 95 % interval, in `unit`.
        p_value: of the hypothesis that all is well; None for facts that need no test.
        n: examples it rests on.
        evidence: tables for the page.
        kind: "problem", "fact" (what is so, good or bad) or "gain" (what a remedy brings).
    """

    check: str
    name: str
    text: str
    remedy: str = ""
    severity: str = "none"
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    p_value: float | None = None
    n: int | None = None
    kind: str = "problem"
    evidence: Sequence[Evidence] = field(default=())

    def __post_init__(self) -> None:
        assert self.severity in SEVERITIES, self.severity

    @property
    def rank(self) -> int:
        """How severe: 0 for none."""
        return SEVERITIES.index(self.severity)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, JSON-safe."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        facts["evidence"] = [vars(table) for table in self.evidence]
        return {key: json_safe(value) for key, value in facts.items()}


def percent(value: float, digits: int = 0) -> str:
    """Return a share for people.

    >>> percent(0.9372), percent(0.0018, 1)
    ('94 %', '0.2 %')
    """
    return f"{100 * value:.{digits}f} %"


def interval_text(low: float, high: float, digits: int = 0) -> str:
    """Return an interval of shares: "[86, 90] %".

    >>> interval_text(0.8604, 0.9012)
    '[86, 90] %'
    """
    return f"[{100 * low:.{digits}f}, {100 * high:.{digits}f}] %"
