"""The verbs that show what there is: list, cite, check; and of runs: report, compare, table."""

from __future__ import annotations

import fnmatch
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polymode.cli.talk import OUTSIDE, Json, put, say, tell_damage, write
from polymode.core.columns import left_table, terminal_width
from polymode.runs.settings import UsageProblem

if TYPE_CHECKING:
    from polymode.metrics import Leaderboard
    from polymode.runs.run_folder import RunFolder

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="a folder that `polymode run` wrote")]
LEFT_OUT = "is left out; `polymode run` makes it again"
Full = Annotated[bool, typer.Option("--full", help="every metric, not only the headlines")]


def list_(
    what: Annotated[
        str,
        typer.Argument(help="methods, options, tasks, studies, metrics, examinations or nets"),
    ],
    pattern: Annotated[str, typer.Argument(help='a glob such as "deep*"')] = "*",
    json_: Json = False,
) -> None:
    """Show what there is; `list options forde` shows the options of a method."""
    from polymode.core.registry import suggest
    from polymode.core.safe_files import json_safe

    kinds = {
        "methods": _methods,
        "options": _options,
        "tasks": _tasks,
        "studies": _studies,
        "metrics": _metrics,
        "examinations": _examinations,
        "nets": _nets,
    }
    if what not in kinds:
        names, near = ", ".join(kinds), suggest(what, kinds)
        raise UsageProblem(f"list shows one of {names}, not '{what}'.{near}")
    columns, entries = kinds[what](pattern)
    if json_:
        put([json_safe(entry) for entry in entries])
        return
    if not entries:
        say(f"polymode: none of the {what} matches '{pattern}'; a glob needs quotes in a shell")
        return
    rows = [[str(entry.get(key, "")) for key in columns.values()] for entry in entries]
    write(left_table(list(columns), rows, terminal_width()))


Listing = tuple[dict[str, str], list[dict[str, Any]]]
"""Headings with the facts below them, and the entries with all their facts."""


def _methods(pattern: str) -> Listing:
    from polymode.methods import METHODS

    entries = [{"name": name, **METHODS.get(name).metadata} for name in METHODS.names(pattern)]
    return {"method": "name", **{k: k for k in ("kind", "cost", "paper", "summary")}}, entries


def _options(pattern: str) -> Listing:
    from polymode.methods import METHODS
    from polymode.methods.option_table import options

    entries = []
    for method in METHODS.names(pattern):
        for option in options(method):
            entries.append({"method": method, **_cells(option)})
    if not entries:
        from polymode.examinations.examination import EXAMINATIONS, options_of

        entries = [
            {"examination": name, **_cells(option)}
            for name in EXAMINATIONS.names(pattern)
            for option in options(options_of(name))
        ]
    columns = {"option": "name", **{k: k for k in ("default", "allowed", "meaning")}}
    kind = "method" if entries and "method" in entries[0] else "examination"
    single = len({entry[kind] for entry in entries}) == 1
    return columns if single else {kind: kind, **columns}, entries


def _cells(option: Any) -> dict[str, str]:
    return dict(zip(("name", "default", "allowed", "meaning"), option.cells(), strict=True))


def _tasks(pattern: str) -> Listing:
    from polymode.tasks import TASKS

    entries = [{"name": name, **TASKS.get(name).metadata} for name in TASKS.names(pattern)]
    columns = {"kind": "kind", "train / val / test": "size", "description": "description"}
    return {"task": "name", **columns}, entries


def _studies(pattern: str) -> Listing:
    from polymode.studies import STUDIES

    entries = []
    for name in STUDIES.names(pattern):
        study = STUDIES.get(name).value
        facts = {"paper": study.paper, "summary": study.summary, "title": study.title}
        entries.append({"name": name, "parts": ", ".join(study.parts("cpu")), **facts})
    return {"study": "name", **{k: k for k in ("paper", "parts", "summary")}}, entries


