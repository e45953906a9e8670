"""`report`: a leaderboard as one HTML file that needs nothing else, not even JavaScript."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from polymode._version import __version__
from polymode.core.store import replace_file
from polymode.metrics.compare import compare
from polymode.metrics.leaderboard import Column, Leaderboard, costs, group_title
from polymode.metrics.results import Results
from polymode.metrics.score import ARROWS, TABLES, entries
from polymode.metrics.table import decimals_for, number
from polymode.plots import Display, palette
from polymode.report.cards import card
from polymode.report.environment import environment as present
from polymode.report.figures import sections
from polymode.report.verdict import alerts, verdict

HERE = Path(__file__).parent


def report(
    board: Leaderboard | Results | Sequence[Results],
    path: str | Path,
    *,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    failures: int = 0,
) -> Path:
    """Write a report and return its path; it is complete or not there at all.

    Args:
        board: a leaderboard, or results to compare. Figures are made of the predictions that
            results from `evaluate` keep; those read from JSON have tables only.
        path: the HTML file to write; its folder is made if need be.
        command: what reproduces the run, shown at the end.
        environment: versions and machine of the run; by default the present ones.
        failures: how many cells of the run failed.
    """
    if isinstance(board, Results):
        board = [board]
    if not isinstance(board, Leaderboard):
        board = compare(board)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    html = render(board, command=command, environment=environment, failures=failures)
    replace_file(path, html.encode())
    return path


def render(
    board: Leaderboard,
    *,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    failures: int = 0,
) -> str:
    """Return the report as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    engine = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    methods = list(dict.fromkeys(entry.method for entry in board.entries))
    configs = {entry.label: _configuration(entry.results[0]) for entry in board.entries}
    return engine.get_template("page.html").render(
        css=(HERE / "page.css").read_text(),
        version=__version__,
        task=board.task,
        verdict=verdict(board),
        badges=_badges(board, failures),
        alerts=alerts(board, failures),
        groups=[_group(board, name, columns) for name, columns in board.groups().items()],
        describing=_describing(board),
        costs=_costs(board),
        sections=[
            (section, [_figure(display) for display in section.displays])
            for section in sections(board)
        ],
        cards=[card(name) for name in methods],
        glossary=_glossary(board),
        command=command,
        configs={label: json.dumps(c, sort_keys=True) for label, c in configs.items()},
        seeds=", ".join(map(str, board.seeds)),
        facts=_facts(environment if environment is not None else present()),
    )


def _configuration(results: Results) -> dict[str, Any]:
    return {"method": results.method, "net": results.net, **results.config}


def _badges(board: Leaderboard, failures: int) -> list[str]:
    cells = sum(len(entry.results) for entry in board.entries)
    trained = [r.cost.train_seconds for entry in board.entries for r in entry.results]
    seconds = sum(each for each in trained if each is not None)
    badges = [
        f"task {board.task}",
        f"{len(board.entries)} method{'s' if len(board.entries) > 1 else ''}",
        f"seeds {', '.join(map(str, board.seeds))}",
        f"{cells} cell{'s' if cells > 1 else ''} done"
        + (f", {failures} failed" if failures else ""),
    ]
    return [*badges, f"{seconds:,.0f} s of training"] if seconds else badges


def _group(board: Leaderboard, name: str, columns: Sequence[Column]) -> dict[str, Any]:
    """Return one table: a heading, the columns, and a line a method."""
    cells = {
        c.metric: [board[label, c.dataset, c.metric] for label in board.labels] for c in columns
    }
    digits = {
        metric: decimals_for(*zip(*(cell[:2] for cell in column), strict=True))
        for metric, column in cells.items()
    }
    lines = [
        [
            {
                "text": number(cell.mean, cell.standard_error, digits[metric]),
                "note": cell.note,
                "best": cell.best,
            }
            for metric, column in cells.items()
            for cell in [column[place]]
        ]
        for place in range(len(board.labels))
    ]
    heads = [{"title": c.title, "arrow": ARROWS[c.direction], "unit": c.unit} for c in columns]
    return {"title": group_title(name, board), "columns": heads, "lines": _labelled(board, lines)}


def _describing(board: Leaderboard) -> dict[str, Any] | None:
    """Return how much members differ: data sets as columns, for the last such metric there is."""
    names = [c.metric for c in board.columns if not c.direction and c.dataset == "test"]
    if not names:
        return None
    shown = [c for c in board.columns if c.metric == names[-1]]
    shown = [c for c in shown if c.dataset in (*board.groups(), "test", "shift:mean")]
    group = _group(board, "test", shown[:1])
    every = [_group(board, c.dataset, [c])["lines"] for c in shown]
    heads = [
        {"title": group_title(c.dataset, board).split(",")[0], "arrow": "", "unit": c.unit}
        for c in shown
    ]
    lines = [[part[place]["cells"][0] for part in every] for place in range(len(board.labels))]
    return {**group, "title": shown[0].title, "columns": heads, "lines": _labelled(board, lines)}


def _labelled(board: Leaderboard, lines: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    styles = palette(board.labels)
    return [
        {"label": label, "color": styles[label].color, "cells": cells}
        for label, cells in zip(board.labels, lines, strict=True)
    ]


def _costs(board: Leaderboard) -> list[dict[str, Any]]:
    styles = palette(board.labels)
    return [
        {
            "label": entry.label,
            "color": styles[entry.label].color,
            "seeds": len(entry.results),
            "train": number(costs(entry)["train_seconds"], None, 1),
            "predict": f"{costs(entry)['predict_ms']:,.1f}",
            "networks": f"{costs(entry)['num_modes']:,}",
            "parameters": f"{costs(entry)['parameters']:,}",
        }
        for entry in board.entries
    ]


def _figure(display: Display) -> dict[str, str]:
    svg = base64.b64encode(display.to_svg().encode()).decode()
    return {
        "src": f"data:image/svg+xml;base64,{svg}",
        "alt": display.alt,
        "caption": display.caption,
        "csv": "data:text/csv;charset=utf-8," + quote(display.to_csv()),
        "name": f"{type(display).__name__}-{display.label}.csv".replace(" ", "_").replace("/", "_"),
    }


def _glossary(board: Leaderboard) -> list[tuple[str, str, str]]:
    used = {column.metric for column in board.columns}
    found = {
        entry.name: entry.metadata
        for table in TABLES.values()
        for entry in entries(table)
        if entry.name in used
    }
    return [(m["title"], m["unit"], m["summary"]) for m in found.values()]


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    versions = environment.get("versions", {})
    facts = [("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))]
    for key in ("system", "processors", "threads", "gpu"):
        if environment.get(key) is not None:
            facts.append((key, str(environment[key])))
    return facts
