"""The command `polymode`. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from polymode.cli import data
from polymode.cli.arguments import UsageProblem

HELP = """How sure is this network, and can I trust that?

\b
Examples:
  polymode run --task digits --method map --method deep_ensemble --seeds 0-2
  polymode list methods
  polymode report runs/digits

Exit codes: 0 done, 1 some cells failed, 2 usage, 130 interrupted (run the same command to resume).
"""

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # click's, wherever this typer keeps click

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")


def _version(asked: bool) -> None:
    if asked:
        from polymode._version import __version__

        typer.echo(f"polymode {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, tasks or metrics")],
    pattern: Annotated[str, typer.Argument(help='a glob such as "deep*"')] = "*",
) -> None:
    """Show what there is: methods, tasks or metrics."""
    from polymode.core.registry import suggest

    kinds = {"methods": _methods, "tasks": _tasks, "metrics": _metrics}
    if what not in kinds:
        near = suggest(what, kinds)
        raise UsageProblem(f"list shows methods, tasks or metrics, not '{what}'.{near}")
    typer.echo(kinds[what](pattern))


def _methods(pattern: str) -> str:
    from polymode.methods import METHODS
    from polymode.metrics.table import align

    columns = ("kind", "cost", "paper", "summary")
    facts = [(name, METHODS.get(name).metadata) for name in METHODS.names(pattern)]
    rows = [[name, *(str(meta.get(key, "")) for key in columns)] for name, meta in facts]
    return _left(align, ["method", *columns], rows)


def _tasks(pattern: str) -> str:
    from polymode.metrics.table import align
    from polymode.tasks import TASKS

    columns = ("kind", "size", "description")
    facts = [(name, TASKS.get(name).metadata) for name in TASKS.names(pattern)]
    rows = [[name, *(str(meta.get(key, "")) for key in columns)] for name, meta in facts]
    return _left(align, ["task", "kind", "train / val / test", "description"], rows)


def _metrics(pattern: str) -> str:
    import fnmatch

    import polymode.metrics  # noqa: F401  (enters the metrics)
    from polymode.metrics.score import ARROWS, TABLES, entries
    from polymode.metrics.table import align

    rows = [
        [e.name, kind, ARROWS[e.metadata["direction"]], e.metadata["unit"], e.metadata["summary"]]
        for kind, table in TABLES.items()
        for e in entries(table)
        if fnmatch.fnmatch(e.name, pattern)
    ]
    return _left(align, ["metric", "for", "better", "unit", "meaning"], rows)


def _left(align: Any, header: list[str], rows: list[list[str]]) -> str:
    """Return a table whose columns are all texts, hence all to the left."""
    widths = [max(len(line[k]) for line in [header, *rows]) for k in range(len(header))]
    padded = [[c.ljust(w) for c, w in zip(r, widths, strict=True)] for r in [header, *rows]]
    return str(align(padded[0], padded[1:]))


@app.command()
def run(
    task: Annotated[str, typer.Option(help="what to learn; see `polymode list tasks`")],
    method: Annotated[list[str], typer.Option(help="a method; repeat it to compare several")],
    seeds: Annotated[str, typer.Option(help="such as 0-2 or 0,3,7")] = "0",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="method.key=value, task.key=value, net.key=value or key=value"),
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(help="a network of polymode.nets, such as resnet8; by default the task's own"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder; by default runs/TASK")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="name the report, no more")] = False,
) -> None:
    """Fit, evaluate and compare methods on a task; ends with a report.

    Cells (method × seed) that the folder has are not run again, so the same command resumes.
    """
    from polymode.cli.folder import RunFolder
    from polymode.cli.plan import make_plan
    from polymode.cli.running import run_plan, write_report

    plan = make_plan(task, method, seeds, set_ or [], net)
    folder = RunFolder(out or Path("runs") / task)
    say = _silent if quiet else _say
    try:
        failed = run_plan(plan, folder, say)
        board = write_report(folder)
    except KeyboardInterrupt as stop:
        _say(f"Interrupted after {stop}. Resume: {plan.command(str(folder.path))}")
        raise typer.Exit(130) from None
    if failed:
        _say(f"{failed} cell(s) failed; see {folder.path / 'failures.jsonl'}")
    if board is None:
        raise typer.Exit(1)
    if not quiet:
        typer.echo(f"\n{board.table()}\n")
    typer.echo(f"Report: {folder.report}")
    raise typer.Exit(1 if failed else 0)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="a folder that `polymode run` wrote")],
) -> None:
    """Write the report of a run again, from its files alone."""
    from polymode.cli.folder import RunFolder
    from polymode.cli.running import write_report

    opened = RunFolder(folder)
    if not (folder / "results.jsonl").is_file():
        raise UsageProblem(f"{folder} is no folder of a run: it has no results.jsonl")
    if write_report(opened) is None:
        raise UsageProblem(f"{folder} has no finished cell yet; run it first")
    typer.echo(f"Report: {opened.report}")


@app.command()
def check() -> None:
    """Test this installation on tasks with exact answers; takes seconds."""
    from polymode.cli.check import checks
    from polymode.report.environment import environment

    versions = environment()["versions"]
    typer.echo(", ".join(f"{name} {version}" for name, version in versions.items()))
    failed = 0
    for outcome in checks():
        failed += not outcome.passed
        typer.echo(f"{'ok  ' if outcome.passed else 'FAIL'} {outcome.name}: {outcome.detail}")
    typer.echo("All is well." if not failed else f"{failed} check(s) failed.")
    raise typer.Exit(1 if failed else 0)


@app.command()
def cite(
    what: Annotated[str, typer.Argument(help="a method, or the folder of a run")],
) -> None:
    """Print the BibTeX of a method, or of all methods of a run."""
    from polymode.report.cards import cite as bibtex

    if (Path(what) / "results.jsonl").is_file():
        from polymode.cli.folder import RunFolder

        names = list(dict.fromkeys(each.method for each in RunFolder(what).results()))
    else:
        names = [what]
    try:
        typer.echo("\n\n".join(map(bibtex, names)))
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _silent(text: str) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; complaints are one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = typer.main.get_command(app).main(words, "polymode", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageProblem as problem:
        return _complain(str(problem), 2)
    except USAGE_ERROR as problem:
        if type(problem).__name__ == "NoArgsIsHelpError":
            problem.show()
            return 2
        return _complain(problem.format_message(), 2)
    except OSError as problem:
        where = f" {problem.filename}" if problem.filename else ""
        return _complain(f"cannot use{where or ' a file'}: {problem.strerror or problem}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())
    typer.echo(f"polymode: {line}", err=True)
    return code