def _metrics(pattern: str) -> Listing:
    import polymode.metrics  # noqa: F401  (enters the metrics)
    from polymode.metrics.score import ARROWS, TABLES, entries

    listed = [
        {"name": e.name, "for": kind, **e.metadata, "better": ARROWS[e.metadata["direction"]]}
        for kind, table in TABLES.items()
        for e in entries(table)
        if fnmatch.fnmatch(e.name, pattern)
    ]
    columns = {k: k for k in ("for", "better", "unit")}
    return {"metric": "name", **columns, "meaning": "summary"}, listed


def _examinations(pattern: str) -> Listing:
    from polymode.examinations import EXAMINATIONS
    from polymode.examinations.examination import options_of

    entries = []
    for name in EXAMINATIONS.names(pattern):
        entry, kind = EXAMINATIONS.get(name), options_of(name)
        options = [f"{option}={getattr(kind, option)}" for option in kind.declared]
        facts = {"options": ", ".join(options), "summary": entry.metadata["summary"]}
        entries.append({"name": name, **facts, "measures": entry.metadata["measures"]})
    return {"examination": "name", "options": "options", "meaning": "summary"}, entries


def _nets(pattern: str) -> Listing:
    from polymode import nets

    entries = []
    for name in fnmatch.filter(nets.__all__, pattern):
        build = getattr(nets, name)
        options = inspect.signature(build).parameters.values()
        listed = [str(option).split(":")[0] for option in options][2:]  # without the task's sizes
        summary = (inspect.getdoc(build) or "").split("\n\n")[0].replace("\n", " ")
        summary = summary.removeprefix("Return ")
        entries.append({"name": name, "options": ", ".join(listed), "summary": summary})
    return {"net": "name", "options": "options", "meaning": "summary"}, entries


def open_folder(path: Path) -> RunFolder:
    """Return the folder of a run, or say that it is none; what is damaged in it is named."""
    from polymode.runs.run_folder import RunFolder
    from polymode.studies.study_folder import is_study, read_study

    if is_study(path):
        parts = ", ".join(str(path / part) for part in read_study(path)["parts"])
        raise UsageProblem(f"{path} holds a study; give the folder of one of its parts: {parts}")
    if not (path / "results.jsonl").is_file():
        raise UsageProblem(f"{path} is not the folder of a run: it has no results.jsonl")
    folder = RunFolder(path)
    tell_damage(folder, LEFT_OUT)
    return folder


def _tell_parts(path: Path) -> None:
    """Name what is damaged in the parts of a study."""
    from polymode.runs.run_folder import RunFolder
    from polymode.studies.study_folder import read_study

    for part in read_study(path)["parts"]:
        tell_damage(RunFolder(path / part), LEFT_OUT)


def _board(folder: RunFolder, *, predictions: bool = False) -> Leaderboard:
    from polymode.runs.running import leaderboard

    try:
        board = leaderboard(folder, predictions=predictions)
    except ValueError as error:  # results of other data, added by hand
        raise UsageProblem(f"{folder.path}: {error}") from error
    if board is None:
        raise UsageProblem(f"{folder.path} has no finished cell yet; run it first")
    return board


def report(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="file; by default DIR/report.html")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="show it in the browser")] = False,
) -> None:
    """Write the report of a run again, from its files alone."""
    import webbrowser

    from polymode.report.page import write_report
    from polymode.report.study_page import finish_study
    from polymode.studies.study_folder import is_study

    if is_study(folder):
        _tell_parts(folder)
        finish_study(folder, out)
        path = folder / "report.html" if out is None else out
    else:
        opened = open_folder(folder)
        path = opened.report if out is None else out
        write_report(opened, _board(opened, predictions=True), path)
    write(f"Report: {path}")
    if open_ and not webbrowser.open(path.resolve().as_uri()):
        say("polymode: no browser could be started here; open the file yourself")


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="folders of runs")],
    full: Full = False,
    json_: Json = False,
) -> None:
    """Set the runs of several folders side by side, with paired differences.

    The folders must hold results on the same task and data. Where two of them have the same method
    with the same options and seeds, the folder's name tells them apart.
    """
    from polymode.cli.comparing import compare_folders, difference_table, differences

    board = compare_folders([open_folder(path) for path in dict.fromkeys(folders)])
    gaps = differences(board, full=full)
    if json_:
        put({**board.to_dict(), "differences": gaps})
        return
    write(board.table(full=full))
    if gaps:
        write(f"\n{difference_table(board, gaps)}")


