"""`audit`: from a network and test data to findings that are corrected for how many were tested."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from polymode._version import __version__
from polymode.audits.checks import CHECKS, NotApplicable, all_checks
from polymode.audits.figures import figures_of
from polymode.audits.finding import LEVEL, SEVERITIES, Finding
from polymode.audits.sources import Sources, as_posterior, subject_of
from polymode.audits.subject import Subject
from polymode.core.safe_files import json_safe, replace_file
from polymode.likelihoods.kinds import Likelihood
from polymode.metrics.paired import not_rejected
from polymode.plots.display import Display
from polymode.posterior import Posterior

MOST = 7  # findings that a page starts with

CAUSES = ("baseline", "confusions", "data", "duplicates", "label_errors")
"""Checks whose findings explain those of others: swapped classes look overconfident, too."""


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        findings: all of them, the most severe first; those whose test did not reject are "none".
        not_applicable: checks that could not be made, with the reason.
        facts: what was audited, for people.
        best: the best posterior of those that were tried, the networks as they are if none is
            better: `audit.best.save(...)`.
        figures: for the page.
    """

    findings: Sequence[Finding]
    not_applicable: Mapping[str, str]
    facts: Mapping[str, str]
    best: Posterior | None = field(default=None, repr=False, compare=False)
    figures: Sequence[Display] = field(default=(), repr=False, compare=False)

    @property
    def problems(self) -> list[Finding]:
        """Findings of any severity, the most severe first."""
        return [finding for finding in self.findings if finding.rank]

    @property
    def severity(self) -> str:
        """The highest severity."""
        return SEVERITIES[max((finding.rank for finding in self.findings), default=0)]

    @property
    def num_tests(self) -> int:
        return sum(finding.p_value is not None for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The audit in a sentence or two."""
        if not self.num_tests:
            return "Nothing could be tested with these data; the page says why."
        if not self.problems:
            return (
                f"Sound, as far as these data tell: none of {self.num_tests} tests found a problem."
            )
        first = self.problems[0]
        others = len(self.problems) - 1
        more = f" {others} more finding{'s' * (others > 1)} below." if others else ""
        return f"{first.text} {first.remedy}{more}"

    def __repr__(self) -> str:
        lines = [f"{finding.severity}: {finding.text}" for finding in self.problems[:MOST]]
        return "\n".join([f"Audit: {self.verdict}", *lines[1:]])

    def fails(self, severity: str = "medium") -> bool:
        """Whether any finding is at least as severe."""
        if severity not in SEVERITIES[1:]:
            raise ValueError(
                f"`severity` must be one of {', '.join(SEVERITIES[1:])}, got {severity!r}"
            )
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, JSON-safe."""
        return {
            "polymode": __version__,
            "verdict": self.verdict,
            "severity": self.severity,
            "num_tests": self.num_tests,
            "findings": [finding.to_dict() for finding in self.findings],
            "not_applicable": dict(self.not_applicable),
            "facts": {key: json_safe(value) for key, value in self.facts.items()},
        }

    def to_markdown(self) -> str:
        """Return the verdict, the findings and their evidence as Markdown."""
        from polymode.audits.page import markdown_of

        return markdown_of(self)

    def to_html(self) -> str:
        """Return one self-contained page."""
        from polymode.audits.page import html_of

        return html_of(self)

    def save(self, folder: str | Path) -> Path:
        """Write audit.html, audit.md and audit.json into a folder; return the page's path."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("audit.json", json.dumps(self.to_dict(), indent=1, ensure_ascii=False)),
            ("audit.md", self.to_markdown()),
            ("audit.html", self.to_html()),
        ):
            replace_file(folder / name, text.encode())
        return folder / "audit.html"


def audit(
    net: nn.Module | Sequence[nn.Module] | Posterior,
    test: Any,
    *,
    val: Any = None,
    train: Any = None,
    groups: Mapping[str, Any] | None = None,
    ood: Mapping[str, Any] | None = None,
    baseline: nn.Module | Sequence[nn.Module] | Posterior | None = None,
    likelihood: str | Likelihood = "categorical",
    output: str | int | None = None,
    checks: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    budget: float = 600.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Return what can be said of networks that are already trained; nothing is trained again.

    Args:
        net: a trained module that returns logits, a list of modules (an ensemble), or a posterior.
        test: labelled data that the network was not trained on: (x, y), a `Dataset` or a
            `DataLoader`, as in `pm.Task(test=...)`; or a `Task` with its sets. Inputs alone, an
            array or a dictionary, are data without labels, of which less can be said.
        val: further labelled data, on which temperatures and thresholds are chosen.
        train: what the network was trained on; only looked at.
        groups: columns of the test set by name, a value for each example.
        ood: data sets from elsewhere, by name, as in `pm.Task(ood=...)`.
        baseline: an older version, to compare with example by example.
        likelihood: "categorical", or that of a regression, such as "heteroscedastic_gaussian". For
            "gaussian" without `noise`, its standard deviation is that of the errors on `val`.
        output: name or place of the logits in what the network returns, as in `pm.fit`.
        checks: names of checks; all by default.
        class_names: in the order of the labels.
        budget: seconds for the checks that fit, attack or draw.
        seed: of everything random.
        progress: called with the name of each check before it is made.

    Returns:
        An `Audit`: `audit.verdict`, `audit.findings`, `audit.save("folder")`.

    >>> import torch, polymode as pm
    >>> x, net = torch.randn(500, 4), torch.nn.Linear(4, 3)
    >>> y = torch.distributions.Categorical(logits=net(x)).sample()
    >>> pm.audit(net, (x, y)).severity
    'none'
    """
    data = Sources(test, val, train, ood or {}, likelihood, output, class_names)
    subject = subject_of(net, data)
    if baseline is not None:
        subject.baseline = as_posterior(baseline, subject.task, output)
    subject.groups = _groups(groups or {}, len(subject.targets))
    subject.budget, subject.seed = budget, seed
    return look(subject, checks, progress)


def look(
    subject: Subject,
    checks: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Let checks look at a subject, and correct what they say for how many tests there are."""
    findings: list[Finding] = []
    refused: dict[str, str] = {}
    for name in all_checks() if checks is None else checks:
        if progress is not None:
            progress(name)
        try:
            findings += CHECKS.get(name).value(subject)
        except NotApplicable as reason:
            refused[name] = str(reason)
    best = subject.best or subject.post
    return Audit(corrected(findings), refused, _facts(subject), best, figures_of(subject))


def corrected(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings sorted by severity, causes before what follows from them; those that Holm's
    correction does not reject are "none".

    The probability of any false alarm is at most 5 % over all tests of an audit.
    """
    findings = list(findings)
    tested = {
        f"{number}": finding.p_value
        for number, finding in enumerate(findings)
        if finding.p_value is not None
    }
    sound = not_rejected(tested, LEVEL)
    judged = [
        replace(finding, severity="none") if f"{number}" in sound else finding
        for number, finding in enumerate(findings)
    ]
    order = {id(finding): place for place, finding in enumerate(judged)}
    return sorted(judged, key=lambda f: (-f.rank, f.rank and f.check not in CAUSES, order[id(f)]))


def _groups(groups: Mapping[str, Any], n: int) -> dict[str, np.ndarray]:
    columns = {}
    for name, values in groups.items():
        values = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
        if values.shape != (n,):
            raise ValueError(
                f"group '{name}' must have one value for each of the {n:,} test examples, got shape"
                f" {values.shape}"
            )
        columns[name] = values.astype(str)
    return columns


def _facts(subject: Subject) -> dict[str, str]:
    stack = subject.post.stack
    sets = {"test": len(subject.targets)}
    if subject.val is not None:
        sets["validation"] = len(subject.val[1])
    if subject.train is not None:
        sets["training"] = len(subject.train[1])
    return {
        "network": type(stack.template).__name__,
        "members": str(subject.post.num_modes),
        "parameters": f"{stack.num_parameters:,}",
        **{f"{name} examples": f"{number:,}" for name, number in sets.items()},
    }
