"""`report`: a leaderboard as one HTML file that needs nothing else.

The page works without JavaScript; a few lines of it, the only ones that the page's own policy lets
run, sort tables, filter methods and copy the command. Nothing is asked of any network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polymode.core.safe_files import replace_file
from polymode.core.sheets import csv_text
from polymode.metrics.compare import compare
from polymode.metrics.leaderboard import Leaderboard, costs
from polymode.metrics.results import Results
from polymode.metrics.score import ARROWS
from polymode.metrics.text_table import decimals_for, number
from polymode.plots import Comparison, forest, palette
from polymode.plots.forest import VERDICTS
from polymode.report.alerts import Failures, alerts, how_many
from polymode.report.cards import card
from polymode.report.embed import csv_uri, rows, text_uri
from polymode.report.glossary import glossary
from polymode.report.method_tables import SHAPES, sizes
from polymode.report.sections import sections
from polymode.report.template import fill
from polymode.report.verdict import verdict
from polymode.runs.environment import environment as present
from polymode.runs.run_folder import RunFolder
from polymode.tasks import TASKS


def report(
    board: Leaderboard | Results | Sequence[Results],
    path: str | Path,
    *,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    failures: Failures = 0,
    comparisons: Sequence[Comparison] = (),
) -> Path:
    """Write a report and return its path; it is complete or not there at all.

    Args:
        board: a leaderboard, or results to compare. Figures are made of the predictions that
            results from `evaluate` keep; those read from JSON have tables only.
        path: the HTML file to write; its folder is made if need be.
        command: what reproduces the run, shown at the end.
        environment: versions and machine of the run; by default the present ones.
        failures: how many cells of the run failed, or what is known of each.
        comparisons: numbers of a paper with ours, see `Comparison`.
    """
    if not isinstance(path, (str, Path)):
        swapped = "are swapped" if isinstance(board, (str, Path)) else "are wrong"
        raise ValueError(f"the arguments of report {swapped}: pm.report(board, 'report.html')")
    if not isinstance(board, Leaderboard):
        board = compare(board)  # type: ignore[arg-type]
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name the file to write: {path / 'report.html'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    html = render(
        board,
        command=command,
        environment=environment,
        failures=failures,
        comparisons=comparisons,
    )
    replace_file(path, html.encode())
    return path


def write_report(folder: RunFolder, board: Leaderboard, path: Path | None = None) -> None:
    """Write the report of what is in the folder of a run."""
    report(
        board,
        path or folder.report,
        command=folder.config().get("command", ""),
        environment=folder.read("environment.json"),
        failures=folder.failures(),
    )


def render(
    board: Leaderboard,
    *,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    failures: Failures = 0,
    comparisons: Sequence[Comparison] = (),
) -> str:
    """Return the report as text."""
    facts = environment if environment is not None else present()
    methods = list(dict.fromkeys(entry.method for entry in board.entries))
    cards = [card(name) for name in methods]
    bibtex = "\n\n".join(c["bibtex"] for c in cards if "bibtex" in c)
    all_numbers, ending = csv_uri(_csv(board))
    meanings = glossary(board)
    return fill(
        "page.html",
        task=board.task,
        about=TASKS.get(board.task).metadata if board.task in TASKS else {},
        verdict=verdict(board),
        stats=_stats(board, failures, comparisons, facts),
        alerts=alerts(board, failures),
        sizes=sizes(board),
        numbers=(all_numbers, f"leaderboard.{ending}"),
        comparisons=[compared(row) for row in comparisons],
        forest=rows([forest(comparisons)]) if comparisons else None,
        sections=sections(board),
        cards=[{**c, "entries": _entries(board, c["name"])} for c in cards],
        glossary=meanings,
        families=list(dict.fromkeys(meaning.family for meaning in meanings.values())),
        command=command,
        configs=_configurations(board),
        bibtex=bibtex,
        bibtex_uri=text_uri(bibtex),
        facts=_facts(board, facts),
    )


def compared(row: Comparison) -> dict[str, str]:
    """Return a number of a paper and ours as they are written, with the same decimals."""
    spreads = [row.paper_spread, row.standard_error, row.tolerance]
    digits = decimals_for([row.paper, row.ours], spreads)
    return {
        "label": row.label,
        "unit": " ".join(filter(None, [ARROWS[row.direction], row.unit])),
        "paper": number(row.paper, row.paper_spread, digits),
        "ours": number(row.ours, row.standard_error, digits),
        "tolerance": f"± {number(row.tolerance, None, digits)}",
        "verdict": row.verdict,
        "sign": VERDICTS[row.verdict][0],
    }


def _configurations(board: Leaderboard) -> list[tuple[str, str, str, str]]:
    """Return label, colour, shape and configuration of each entry, in order."""
    styles = palette(board.labels)
    configurations = []
    for entry in board.entries:
        results = entry.results[0]
        config = {"method": results.method, "net": results.net, **results.config}
        text = json.dumps({**config, "seeds": entry.seeds}, indent=1, sort_keys=True, default=str)
        color, marker = styles[entry.label]
        configurations.append((entry.label, color, SHAPES[marker], text))
    return configurations


def _stats(
    board: Leaderboard,
    failures: Failures,
    comparisons: Sequence[Comparison],
    environment: Mapping[str, Any],
) -> list[tuple[str, str]]:
    """Return the row of facts below the verdict."""
    every = [results for entry in board.entries for results in entry.results]
    failed = how_many(failures)
    stats = [
        ("methods", str(len(board.entries))),
        ("seeds" if len(board.seeds) > 1 else "seed", _ranges(board.seeds)),
        ("cells", f"{len(every)} done" + (f", {failed} failed" if failed else "")),
    ]
    if comparisons:
        good = sum(row.verdict in ("reproduced", "better") for row in comparisons)
        stats.append(("reproduced", f"{good} of {len(comparisons)}"))
    trained = [r.cost.train_seconds for r in every if r.cost.train_seconds is not None]
    if trained:
        stats.append(("training", duration(sum(trained))))
    threads = environment.get("threads")
    processor = "CPU" + (f", {threads} thread{'s' if threads != 1 else ''}" if threads else "")
    return [*stats, ("device", str(environment.get("gpu") or processor))]


def _ranges(seeds: Sequence[int]) -> str:
    """Return seeds in few letters.

    >>> _ranges([0, 1, 2, 3, 7])
    '0–3, 7'
    """
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(f"{p[0]}–{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(0.021), duration(42.19), duration(312), duration(9000)
    ('0.021 s', '42.2 s', '5.2 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _entries(board: Leaderboard, method: str) -> list[dict[str, Any]]:
    """Return what the entries of one method cost here."""
    entries = []
    for place, entry in enumerate(board.entries, 1):
        if entry.method == method:
            cost = costs(entry)
            train = cost["train_seconds"]
            entries.append(
                {
                    "label": entry.label,
                    "place": place,
                    "train": "" if train is None else f"{duration(train)} training",
                    "predict": f"{cost['predict_ms']:,.1f} ms per 1,000 inputs",
                }
            )
    return entries


def _csv(board: Leaderboard) -> str:
    """Return all numbers of the tables, a line each."""
    errors = ["standard error over seeds", "over examples"]
    lines: list[list[Any]] = [
        ["entry", "data set", "metric", "mean", *errors, "seeds", "unit", "better", "n"]
    ]
    for columns in board.groups(full=True).values():
        for column in columns:
            for label in board.labels:
                cell = board[label, column.dataset, column.metric]
                numbers = (cell.mean, cell.standard_error, cell.example_error)
                texts = ["" if v is None else f"{v:.8g}" for v in numbers]
                kind = [cell.n, column.unit, column.direction, column.n]
                lines.append([label, column.dataset, column.metric, *texts, *kind])
    return csv_text(lines)


def _facts(board: Leaderboard, environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("seeds" if len(board.seeds) > 1 else "seed", ", ".join(map(str, board.seeds)))]
    versions = environment.get("versions", {})
    if isinstance(versions, Mapping) and versions:
        facts.append(
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))
        )
    further = {k: v for k, v in environment.items() if k != "versions" and v is not None}
    return facts + [(key.replace("_", " "), str(value)) for key, value in further.items()]
