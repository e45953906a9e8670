"""The page of a study: claims, tables with the paper's numbers, figures, and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polymode.core.safe_files import replace_file
from polymode.plots import Comparison, Display, forest
from polymode.report.embed import rows
from polymode.report.page import compared, duration
from polymode.report.template import fill
from polymode.runs.run_folder import RunFolder
from polymode.runs.settings import UsageProblem
from polymode.studies.study import VERDICTS, Claim, Runs, Study, Table
from polymode.studies.study_folder import read_study, study_named, write_study

SIGNS = dict(zip(VERDICTS, ("✓", "✗", "?", "–"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a study shows, made from its runs.

    Attributes:
        name, preset: of the study. study: its entry.
        tables, figures: by name. claims, comparisons: with the paper.
        parts: task, options, net, members, arms, seeds, cells, failed, train_seconds, and the file
            of the report, of each part.
        command: that runs it. environment: versions and machine.
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
        """Return everything except drawings, JSON-safe."""
        return {
            "tables": {name: table._asdict() for name, table in self.tables.items()},
            "claims": [claim._asdict() for claim in self.claims],
            "comparisons": [{**row._asdict(), "verdict": row.verdict} for row in self.comparisons],
            "figures": {
                name: {"caption": display.caption, "alt": display.alt}
                for name, display in self.figures.items()
            },
            "runs": dict(self.parts),
        }


def read_summary(path: Path, *, figures: bool = True) -> Summary:
    """Return what a study shows, made from the files of its parts; figures need predictions."""
    held = read_study(path)
    study = study_named(held["study"])
    folders = {name: RunFolder(path / name) for name in held["parts"]}
    present = {name: folder for name, folder in folders.items() if folder.path.is_dir()}
    runs = Runs({name: folder.results(predictions=figures) for name, folder in present.items()})
    if not runs.parts:
        raise UsageProblem(f"{path} has no finished cell yet; run it first")
    return Summary(
        name=held["study"],
        preset=held["preset"],
        study=study,
        tables=study.tables(runs),
        figures=study.figures(runs) if figures else {},
        claims=study.claims(runs),
        comparisons=study.comparisons(held["preset"], runs),
        parts={name: _about(name, present[name], runs) for name in runs.parts},
        command=held.get("command", ""),
        environment=next((f.read("environment.json") for f in present.values()), {}),
    )


def finish_study(path: Path, page: Path | None = None) -> Summary:
    """Make tables, figures, claims and the page, and write them; the page to `page` if given."""
    summary = read_summary(path)
    for name, display in summary.figures.items():
        (path / "figures").mkdir(exist_ok=True)
        replace_file(path / "figures" / f"{name}.svg", display.to_svg().encode())
        replace_file(path / "figures" / f"{name}.csv", display.to_csv().encode())
    write_study(path, {**read_study(path), **summary.to_dict()})
    replace_file(page or path / "report.html", study_page(summary).encode())
    return summary


def _about(name: str, folder: RunFolder, runs: Runs) -> dict[str, Any]:
    """Return what the page says of a part."""
    config, results = folder.config(), runs.all(name)
    trained = sum(cell.cost.train_seconds or 0.0 for cell in results)
    return {
        "task": config.get("data", {}).get("task", ""),
        "options": config.get("data", {}).get("options", {}),
        "net": results[0].net,
        "members": results[0].cost.num_modes,
        "arms": runs.arms(name),
        "seeds": sorted({cell.seed for cell in results}),
        "cells": len(results),
        "failed": len(folder.failures()),
        "train_seconds": round(trained, 1),
        "report": f"{name}/report.html",
    }


def outside(comparisons: Sequence[Comparison]) -> int:
    """Return how many numbers are outside the paper's tolerance."""
    return sum(row.verdict == "outside" for row in comparisons)


def study_page(summary: Summary) -> str:
    """Return the page as text."""
    study = summary.study
    comparisons = list(summary.comparisons)
    return fill(
        "study.html",
        name=summary.name,
        preset=summary.preset,
        title=study.title,
        paper=study.paper,
        summary=study.summary,
        bibtex=study.bibtex,
        verdict=_verdict(summary),
        stats=_stats(summary),
        claims=[{**claim._asdict(), "sign": SIGNS[claim.verdict]} for claim in summary.claims],
        tables=list(summary.tables.values()),
        figures=rows(list(summary.figures.values())),
        comparisons=[compared(row) for row in comparisons],
        forest=rows([forest(comparisons)]) if comparisons else None,
        parts=summary.parts,
        command=summary.command,
        facts=[
            (k.replace("_", " "), str(v)) for k, v in summary.environment.items() if v is not None
        ],
    )


def _verdict(summary: Summary) -> str:
    """Return the first sentence of the page."""
    counts = [
        f"{sum(claim.verdict == verdict for claim in summary.claims)} {words}"
        for verdict, words in zip(
            VERDICTS, ("hold", "do not hold", "are undecided", "were not run"), strict=True
        )
        if any(claim.verdict == verdict for claim in summary.claims)
    ]
    text = f"Of {len(summary.claims)} claims of the paper, {', '.join(counts)}." if counts else ""
    if summary.preset == "smoke":
        text += " Preset smoke shows that all of it runs; its numbers mean nothing."
    elif not summary.comparisons:
        text += " The set-up is smaller than the paper's: compare signs, not numbers."
    else:
        good = sum(row.verdict in ("reproduced", "better") for row in summary.comparisons)
        text += f" {good} of {len(summary.comparisons)} numbers are within the tolerance or better."
    return text.strip()


def _stats(summary: Summary) -> list[tuple[str, str]]:
    cells = sum(part["cells"] for part in summary.parts.values())
    failed = sum(part["failed"] for part in summary.parts.values())
    trained = sum(part["train_seconds"] for part in summary.parts.values())
    return [
        ("preset", summary.preset),
        ("parts", str(len(summary.parts))),
        ("cells", f"{cells} done" + (f", {failed} failed" if failed else "")),
        ("training", duration(trained)),
    ]
