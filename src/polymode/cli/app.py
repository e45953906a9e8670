"""The command `polymode`. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import difflib
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from polymode.cli import data, show, zoo
from polymode.cli.audit import audit
from polymode.cli.run import run
from polymode.cli.talk import put, say
from polymode.runs.settings import UsageProblem

HELP = """How sure is this network, and can I trust that?

\b
Examples:
  polymode run --task digits --method map --method deep_ensemble --seeds 0-2
  polymode run forde --preset smoke
  polymode list methods

Exit codes: 0 done, 1 some cells failed or the disk is full, 2 usage, 3 outside the paper's
tolerance, 130 interrupted (run the same command to resume).
"""

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's, wherever this typer keeps click

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(audit)
app.command("list")(show.list_)
app.command()(show.report)
app.command()(show.compare)
app.command()(show.table)
app.command()(show.check)
app.command()(show.cite)
app.add_typer(data.app, name="data")
app.add_typer(zoo.app, name="zoo")


def _version(requested: bool) -> None:
    if requested:
        from polymode._version import __version__

        typer.echo(f"polymode {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="Plain bars; the variable NO_COLOR does the same.")
    ] = False,
) -> None:
    if no_color:
        os.environ["NO_COLOR"] = "1"  # rich looks at it, and so do the processes of --jobs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; complaints are one line on stderr.

    With --json, stdout gets a JSON object in any case.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _warn_once()
        return _run(words, "--json" in words)


def _warn_once() -> Callable[..., None]:
    """Return a function that prints each warning once, in one line."""
    printed: set[str] = set()

    def show(message: Warning | str, *where: Any, **further: Any) -> None:
        line = " ".join(str(message).split())
        if line not in printed:
            printed.add(line)
            say(f"polymode: warning: {line}")

    return show


def _run(words: list[str], json_: bool) -> int:
    try:
        code = typer.main.get_command(app).main(words, "polymode", standalone_mode=False)
        if "polymode.distributed.ranks" in sys.modules:
            sys.modules["polymode.distributed.ranks"].leave_together()
        return code if isinstance(code, int) else 0
    except UsageProblem as problem:
        return _complain(str(problem), 2, json_)
    except USAGE_ERROR as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":
            problem.show()
            return 2
        return _complain(_usage(problem), 2, json_)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130, json_)
    except BrokenPipeError:  # whoever read our output has stopped, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as problem:
        where = f" {problem.filename}" if problem.filename else ""
        return _complain(f"cannot use{where or ' a file'}: {problem.strerror or problem}", 1, json_)
    except Exception as problem:
        if type(problem).__name__ not in (
            "WriteProblem",
            "FileProblem",
            "RankProblem",
            "ClusterProblem",
        ):
            raise  # by name: their modules import torch, this one must not
        return _complain(str(problem), 1, json_)


def _usage(problem: Any) -> str:
    """Return click's complaint, with the one name that is nearest to a mistyped one."""
    from polymode.core.registry import suggest

    message, context = str(problem.format_message()), problem.ctx
    if type(problem).__name__ == "NoSuchOption" and context is not None:
        options = [name for p in context.command.params for name in p.opts] + ["--help"]
        near = _nearest(problem.option_name, options)
        return f"No such option: {problem.option_name}.{near} See `{context.command_path} --help`"
    wrong = re.fullmatch(r"No such command '(.+)'\.", message)  # older ones leave it at that
    return message + suggest(wrong[1], context.command.commands) if wrong and context else message


def _nearest(option: str, options: Sequence[str]) -> str:
    """Return a suggestion; leading dashes are ignored, since they make any two options look alike.

    >>> _nearest("--seed", ["--seeds", "--help"]), _nearest("--verbose", ["--preset", "--version"])
    (" Did you mean '--seeds'?", '')
    """
    words = {name.lstrip("-"): name for name in options}
    near = difflib.get_close_matches(option.lstrip("-"), list(words), n=1, cutoff=0.6)
    return f" Did you mean '{words[near[0]]}'?" if near else ""


def _complain(message: str, code: int, json_: bool) -> int:
    line = " ".join(message.split())
    say(f"polymode: {line}")
    if json_:
        put({"error": line, "exit": code})
    return code
