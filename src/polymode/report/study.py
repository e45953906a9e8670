"""The page of a study: claims, tables with the paper's beside them, figures, and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polymode.plots import Comparison, Display, forest
from polymode.report.embed import figure
from polymode.report.page import compared, duration
from polymode.report.template import fill
from polymode.studies.study import VERDICTS, Claim, Study, Table

SIGNS = dict(zip(VERDICTS, ("✓", "✗", "?", "–"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a study shows, made from its runs.

    `parts` says of each part: task, options, net, members, arms, seeds, cells, failed,
    train_seconds, and the file of its own report.
    """

    name: str
    preset: str
    study: Study
    tables: Mapping[str, Table]
    figures: Mapping[str, Display]
    claims: Sequence[Claim]
    comparisons: Sequence[Comparison]
    parts: Mapping[str, dict[str, Any]]
    command: str
    environment: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return all that is no drawing, JSON-safe."""
        return {
            "tables": {name: table._asdict() for name, table in self.tables.items()},
            "claims": [claim._asdict() for claim in self.claims],
            "comparisons": [
                {**each._asdict(), "verdict": each.verdict} for each in self.comparisons
            ],
            "figures": {
                name: {"caption": display.caption, "alt": display.alt}
                for name, display in self.figures.items()
            },
            "runs": dict(self.parts),
        }


def study_page(shown: Shown) -> str:
    """Return the page as text."""
    study = shown.study
    comparisons = list(shown.comparisons)
    return fill(
        "study.html",
        name=shown.name,
        preset=shown.preset,
        title=study.title,
        paper=study.paper,
        summary=study.summary,
        bibtex=study.bibtex,
        verdict=_verdict(shown),
        stats=_stats(shown),
        claims=[{**claim._asdict(), "sign": SIGNS[claim.verdict]} for claim in shown.claims],
        tables=list(shown.tables.values()),
        figures=[figure(display) for display in shown.figures.values()],
        comparisons=[compared(each) for each in comparisons],
        forest=figure(forest(comparisons)) if comparisons else None,
        parts=shown.parts,
        command=shown.command,
        facts=[
            (k.replace("_", " "), str(v)) for k, v in shown.environment.items() if v is not None
        ],
    )


def _verdict(shown: Shown) -> str:
    """Return the sentence that stands first."""
    counts = [
        f"{sum(claim.verdict == verdict for claim in shown.claims)} {said}"
        for verdict, said in zip(
            VERDICTS, ("hold", "do not hold", "are undecided", "were not run"), strict=True
        )
        if any(claim.verdict == verdict for claim in shown.claims)
    ]
    text = f"Of {len(shown.claims)} claims of the paper, {', '.join(counts)}." if counts else ""
    if shown.preset == "smoke":
        text += " Preset smoke shows that all of it runs; its numbers mean nothing."
    elif not shown.comparisons:
        text += " The set-up is smaller than the paper's: compare signs, not numbers."
    else:
        good = sum(each.verdict in ("reproduced", "better") for each in shown.comparisons)
        text += f" {good} of {len(shown.comparisons)} numbers are within the tolerance or better."
    return text.strip()


def _stats(shown: Shown) -> list[tuple[str, str]]:
    cells = sum(part["cells"] for part in shown.parts.values())
    failed = sum(part["failed"] for part in shown.parts.values())
    trained = sum(part["train_seconds"] for part in shown.parts.values())
    return [
        ("preset", shown.preset),
        ("parts", str(len(shown.parts))),
        ("cells", f"{cells} done" + (f", {failed} failed" if failed else "")),
        ("training", duration(trained)),
    ]
