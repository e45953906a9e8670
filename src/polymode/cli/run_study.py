"""What `polymode run STUDY` does: run the parts, then show what they show together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

from polymode.cli import keep_what_is_done
from polymode.cli.arguments import parse_seeds, parse_settings
from polymode.cli.progress import watcher
from polymode.cli.study_formats import study_text
from polymode.cli.talk import OUTSIDE, follows, put, say, tell_damage, write
from polymode.distributed.ray import Cluster
from polymode.report.run import write_report
from polymode.report.study import Shown, finish_study, outside
from polymode.runs.folder import RunFolder
from polymode.runs.plan import Plan
from polymode.runs.running import (
    Interrupted,
    Outcome,
    in_jobs,
    leaderboard,
    look_ahead,
    run_plan,
)
from polymode.studies.folder import StudyRequest, begin_study, study_plans


def run_study(
    name: str,
    *,
    preset: str,
    parts: Sequence[str],
    seeds: str | None,
    settings: Sequence[str],
    examine: Sequence[str],
    device: str,
    out: str | None,
    jobs: int,
    cluster: Cluster | None,
    fresh: bool,
    dry_run: bool,
    quiet: bool,
    json_: bool,
) -> NoReturn:
    """Run what is missing of a study and write its page; ends with the exit code."""
    wanted = StudyRequest(
        name,
        preset,
        tuple(dict.fromkeys(parts)),
        tuple(parse_seeds(seeds)) if seeds is not None else (),
        tuple(parse_settings(settings)),
        device,
        tuple(dict.fromkeys(examine)),
    )
    plans = study_plans(wanted)
    path = Path(out) if out else Path("runs") / (name if preset == "cpu" else f"{name}-{preset}")
    folders = {part: RunFolder(path / part) for part in plans}
    for part, plan in plans.items():
        folders[part].check(plan.data)
    if dry_run:
        _dry_run(plans, folders, jobs, fresh, json_)
    keep_what_is_done()
    if follows():
        failed = sum(
            run_plan(plan, folders[part], watcher(True)).failed for part, plan in plans.items()
        )
        raise typer.Exit(1 if failed else 0)
    begin_study(path, wanted, list(plans))
    outcomes: dict[str, Outcome] = {}
    for part, plan in plans.items():
        try:
            outcomes[part] = _run_part(part, plan, folders[part], jobs, fresh, quiet, cluster)
        except KeyboardInterrupt as stop:
            far = f"after {stop} of part {part}" if isinstance(stop, Interrupted) else f"in {part}"
            resume = wanted.command(str(path), *in_jobs(jobs, cluster))
            say(f"Interrupted {far}. Resume: {resume}")
            if json_:
                put({"error": f"interrupted {far}", "exit": 130, "resume": resume})
            raise typer.Exit(130) from None
    shown = finish_study(path)
    _tell(path, shown, outcomes, quiet, json_)


def _run_part(
    part: str,
    plan: Plan,
    folder: RunFolder,
    jobs: int,
    fresh: bool,
    quiet: bool,
    cluster: Cluster | None,
) -> Outcome:
    if not quiet:
        say(f"\n{part}")
    tell_damage(folder, "counts as not done")
    outcome = run_plan(
        plan, folder, watcher(quiet), jobs=jobs, fresh=fresh, quiet=quiet, cluster=cluster
    )
    board = leaderboard(folder, predictions=True)
    if board is not None:
        write_report(folder, board)
    return outcome


def _dry_run(
    plans: dict[str, Plan],
    folders: dict[str, RunFolder],
    jobs: int,
    fresh: bool,
    json_: bool,
) -> NoReturn:
    found: dict[str, Any] = {}
    for part, plan in plans.items():
        ahead = look_ahead(plan, folders[part], jobs=jobs, fresh=fresh)
        seconds = ahead.pace.total(ahead.todo, ahead.jobs)
        counts = {"cells": len(ahead.cells), "todo": len(ahead.todo), "seconds": seconds}
        found[part] = {**counts, "out": str(folders[part].path)}
        if not json_:
            write(f"{part}: {plan.text()}\n{ahead.text}\n")
    if json_:
        put({"parts": found})
    else:
        write("Nothing was written.")
    raise typer.Exit(0)


def _tell(
    path: Path, shown: Shown, outcomes: dict[str, Outcome], quiet: bool, json_: bool
) -> NoReturn:
    failed = sum(outcome.failed for outcome in outcomes.values())
    missed = outside(shown.comparisons)
    if failed:
        where = ", ".join(part for part, outcome in outcomes.items() if outcome.failed)
        say(f"{failed} cell(s) failed; see failures.jsonl in {where}")
    if missed:
        say(f"{missed} of {len(shown.comparisons)} numbers are outside the paper's tolerance")
    code = 1 if failed else OUTSIDE if missed else 0
    if json_:
        cells = {part: outcome._asdict() for part, outcome in outcomes.items()}
        facts = {"out": str(path), "report": str(path / "report.html"), "cells": cells}
        put({**facts, "exit": code, "outside": missed, **shown.to_dict()})
    else:
        if not quiet:
            write(f"\n{study_text(list(shown.tables.values()), shown.claims)}\n")
        write(f"Report: {path / 'report.html'}")
    raise typer.Exit(code)
