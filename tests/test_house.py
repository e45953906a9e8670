"""The house itself: imports point one way and are cheap, few names at the top, one vocabulary."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import polymode as pm
import polymode.likelihoods.kinds

SOURCE = Path(pm.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ORDER = [
    "_version", "core", "likelihoods", "distributed", "tracing", "stack", "curvature", "training",
    "chains", "nets", "equivariance", "tasks", "prediction",
    "recalibration", "conformal", "posterior",
    "methods", "tomography", "zoo", "metrics", "symmetry", "adversary", "examinations", "plots",
    "sklearn", "runs", "studies", "report", "audits", "cli", "__init__", "__main__",
]  # fmt: skip


SUBJECT_FILES = {"examination": "examinations", "plots": "plots"}


def room(parts: list[str]) -> str:
    """Return the room of a module below polymode. A subject's examination and its pictures rank as
    those of the rooms `examinations` and `plots`, on which they build."""
    if parts == ["examinations", "plots"]:
        return "plots"
    if len(parts) == 2 and parts[0] != "examinations":
        return SUBJECT_FILES.get(parts[1], parts[0])
    return parts[0]


class Contents(NamedTuple):
    """What the tests below ask of a file, so that each is parsed once.

    Attributes:
        rooms: that it imports. arguments: names of all arguments of functions.
        assigned: names of variables and parameters. counts: of positional arguments, by function.
        lines, text: of the file.
    """

    rooms: set[str]
    arguments: list[str]
    assigned: list[str]
    counts: list[tuple[str, int]]
    lines: int
    text: str


@cache
def contents(path: Path) -> Contents:
    text = path.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return Contents(
        imported_rooms(path, nodes),
        [a.arg for f in functions for a in [*f.args.args, *f.args.kwonlyargs]],
        stored + [n.arg for n in nodes if isinstance(n, ast.arg)],
        [(f.name, len(positional(f))) for f in functions],
        len(text.splitlines()),
        text,
    )


def imported_rooms(path: Path, nodes: list[ast.AST]) -> set[str]:
    modules: list[list[str]] = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polymode"):
            parts = (node.module or "").split(".")[1:]
            names = [[*parts, alias.name] for alias in node.names]
            modules += names if len(parts) < 2 else [parts]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            modules += [parts[1:] for parts in names if parts[0] == "polymode" and parts[1:]]
    inside = path.parent.name if path.name == "__init__.py" else None  # a folder lists its files
    return {room(parts) for parts in modules if parts[0] != inside} & set(ORDER)


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_to_the_left(path) -> None:
    """A room may use the rooms before it, never those after it."""
    mine = room(list(path.relative_to(SOURCE).with_suffix("").parts))
    if mine == "__init__" or path == SOURCE / "plots/__init__.py":  # names that are imported late
        return
    later = {name for name in contents(path).rooms if ORDER.index(name) > ORDER.index(mine)}
    assert not later, f"{mine} imports {later}"


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout


def test_importing_is_cheap() -> None:
    """`import polymode` brings none of the heavy libraries that only reports and tasks need."""
    heavy = ("torch", "numpy", "matplotlib", "jinja2", "rich", "typer", "sklearn", "scipy", "PIL")
    out = run(f"import sys, polymode; print([m for m in {heavy!r} if m in sys.modules])")
    assert out.strip() == "[]"


def test_few_names_at_the_top_and_the_rooms() -> None:
    """What `dir` and tab completion show: sixteen names, and the rooms a user may enter."""
    public = [name for name in dir(pm) if not name.startswith("__")]
    rooms = [name for name in public if name in pm._ROOMS]
    assert set(public) == {name for name in pm.__all__ if not name.startswith("__")}
    assert len(public) - len(rooms) <= 16
    assert set(rooms) >= {"likelihoods", "methods", "metrics", "nets", "plots", "tasks"}
    assert all(hasattr(pm, name) for name in public)
    assert pm.likelihoods.Gaussian is polymode.likelihoods.kinds.Gaussian


FOREIGN = r"\b(n_members|num_members|n_estimators|num_estimators|n_samples|weight_decay|wd|lam)\b"


def test_one_vocabulary() -> None:
    """Public argument names follow docs/naming.md."""
    names = [(path.name, name) for path in FILES for name in contents(path).arguments]
    assert not [(file, name) for file, name in names if re.fullmatch(FOREIGN, name)]


def test_files_are_small() -> None:
    assert not {path.name: contents(path).lines for path in FILES if contents(path).lines > 600}


def test_warnings_name_the_line_of_the_user() -> None:
    """Only `core.warn` counts frames; a number would point into the library after a change."""
    counts = re.compile(r"stacklevel|warnings\.warn\(")
    assert {p.name for p in FILES if counts.search(contents(p).text)} == {"warn.py"}


VAGUE = set(
    "found each own kept known mine told said other others rest whole given made seen here there"
    " both one two shown asked taken".split()
)
VAGUE_SHARE = 0.004  # it only goes down
LONG_CALLS = 11  # the goal is 0; it only goes down


def test_names_say_what_a_thing_is() -> None:
    """Variables and parameters are called by what they hold, in the words of the field."""
    names = [name for path in FILES for name in contents(path).assigned]
    vague = [name for name in names if name.strip("_") in VAGUE]
    assert len(vague) / len(names) <= VAGUE_SHARE, f"{len(vague)} of {len(names)}"


def test_functions_take_few_arguments() -> None:
    """More than six positional arguments want a dataclass that has a name."""
    counts = [(path.name, *count) for path in FILES for count in contents(path).counts]
    long = [f"{file}:{function}" for file, function, count in counts if count > 6]
    assert len(long) <= LONG_CALLS, long


def test_tests_do_not_import_each_other() -> None:
    """What several share is a module without tests."""
    importing = re.compile(r"^from \.+[\w.]*\btest_\w+ import", re.M)
    tests = Path(__file__).parent.rglob("*.py")
    assert not [str(path) for path in tests if importing.search(path.read_text())]
