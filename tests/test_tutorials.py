"""Tutorials run from their first cell to the last; what they say comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs import notebooks
from polymode.methods.method import METHODS

NAMES = sorted(path.stem for path in notebooks.FOLDER.glob("*.ipynb"))


def load(name: str) -> dict[str, Any]:
    return json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text())


@pytest.mark.cpu_seconds(24)
@pytest.mark.parametrize("name", NAMES)
def test_tutorials_run_and_hold_their_outputs(name, monkeypatch) -> None:
    """Every cell runs, without a warning, and shows what kinds of things are stored below it."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._all()))  # one tutorial adds a method
    stored = load(name)
    before = kinds(stored)
    notebooks.run(stored, name)
    assert kinds(stored) == before and any(before)


def kinds(notebook: dict[str, Any]) -> list[list[list[str]]]:
    outputs = [cell.get("outputs", []) for cell in notebook["cells"]]
    return [[sorted(one.get("data", ["text"])) for one in several] for several in outputs]


def test_tutorials_are_small_and_name_no_machine() -> None:
    sizes = [(notebooks.FOLDER / f"{name}.ipynb").stat().st_size for name in NAMES]
    assert sum(sizes) < 1_500_000
    for name in NAMES:
        text = (notebooks.FOLDER / f"{name}.ipynb").read_text()
        assert not any(
            word in text for word in ("/tmp/", "/home/", "/work/", " at 0x", "Traceback")
        )


def code(*sources: str) -> dict[str, Any]:
    return {"cells": [{"cell_type": "code", "source": [source]} for source in sources]}


def test_cells_run_in_order_in_an_empty_folder(capsys) -> None:
    write = "import os, pathlib\npathlib.Path('a').write_text('x');"
    notebook = code(write, "print('printed')\nos.listdir()", "x = 1", "None")
    notebook["cells"].insert(0, {"cell_type": "markdown", "source": ["# Title"]})
    assert notebooks.run(notebook)["x"] == 1
    assert not Path("a").exists() and capsys.readouterr().out == ""
    first, (stream, result), *rest = [cell["outputs"] for cell in notebook["cells"][1:]]
    assert first == [] and rest == [[], []]
    assert stream["text"] == ["printed\n"] and result["data"] == {"text/plain": ["['a']"]}


def test_a_value_is_shown_as_jupyter_shows_it() -> None:
    class Picture:
        def _repr_png_(self) -> bytes:
            return b"png"

        def _repr_html_(self) -> str:
            return "<p>"

    data = notebooks.shown(Picture())
    assert data["image/png"] == ["cG5n"] and "text/html" not in data
    assert " at 0x" not in data["text/plain"][0]


def test_an_error_names_the_notebook_and_the_cell() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        notebooks.run(code("x = 0", "1 / x"), "mine")
    assert caught.traceback[-1].frame.code.raw.co_filename == "mine, cell 2"


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    with pytest.raises(SystemExit, match="no notebook nothing; there are: .*classifier"):
        notebooks.paths(["nothing"])
