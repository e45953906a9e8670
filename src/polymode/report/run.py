"""The report of a run, from the files of its folder."""

from __future__ import annotations

from pathlib import Path

from polymode.metrics import Leaderboard
from polymode.report.page import report
from polymode.runs.folder import RunFolder


def write_report(folder: RunFolder, board: Leaderboard, path: Path | None = None) -> None:
    """Write the report of what is in the folder."""
    report(
        board,
        path or folder.report,
        command=folder.config().get("command", ""),
        environment=folder.read("environment.json"),
        failures=folder.failures(),
    )
