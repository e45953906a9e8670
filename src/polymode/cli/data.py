"""`polymode data`: what data sets there are, and the one command that downloads any."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from polymode.cli.talk import Json, put, say, write
from polymode.core.columns import left_table, terminal_width
from polymode.runs.settings import UsageProblem

if TYPE_CHECKING:
    from polymode.tasks.files import Dataset, Step

HELP = """List data sets, and get them.

\b
Examples:
  polymode data list
  polymode data get mnist kmnist
  polymode data get cifar10 --from ~/Downloads

Data sets lie in $POLYMODE_DATA, by default in polymode/data in the cache
folder ($XDG_CACHE_HOME, ~/.cache). Nothing is downloaded except by
`polymode data get`.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    pattern: Annotated[str, typer.Argument(help='a glob such as "*mnist"')] = "*",
    json_: Json = False,
) -> None:
    """Show the data sets: what they are, size, licence, and whether they are here."""
    from polymode.core.memory import human
    from polymode.tasks.files import DATASETS, data_folder, find

    header = ["data set", "download", "checked by", "here", "licence", "what it is"]
    rows, facts = [], []
    for name in DATASETS.names(pattern):
        dataset, path = DATASETS.get(name).value, find(name)
        size = human(dataset.download_size) if dataset.originals else "only --from"
        check = dataset.checksums if dataset.originals else "shapes, counts"
        file = path.name if path else "no"
        rows.append([name, size, check, file, dataset.licence, dataset.description])
        facts.append(
            {
                "name": name,
                "download_bytes": dataset.download_size if dataset.originals else None,
                "checked_by": check,
                "here": str(path) if path else None,
                "licence": dataset.licence,
                "description": dataset.description,
            }
        )
    if json_:
        put({"folder": str(data_folder()), "datasets": facts})
        return
    write(f"Data folder: {data_folder()}\n\n{left_table(header, rows, terminal_width())}")


@app.command("get")
def get_(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="see `polymode data list`")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="a folder that has the original files, or packed .npz; no download"
        ),
    ] = None,
) -> None:
    """Download data sets, check and pack them; resumes what was interrupted.

    States licence, address and size first. With --from, takes the files from a folder instead.
    """
    from polymode.core.safe_files import FileProblem
    from polymode.tasks.files import DATASETS, DownloadProblem, get

    try:
        sets = {name: DATASETS.get(name).value for name in names}
    except ValueError as error:
        raise UsageProblem(str(error)) from error
    if source is not None and not source.expanduser().is_dir():
        raise UsageProblem(f"--from takes a folder; {source} is not one")
    folder = None if source is None else source.expanduser().resolve()
    failed: list[str] = []
    for number, (name, dataset) in enumerate(sets.items()):
        watch: _Watch = _Bar() if sys.stderr.isatty() else _Lines()

        def observe(step: Step, dataset: Dataset = dataset, watch: _Watch = watch) -> None:
            if step.kind == "start":
                _announce(step.name, dataset, folder)
            elif step.kind == "here":
                say(f"{step.name}: here already, nothing to do")
            else:
                watch(step)

        try:
            path = get(name, source=folder, observer=observe)
        except KeyboardInterrupt:
            watch.close()
            again = ["polymode", "data", "get", *failed, *list(sets)[number:]]
            again += ["--from", str(folder)] if folder else []
            say(f"Interrupted. Resume: {shlex.join(again)}")
            raise typer.Exit(130) from None
        except (FileProblem, DownloadProblem) as problem:
            watch.close()
            say(f"polymode: {name}: {' '.join(str(problem).split())}")
            failed.append(name)
        else:
            watch.close()
            write(f"{name}: {path}")
    raise typer.Exit(1 if failed else 0)


def _announce(name: str, dataset: Dataset, folder: Path | None) -> None:
    """State the terms, before anything is taken."""
    from polymode.core.memory import human

    say(f"{name}: {dataset.description}\n  licence: {dataset.licence}")
    if folder is not None or not dataset.originals:
        return
    count = len(dataset.originals)
    check = "no checksum published" if dataset.checksums == "none" else dataset.checksums
    base = dataset.originals[0].addresses[0].removesuffix(dataset.originals[0].name)
    files = "1 file" if count == 1 else f"{count} files"
    say(f"  from:    {base}\n  size:    {human(dataset.download_size)} in {files}, {check}")


class _Watch(Protocol):
    """Shows the steps of one data set."""

    def __call__(self, step: Step) -> None: ...

    def close(self) -> None: ...


_TELLS = {"read": "reading", "write": "writing", "check": "checking"}


class _Lines:
    """A line at every tenth of a download, and at each other step: for logs."""

    def __init__(self) -> None:
        self._tenth, self._kind = -1, ""

    def __call__(self, step: Step) -> None:
        if step.kind == "download":
            from polymode.core.memory import human

            tenth = 10 * step.done // max(step.total, 1)
            if tenth > self._tenth:
                self._tenth = tenth
                say(f"  {human(step.done)} of {human(step.total)}")
        elif step.kind != self._kind:
            say(f"  {_TELLS[step.kind]} {step.file}")
        self._kind = step.kind

    def close(self) -> None:
        pass


class _Bar:
    """A live bar on a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, step: Step) -> None:
        if self._bar is None:
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("  {task.description}"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        if step.kind in ("download", "check"):
            self._bar.update(
                self._task, description=step.file, completed=step.done, total=step.total
            )
        else:
            self._bar.update(self._task, description=f"{_TELLS[step.kind]} {step.file}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
