"""Run the tutorials and write their outputs into them: `python -m docs.notebooks [NAME ...]`.

A notebook in `docs/tutorials` is its own source. Its cells run in order, in one namespace and in an
empty folder, as a reader runs them; the value of a cell's last expression is shown as Jupyter shows
it. `--check` runs them and writes nothing.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tutorials"
FORMATS = {  # what an object may have, and the type of what it gives; the first that it has counts
    "_repr_png_": "image/png",
    "_repr_svg_": "image/svg+xml",
    "_repr_html_": "text/html",
}


def run(notebook: dict[str, Any], name: str = "notebook") -> dict[str, Any]:
    """Run all code of a notebook, fill in the outputs and return the names that it leaves."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with empty_folder():
        for number, cell in enumerate(notebook["cells"], 1):
            if cell["cell_type"] == "code":
                where = f"{name}, cell {number}"
                cell["outputs"] = run_cell("".join(cell["source"]), names, where)
    return names


def run_cell(source: str, names: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Run a cell; return what it printed and what its last expression shows."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None and not source.rstrip().endswith(";"):
        result = {"execution_count": None, "metadata": {}, "output_type": "execute_result"}
        outputs.append(result | {"data": shown(value)})
    return outputs


def shown(value: Any) -> dict[str, Any]:
    """Return a value as Jupyter shows it: a picture or HTML where it has such, and text."""
    data: dict[str, Any] = {}
    for method, kind in FORMATS.items():
        made = getattr(value, method, lambda: None)()
        if made is not None:
            text = base64.b64encode(made).decode() if isinstance(made, bytes) else made
            data[kind] = text.splitlines(keepends=True)
            break
    text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))  # another in every run
    return data | {"text/plain": text.splitlines(keepends=True)}


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    """Context inside an empty folder, which is deleted at its end."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def paths(names: list[str]) -> list[Path]:
    """Return the notebooks of these names, or all of them."""
    every = sorted(FOLDER.glob("*.ipynb"))
    unknown = set(names) - {path.stem for path in every}
    if unknown:
        there = ", ".join(path.stem for path in every)
        raise SystemExit(f"no notebook {', '.join(sorted(unknown))}; there are: {there}")
    return [path for path in every if not names or path.stem in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="file names without .ipynb; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    for path in paths(options.names):
        start, notebook = time.process_time(), json.loads(path.read_text())
        run(notebook, path.stem)
        if not options.check:
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        seconds, size = time.process_time() - start, path.stat().st_size / 1000
        print(f"{path.stem}: {seconds:.1f} s of CPU time, {size:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
