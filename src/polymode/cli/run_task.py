"""What `polymode run --task` does: run the missing cells, then write the report."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

from polymode.cli import keep_what_is_done
from polymode.cli.progress import watcher
from polymode.cli.talk import follows, put, say, tell_damage, write
from polymode.distributed.ray import Cluster
from polymode.metrics import Leaderboard
from polymode.metrics.results import EXAMINED
from polymode.runs.run_folder import RunFolder
from polymode.runs.run_plan import Plan
from polymode.runs.running import (
    Interrupted,
    Outcome,
    Outlook,
    in_jobs,
    leaderboard,
    look_ahead,
    run_plan,
)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the cells of a task or of a study are run, and what is said of it.

    Attributes:
        jobs: cells at a time. cluster: of Ray; None for processes of this machine.
        fresh: whether cells that are done are run again.
        dry_run: whether only plan and estimate are shown.
        quiet: whether progress and tables are left out. json_: whether stdout gets JSON.
    """

    jobs: int
    cluster: Cluster | None
    fresh: bool
    dry_run: bool
    quiet: bool
    json_: bool

    @property
    def words(self) -> list[str]:
        """The words of the command line that say where cells run."""
        return in_jobs(self.jobs, self.cluster)

    def look_ahead(self, plan: Plan, folder: RunFolder) -> Outlook:
        """Return which cells are missing, with an estimate; writes nothing."""
        return look_ahead(plan, folder, jobs=self.jobs, fresh=self.fresh)

    def run(self, plan: Plan, folder: RunFolder) -> Outcome:
        """Run the missing cells of a plan."""
        return run_plan(
            plan,
            folder,
            watcher(self.quiet),
            jobs=self.jobs,
            fresh=self.fresh,
            quiet=self.quiet,
            cluster=self.cluster,
        )

    def stop(self, progress: str, resume: str) -> NoReturn:
        """Say how far an interrupted run came, and what resumes it; ends with exit code 130."""
        say(f"Interrupted {progress}. Resume: {resume}")
        if self.json_:
            put({"error": f"interrupted {progress}", "exit": 130, "resume": resume})
        raise typer.Exit(130) from None


def folder_of(out: str | None, name: str, preset: str) -> Path:
    """Return where a run lies: `out`, or below `runs` by its name and preset."""
    return Path(out) if out else Path("runs") / (name if preset == "cpu" else f"{name}-{preset}")


def run_task(plan: Plan, path: Path, options: RunOptions) -> None:
    """Run what is missing of a comparison on one task; ends with the exit code."""
    folder, json_ = RunFolder(path), options.json_
    if options.dry_run:
        _show_task(plan, folder, options)
        return
    keep_what_is_done()
    tell_damage(folder, "counts as not done")
    command = plan.command(str(path), *options.words)
    try:
        outcome = options.run(plan, folder)
        if follows():
            raise typer.Exit(1 if outcome.failed else 0)
    except KeyboardInterrupt as stop:
        progress = f"after {stop}" if isinstance(stop, Interrupted) else "before the first cell"
        options.stop(progress, command)
    board = leaderboard(folder, predictions=True)
    if board is not None and not options.quiet and not json_:
        write(f"\n{board.table()}\n")
        if any(name.startswith(EXAMINED) for name in board.groups(full=True)):
            write(f"What was examined: in the report, or `polymode table {path} --full`")
    written = board is not None and _write_report(folder, board, options)
    if outcome.failed:
        say(f"{outcome.failed} cell(s) failed; see {path / 'failures.jsonl'}")
    if json_:
        put(
            {
                "out": str(path),
                "report": str(folder.report) if written else None,
                "results": str(path / "results.jsonl"),
                "predictions": str(path / "predictions"),
                "failures": str(path / "failures.jsonl") if outcome.failed else None,
                "cells": outcome._asdict(),
                "command": command,
                "leaderboard": None if board is None else board.to_dict(),
            }
        )
    elif written:
        write(f"Report: {folder.report}")
    raise typer.Exit(0 if written and not outcome.failed else 1)


def _show_task(plan: Plan, folder: RunFolder, options: RunOptions) -> None:
    """Show plan and estimate of a task."""
    folder.check(plan.data)
    ahead = options.look_ahead(plan, folder)
    if options.json_:
        todo = {cell.key for cell in ahead.todo}
        cells = [{**plan.describe(cell), "todo": cell.key in todo} for cell in ahead.cells]
        facts = {"out": str(folder.path), "cells": cells, "seconds": ahead.seconds}
        put({**facts, "estimate": ahead.estimate})
    else:
        write(f"{plan.text()}\n{ahead.text}\nNothing was written; the folder would be")
        write(str(folder.path))


def _write_report(folder: RunFolder, board: Leaderboard, options: RunOptions) -> bool:
    """Write the report; what goes wrong with it does not hide the results."""
    from polymode.report.page import write_report

    again = shlex.join(["polymode", "report", str(folder.path)])
    try:
        write_report(folder, board)
    except KeyboardInterrupt:
        options.stop("after the last cell, before the report", again)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"polymode: all results are kept, but there is no report: {what}; see `{again}`")
        return False
    return True
