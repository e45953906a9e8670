"""The page of a study: claims, tables with the paper's numbers, figures, and its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polymode.core.files import replace_file
from polymode.plots import Comparison, Display, forest
from polymode.report.embed import rows
from polymode.report.page import compared, duration
from polymode.report.template import fill
from polymode.runs.folder import RunFolder
from polymode.runs.settings import UsageProblem
from polymode.studies.folder import read_study, study_named, write_study
from polymode.studies.study import VERDICTS, Claim, Runs, Study, Table

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
        """Return everything except drawings, JSON-safe."""
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


def read_shown(path: Path, *, figures: bool = True) -> Shown:
    """Return what a study shows, made from the files of its parts; figures need predictions."""
    held = read_study(path)
    study = study_named(held["study"])
    folders = {name: RunFolder(path / name) for name in held["parts"]}
    there = {name: folder for name, folder in folders.items() if folder.path.is_dir()}
    runs = Runs({name: folder.results(predictions=figures) for name, folder in there.items()})
    if not runs.parts:
        raise UsageProblem(f"{path} has no finished cell yet; run it first")
    return Shown(
        name=held["study"],
        preset=held["preset"],
        study=study,
        tables=study.tables(runs),
        figures=study.figures(runs) if figures else {},
        claims=study.claims(runs),
        comparisons=study.comparisons(held["preset"], runs),
        parts={name: _about(name, there[name], runs) for name in runs.parts},
        command=held.get("command", ""),
        environment=next((f.read("environment.json") for f in there.values()), {}),
    )


def finish_study(path: Path, page: Path | None = None) -> Shown:
    """Make tables, figures, claims and the page, and write them; the page to `page` if given."""
    shown = read_shown(path)
    for name, display in shown.figures.items():
        (path / "figures").mkdir(exist_ok=True)
        replace_file(path / "figures" / f"{name}.svg", display.to_svg().encode())
        replace_file(path / "figures" / f"{name}.csv", display.to_csv().encode())
    write_study(path, {**read_study(path), **shown.to_dict()})
    replace_file(page or path / "report.html", study_page(shown).encode())
    return shown


def _about(name: str, folder: RunFolder, runs: Runs) -> dict[str, Any]:
    """Return what the page says of a part."""
    config, results = folder.config(), runs.all(name)
    trained = sum(each.cost.train_seconds or 0.0 for each in results)
    return {
        "task": config.get("data", {}).get("task", ""),
        "options": config.get("data", {}).get("options", {}),
        "net": results[0].net,
        "members": results[0].cost.num_modes,
        "arms": runs.arms(name),
        "seeds": sorted({each.seed for each in results}),
        "cells": len(results),
        "failed": len(folder.failures()),
        "train_seconds": round(trained, 1),
        "report": f"{name}/report.html",
    }


def outside(comparisons: Sequence[Comparison]) -> int:
    """Return how many numbers are outside the paper's tolerance."""
    return sum(each.verdict == "outside" for each in comparisons)


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
        figures=rows(list(shown.figures.values())),
        comparisons=[compared(each) for each in comparisons],
        forest=rows([forest(comparisons)]) if comparisons else None,
        parts=shown.parts,
        command=shown.command,
        facts=[
            (k.replace("_", " "), str(v)) for k, v in shown.environment.items() if v is not None
        ],
    )


def _verdict(shown: Shown) -> str:
    """Return the first sentence of the page."""
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
