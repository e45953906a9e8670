"""The table of checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from polymode.audits.finding import Finding
from polymode.audits.subject import Subject
from polymode.core.registry import Registry


class NotApplicable(ValueError):
    """Why a check cannot be made here; the page lists it under "not looked at"."""


class Check(Protocol):
    """A check yields findings, significant or not; the audit corrects their p-values together."""

    def __call__(self, subject: Subject, /) -> Iterable[Finding]: ...


CHECKS: Registry[Check] = Registry("check")
LATE = ("shifts", "ood", "attacks", "gains")  # those that take time, after all others


def all_checks() -> list[str]:
    """Return the names of all checks in the order in which they are made."""
    quick = [name for name in CHECKS.names() if name not in LATE]
    return [*quick, *(name for name in LATE if name in CHECKS)]


def need_classes(subject: Subject) -> None:
    """Refuse regressions."""
    if not subject.classification:
        raise NotApplicable("it is for classes")
    need_labels(subject)


def need_one_class(subject: Subject) -> None:
    """Refuse regressions and predictions of each pixel."""
    need_classes(subject)
    if not one_class(subject):
        raise NotApplicable("it is for one class for each input")


def one_class(subject: Subject) -> bool:
    """Whether each test input has one label, a class."""
    return subject.classification and subject.has_labels and not subject.prediction.num_axes


def need_labels(subject: Subject) -> None:
    if not subject.has_labels:
        raise NotApplicable("the test data have no labels")
