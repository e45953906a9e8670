"""An audit as one HTML page and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polymode.audits.finding import Evidence, Finding
from polymode.report.embed import rows
from polymode.report.template import fill

if TYPE_CHECKING:
    from polymode.audits.audit import Audit

SIGNS = {"high": "✗", "medium": "!", "low": "~", "none": "✓"}
FIRST = 7  # findings that come before the evidence


def html_of(audit: Audit) -> str:
    """Return one self-contained page: the verdict, at most seven findings, then the evidence."""
    problems = audit.problems
    return fill(
        "audit.html",
        verdict=audit.verdict.replace("`", ""),
        stats=[*audit.facts.items(), ("tests", str(audit.num_tests))],
        severity=audit.severity,
        sign=SIGNS[audit.severity],
        findings=[_shown(f) for f in problems[:FIRST]],
        further=[_shown(f) for f in problems[FIRST:]],
        sound=[_shown(f) for f in audit.findings if not f.rank and f.p_value is not None],
        facts=[_shown(f) for f in audit.findings if not f.rank and f.p_value is None],
        tables=_tables(audit),
        figures=rows(audit.figures),
        refused=list(audit.not_applicable.items()),
        num_tests=audit.num_tests,
    )


def _shown(finding: Finding) -> dict[str, Any]:
    return {
        "sign": SIGNS[finding.severity],
        "severity": finding.severity,
        "name": finding.name,
        "text": finding.text,
        "remedy": finding.remedy.replace("`", ""),
        "p": "" if finding.p_value is None else f"= {p_text(finding.p_value)}".replace("= <", "<"),
        "n": "" if finding.n is None else f"{finding.n:,}",
    }


def p_text(value: float) -> str:
    """Return a p-value for people.

    >>> p_text(0.0312), p_text(1e-9)
    ('0.031', '< 0.001')
    """
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def _tables(audit: Audit) -> list[Evidence]:
    return [table for finding in audit.findings for table in finding.evidence]


def markdown_of(audit: Audit) -> str:
    """Return the same as Markdown, without figures."""
    parts = ["# Audit", audit.verdict, f"Severity: **{audit.severity}**."]
    for finding in audit.problems[:FIRST]:
        parts.append(f"- **{finding.severity}** · {finding.text} {finding.remedy}".rstrip())
    for finding in audit.problems[FIRST:]:
        parts.append(f"- {finding.severity} · {finding.text}")
    for table in _tables(audit):
        parts.append(f"## {table.title}\n\n{_markdown_table(table)}\n\n{table.note}".rstrip())
    if audit.not_applicable:
        lines = [f"- {name}: {reason}" for name, reason in audit.not_applicable.items()]
        parts.append("## Not looked at\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Evidence) -> str:
    def line(cells: Any) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(table.head), line("---" for _ in table.head), *map(line, table.lines)])
