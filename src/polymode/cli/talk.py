"""Data on stdout, talk on stderr; and the options that verbs share."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polymode.core.text import plain

if TYPE_CHECKING:
    from polymode.runs.run_folder import RunFolder

_UNSAFE = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")  # JSON leaves them be
OUTSIDE = 3  # exit code: done, but a number is outside the paper's tolerance

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, all messages on stderr")]


def follows() -> bool:
    """Whether this process is one of several that torchrun started, and not the first."""
    return os.environ.get("RANK", "0") != "0" and os.environ.get("WORLD_SIZE", "1") != "1"


def say(text: str) -> None:
    """Tell the user something that is not data; of several ranks, the first one does."""
    if not follows():
        typer.echo(plain(text), err=True)


def write(text: str, *, end: str = "\n") -> None:
    """Print data as text."""
    if not follows():
        typer.echo(plain(text) + end, nl=False)


def tell_damage(folder: RunFolder, what: str) -> None:
    """Name what is damaged in the folder of a run, and say what becomes of its cell."""
    for problem in folder.damage():
        say(f"polymode: {problem}; its cell {what}")


def put(content: Any) -> None:
    """Print data as JSON; what a terminal would take for a command is written as its number."""
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    if follows():
        return
    typer.echo(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))
