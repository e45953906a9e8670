"""What `polymode run STUDY` does: run the parts, then show what they show together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import typer

from polymode.cli import keep_what_is_done
from polymode.cli.run_task import RunOptions
from polymode.cli.study_formats import study_text
from polymode.cli.talk import OUTSIDE, follows, put, say, tell_damage, write
from polymode.report.page import write_report
from polymode.report.study_page import finish_study, outside
from polymode.runs.run_folder import RunFolder
from polymode.runs.run_plan import Plan
from polymode.runs.running import Interrupted, Outcome, leaderboard
from polymode.studies.study_folder import StudyRequest, begin_study, study_plans


def run_study(request: StudyRequest, path: Path, options: RunOptions) -> NoReturn:
    """Run what is missing of a study and write its page; ends with the exit code."""
    plans = study_plans(request)
    folders = {part: RunFolder(path / part) for part in plans}
    for part, plan in plans.items():
        folders[part].check(plan.data)
    if options.dry_run:
        _show_study(plans, folders, options)
    keep_what_is_done()
    if follows():
        failed = sum(options.run(plan, folders[part]).failed for part, plan in plans.items())
        raise typer.Exit(1 if failed else 0)
    begin_study(path, request, list(plans))
    outcomes: dict[str, Outcome] = {}
    for part, plan in plans.items():
        try:
            outcomes[part] = _run_part(part, plan, folders[part], options)
        except KeyboardInterrupt as stop:
            cells = f"after {stop} of part {part}"
            progress = cells if isinstance(stop, Interrupted) else f"in {part}"
            options.stop(progress, request.command(str(path), *options.words))
    _finish_study(path, outcomes, options)


def _run_part(part: str, plan: Plan, folder: RunFolder, options: RunOptions) -> Outcome:
    if not options.quiet:
        say(f"\n{part}")
    tell_damage(folder, "counts as not done")
    outcome = options.run(plan, folder)
    board = leaderboard(folder, predictions=True)
    if board is not None:
        write_report(folder, board)
    return outcome


def _show_study(
    plans: dict[str, Plan], folders: dict[str, RunFolder], options: RunOptions
) -> NoReturn:
    """Show plans and estimates of a study's parts."""
    parts: dict[str, Any] = {}
    for part, plan in plans.items():
        ahead = options.look_ahead(plan, folders[part])
        counts = {"cells": len(ahead.cells), "todo": len(ahead.todo), "seconds": ahead.seconds}
        parts[part] = {**counts, "out": str(folders[part].path)}
        if not options.json_:
            write(f"{part}: {plan.text()}\n{ahead.text}\n")
    if options.json_:
        put({"parts": parts})
    else:
        write("Nothing was written.")
    raise typer.Exit(0)


def _finish_study(path: Path, outcomes: dict[str, Outcome], options: RunOptions) -> NoReturn:
    """Make what the study shows of all its runs, and say what came of it."""
    summary = finish_study(path)
    failed = sum(outcome.failed for outcome in outcomes.values())
    missed = outside(summary.comparisons)
    if failed:
        where = ", ".join(part for part, outcome in outcomes.items() if outcome.failed)
        say(f"{failed} cell(s) failed; see failures.jsonl in {where}")
    if missed:
        say(f"{missed} of {len(summary.comparisons)} numbers are outside the paper's tolerance")
    code = 1 if failed else OUTSIDE if missed else 0
    report = path / "report.html"
    if options.json_:
        cells = {part: outcome._asdict() for part, outcome in outcomes.items()}
        facts = {"out": str(path), "report": str(report), "cells": cells, "exit": code}
        put({**facts, "outside": missed, **summary.to_dict()})
    else:
        if not options.quiet:
            write(f"\n{study_text(list(summary.tables.values()), summary.claims)}\n")
        write(f"Report: {report}")
    raise typer.Exit(code)
