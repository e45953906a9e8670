"""Data on stdout, talk on stderr; and the options that verbs share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polymode.runs.folder import RunFolder

OUTSIDE = 3  # exit code: done, but a number is outside the paper's tolerance

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, all messages on stderr")]


def say(text: str) -> None:
    """Tell the user something that is not data."""
    typer.echo(text, err=True)


def tell_damage(folder: RunFolder, what: str) -> None:
    """Name what is damaged in the folder of a run, and say what becomes of its cell."""
    for problem in folder.damage():
        say(f"polymode: {problem}; its cell {what}")


def put(content: Any) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False))