def table(
    folder: Folder,
    format_: Annotated[str, typer.Option("--format", help="md, latex, csv or json")] = "md",
    full: Full = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="of a study: the paper's numbers and claims as well")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="the same as --format json")] = False,
) -> None:
    """Print the leaderboard of a run, or the tables of a study, for a paper, a page or a program.

    Markdown and LaTeX show the headlines, a table for each data set; csv and json have all numbers.
    With --paper the exit code is 3 where a number is outside the paper's tolerance.
    """
    from polymode.cli.formats import FORMATS
    from polymode.core.registry import suggest
    from polymode.studies.study_folder import is_study

    name = "json" if json_ else format_
    if name not in FORMATS:
        raise UsageProblem(
            f"--format takes {', '.join(FORMATS)}, got '{name}'.{suggest(name, FORMATS)}"
        )
    if is_study(folder):
        _study_table(folder, name, paper)
        return
    opened = open_folder(folder)
    if paper:
        raise UsageProblem(
            f"{folder} holds no study, so there is no paper to compare with; see"
            " `polymode list studies`"
        )
    write(FORMATS[name](_board(opened), full), end="")


def _study_table(folder: Path, name: str, paper: bool) -> None:
    """Print the tables of a study; with `paper` also its claims and the paper's numbers."""
    from polymode.cli.study_formats import STUDY_FORMATS, claim_table, comparison_table
    from polymode.report.study_page import outside, read_summary

    _tell_parts(folder)
    summary = read_summary(folder, figures=False)
    tables = [t for key, t in summary.tables.items() if paper or not key.startswith("paper_")]
    if paper:
        tables += [claim_table(summary.claims)] if summary.claims else []
        tables += [comparison_table(summary.comparisons)] if summary.comparisons else []
    write(STUDY_FORMATS[name](tables), end="")
    if paper and outside(summary.comparisons):
        raise typer.Exit(OUTSIDE)


def cite(
    what: Annotated[str, typer.Argument(help="a method, a study, or the folder of a run")],
) -> None:
    """Print the BibTeX of a method, of a study's paper, or of all methods of a run."""
    from polymode.report.cards import cite as bibtex
    from polymode.studies import STUDIES
    from polymode.studies.study_folder import is_study, read_study

    path = Path(what)
    study = read_study(path)["study"] if is_study(path) else what
    if study in STUDIES:
        write(STUDIES.get(study).value.bibtex)
        return
    names = [what]
    if (path / "results.jsonl").is_file():
        names = list(dict.fromkeys(cell.method for cell in open_folder(path).results()))
    try:
        write("\n\n".join(map(bibtex, names)))
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def check(json_: Json = False) -> None:
    """Test this installation on tasks with exact answers; takes seconds."""
    from polymode.cli.check import checks
    from polymode.runs.environment import environment

    versions = environment()["versions"]
    if not json_:
        write(", ".join(f"{name} {version}" for name, version in versions.items()))
    outcomes = []
    for outcome in checks():
        outcomes.append(outcome)
        line = f"{'ok  ' if outcome.passed else 'FAIL'} {outcome.name}: {outcome.detail}"
        (say if json_ else write)(line)
    failed = sum(not outcome.passed for outcome in outcomes)
    if json_:
        results = [outcome._asdict() for outcome in outcomes]
        put({"versions": versions, "passed": not failed, "checks": results})
    else:
        write("All is well." if not failed else f"{failed} check(s) failed.")
    raise typer.Exit(1 if failed else 0)
