"""The folder of a run: results, failures and events line by line, predictions by cell.

    config.json              the merged configuration, and which cells belong to the run
    environment.json         versions, machine, threads
    results.jsonl            a line for each finished cell
    predictions/KEY.npz      its predictions, for any metric that is asked for later, and what the
                             figures of its examinations are made of
    failures.jsonl           a line for each failed cell, with traceback and configuration
    events.jsonl             what happened when, and how long it took
    checkpoints/KEY/         training of a cell that runs; removed when it is done
    LOCK                     who writes, while someone does

Lines are appended and flushed to disk; one that was cut short by a crash is dropped when the next
one is written. Nothing is removed to make room for something new: where a cell was run twice, its
last line counts. Lines of results carry a digest of themselves and one of the predictions; a cell
whose line or predictions were changed since is not done. Times are in `cost` and in the events; all
else is the same for the same command.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from polymode._version import __version__
from polymode.core.safe_files import is_plain_name, json_digest, open_plain, replace_file
from polymode.core.text import parse_json
from polymode.metrics.results import NewerSchema, Results
from polymode.runs.archive import Checker, Stored, StoredArrays, digest_of
from polymode.runs.lock import FolderLock
from polymode.runs.settings import UsageProblem

SCHEMA = 2  # 1 had no list of cells
TIMES = ("train_seconds", "predict_seconds")
_FOLDERS = ("checkpoints", "predictions")
_FILES = ("results.jsonl", "failures.jsonl", "events.jsonl", "LOCK")
_MOST_THREADS = 1024  # that a file may ask for: the system may end a process that starts 10⁶
SECONDS = "s"  # unit of rows that are times
CHANGED = "was changed after it was written: its digest does not match"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


_CONFIG: dict[str, tuple[Callable[[Any], bool], str]] = {
    "command": (lambda v: isinstance(v, str), "text"),
    "data": (lambda v: isinstance(v, dict), "an object"),
    "threads": (lambda v: type(v) is int and 1 <= v <= _MOST_THREADS, "a number of threads"),
    "cells": (
        lambda v: (
            isinstance(v, list)
            and all(isinstance(cell, dict) and is_plain_name(cell.get("key")) for cell in v)
        ),
        "a list of cells with their keys",
    ),
    "redo": (
        lambda v: isinstance(v, dict) and all(type(number) is int for number in v.values()),
        "an object of numbers",
    ),
}


class WriteProblem(Exception):
    """The folder cannot be written: no other cell would fare better. The message is one line."""


class _Cell(NamedTuple):
    """A line of results: its number, what it says, and the digest of its predictions."""

    number: int
    results: Results
    digest: str | None


class RunFolder:
    """Files of one run below `path`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._checker = Checker()

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def checkpoint(self, key: str) -> Path:
        """Return where the training of a cell is kept while it runs."""
        if not is_plain_name(key):  # a path would lead elsewhere, and what is there be removed
            raise ValueError(f"{key!r} is not the key of a cell")
        return self.path / "checkpoints" / key

    @contextmanager
    def writing(self, data: Mapping[str, Any]) -> Iterator[None]:
        """Make the folder, or take one that holds results on the same data, for this process."""
        with ExitStack() as held:
            self._refuse_links()
            try:
                (self.path / "predictions").mkdir(parents=True, exist_ok=True)
                with open(self.path / "results.jsonl", "ab"):
                    pass
                held.enter_context(FolderLock(self.path / "LOCK"))
            except OSError as error:
                raise UsageProblem(f"cannot write to {self.path}: {error.strerror}") from error
            self.check(data)
            self._sweep()
            yield

    def _refuse_links(self) -> None:
        """Refuse links and pipes where a run changes or removes what it finds."""
        for name in (*_FOLDERS, *_FILES):
            path = self.path / name
            kind, right = (
                ("folder", path.is_dir()) if name in _FOLDERS else ("file", path.is_file())
            )
            if path.is_symlink() or (path.exists() and not right):
                raise UsageProblem(
                    f"{path} is not a plain {kind}, and a run changes what is there: remove it, or"
                    " choose another --out"
                )

    def _sweep(self) -> None:
        """Remove what a killed run left: files half written, checkpoints of cells that are done."""
        places = ("", "predictions/", "checkpoints/**/")
        for left in [left for place in places for left in self.path.glob(f"{place}.*.tmp")]:
            left.unlink(missing_ok=True)
        for key in self.done():
            self.forget(key)

    def forget(self, key: str) -> None:
        """Remove the checkpoint of a cell, which nobody needs any more."""
        shutil.rmtree(self.checkpoint(key), ignore_errors=True)
        with suppress(OSError):
            (self.path / "checkpoints").rmdir()

    def check(self, data: Mapping[str, Any]) -> None:
        """Refuse a folder of another release, or one that holds results on other data."""
        config = self.config()
        if not self.results():
            return
        before = config.get("data", data)
        if before != data:
            raise UsageProblem(
                f"{self.path} holds results on task '{before.get('task')}' with other data or"
                " options; choose another --out"
            )
        version = config.get("version", __version__)
        if version != __version__:
            raise UsageProblem(
                f"{self.path} holds results of polymode {version}, this is {__version__}; their"
                " numbers do not belong in one table: choose another --out"
            )

    def config(self) -> dict[str, Any]:
        """Return `config.json`, empty where there is none; one of a newer release is refused."""
        config = self.read("config.json")
        schema = config.get("schema", SCHEMA)
        if not isinstance(schema, int) or schema > SCHEMA:
            raise UsageProblem(
                f"{self.path} has schema version {schema}, this polymode reads up to {SCHEMA};"
                " it was written by a newer release: upgrade polymode, or choose another --out"
            )
        for name, (fits, form) in _CONFIG.items():
            if name in config and not fits(config[name]):
                raise UsageProblem(
                    f"{self.path / 'config.json'}: `{name}` must be {form}, got"
                    f" {config[name]!r:.80}; restore the file, or choose another --out"
                )
        return config

    def configure(
        self,
        content: Mapping[str, Any],
        cells: Sequence[Mapping[str, Any]],
        redo: Sequence[str] = (),
    ) -> None:
        """Write `config.json` with these cells behind those that were there before.

        Results that are here already of cells to `redo` do not count as done any more; they stay.
        """
        before = self.config()
        listed = {cell["key"]: cell for cell in [*before.get("cells", []), *cells]}
        stale = dict.fromkeys(redo, len(raw_lines(self.path / "results.jsonl")))
        more = {"cells": list(listed.values()), "redo": {**before.get("redo", {}), **stale}}
        self.write("config.json", {**content, "schema": SCHEMA, **more})

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps(content, indent=1, sort_keys=True)
        with self._or_problem(name):
            replace_file(self.path / name, text.encode())

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON file; empty where there is none."""
        path = self.path / name
        if not path.exists():
            return {}
        try:
            with open_plain(path) as file:
                content = parse_json(file.read())
        except ValueError as error:
            raise UsageProblem(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise UsageProblem(f"{self.path / name} cannot be read: it does not hold a JSON object")
        return content

    def append(self, name: str, content: Mapping[str, Any], *, sync: bool = True) -> None:
        """Add one line of JSON, whole or not at all, and (`sync`) wait until it is on the disk."""
        with self._or_problem(name):
            append_line(self.path / name, content, sync=sync)

    def log(self, kind: str, **facts: Any) -> None:
        """Add a line to `events.jsonl`; of no result, so it may reach the disk when it likes."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z"
        self.append("events.jsonl", {"time": now, "kind": kind, **facts}, sync=False)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of `events.jsonl` that can be read; times are worth no complaint."""
        events = []
        for _, line in raw_lines(self.path / "events.jsonl"):
            with suppress(ValueError):
                events.append(parse_json(line))
        return [event for event in events if isinstance(event, dict)]

    def done(self) -> set[str]:
        """Return the keys of the cells that have results, and need not be redone."""
        redo = self.config().get("redo", {})
        return {key for key, cell in self._cells()[0].items() if cell.number > redo.get(key, 0)}

    def damage(self) -> list[str]:
        """Return what is damaged, a sentence without a full stop each; its cells are not done.

        What was made good since, by running the cell again, does not count.
        """
        cells, problems = self._cells()
        listed = [cell["key"] for cell in self.config().get("cells", [])]
        return [] if listed and all(key in cells for key in listed) else problems

    def _cells(self) -> tuple[dict[str, _Cell], list[str]]:
        """Return the last results of each cell where they are whole, and what is damaged."""
        path = self.path / "results.jsonl"
        cells: dict[str, _Cell] = {}
        problems: list[tuple[str, str]] = []
        for line in read_lines(path):
            key, problem = line.key, line.problem
            if not problem:
                try:
                    results = Results.from_dict(line.content)
                    cells[key] = _Cell(line.number, results, line.content.get("predictions"))
                    problems = [problem for problem in problems if problem[0] != key]
                except NewerSchema as error:
                    raise UsageProblem(f"{path}, line {line.number}: {error}") from error
                except ValueError as error:
                    problem = f"cannot be read: {error}"
            if problem:
                cells.pop(key, None)
                problems.append((key, f"{path}, line {line.number} {problem}"))
        for key, cell in list(cells.items()):
            if problem := self._checker.problem(self._predictions(key), cell.digest):
                del cells[key]
                problems.append((key, problem))
        return cells, [problem for _, problem in problems]

    def results(self, *, predictions: bool = False) -> list[Results]:
        """Return the results in the order of the plan, the last one where a cell was run again.

        Damaged cells are left out; `damage` names them.
        """
        places = {cell["key"]: n for n, cell in enumerate(self.config().get("cells", []))}
        last: dict[str, tuple[str, _Cell]] = {}
        for key, cell in self._cells()[0].items():
            r = cell.results
            setup = json.dumps([r.method, r.net, r.config, r.seed], sort_keys=True)
            if setup not in last or last[setup][1].number < cell.number:
                last[setup] = key, cell
        ordered = sorted(last.values(), key=lambda pair: places.get(pair[0], len(places)))
        if not predictions:
            return [cell.results for _, cell in ordered]
        return [self._with_arrays(key, cell.results) for key, cell in ordered]

    def add(self, key: str, results: Results, predictions: bytes) -> None:
        """Keep the predictions, then the line that says the cell is done; both with digests."""
        with self._or_problem("predictions"):
            replace_file(self._predictions(key), predictions)
        line = {"key": key, **results.to_dict(), "predictions": digest_of(predictions)}
        self.append("results.jsonl", signed(line))

    def _predictions(self, key: str) -> Path:
        return self.path / "predictions" / f"{key}.npz"

    def failures(self) -> list[dict[str, Any]]:
        """Return the last failure of each cell that has not been done since."""
        done = self._cells()[0]
        lines = read_lines(self.path / "failures.jsonl")
        last = {line.key: line.content for line in lines if not line.problem}
        return [content for key, content in last.items() if key not in done]

    def is_full(self, error: OSError) -> bool:
        """Return whether an error that another module met is one of this folder."""
        where = str(error.filename or "")
        return error.errno in _FULL or where.startswith(str(self.path))

    @contextmanager
    def _or_problem(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.problem(error, name) from error

    def problem(self, error: OSError, name: str = "") -> WriteProblem:
        """Return the error as a line that says what is safe and what to do."""
        return WriteProblem(
            f"cannot write to {self.path / name}: {error.strerror or error}; finished cells are"
            " kept, the same command goes on from there"
        )

    def _with_arrays(self, key: str, results: Results) -> Results:
        path = self._predictions(key)
        if not path.exists():
            return results
        return results.replace(kept=Stored(path), arrays=StoredArrays(path))


# lines of JSON


class Line(NamedTuple):
    """A line: its number from 1, what it holds, and what is wrong with it (nothing if empty)."""

    number: int
    content: dict[str, Any]
    problem: str = ""

    @property
    def key(self) -> str:
        """The key of the line's cell, empty where it has none."""
        return str(self.content.get("key", ""))


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with a digest of itself."""
    plain = json.loads(json.dumps(content, allow_nan=False))  # as it will be read
    return {**plain, "digest": json_digest(plain)}


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file about cells; a last one that was cut short does not count."""
    return [_line(number, text) for number, text in raw_lines(path)]


def raw_lines(path: Path) -> list[tuple[int, bytes]]:
    """Return the lines of a file with their numbers from 1; none where there is no file."""
    if not path.is_file():
        return []
    return list(enumerate(path.read_bytes().split(b"\n")[:-1], 1))


def _line(number: int, text: bytes) -> Line:
    try:
        content = parse_json(text)
    except ValueError as error:
        return Line(number, {}, f"cannot be read: {error}")
    if not isinstance(content, dict) or "key" not in content:
        return Line(number, {}, "cannot be read: it is not a line of polymode")
    if not is_plain_name(content["key"]):
        odd = str(content["key"])[:60]
        return Line(number, {}, f"cannot be read: {odd!r} is not the key of a cell")
    claimed = content.pop("digest", None)
    try:
        same = claimed is None or claimed == json_digest(content)
    except RecursionError:  # what can just be read may be too deep to be written
        same = False
    return Line(number, content, "" if same else CHANGED)


def append_line(path: Path, content: Mapping[str, Any], *, sync: bool) -> None:
    """Add one line, whole or not at all, and (`sync`) wait until it is on the disk."""
    line = json.dumps(content, allow_nan=False).encode() + b"\n"
    with open(path, "a+b", buffering=0) as file:
        end = _end_of_lines(file.fileno())
        file.truncate(end)
        try:
            _write_all(file.fileno(), line)
            if sync:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def _end_of_lines(file: int) -> int:
    """Return the size of a file without a last line that has no end."""
    end = os.lseek(file, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        os.lseek(file, start, os.SEEK_SET)
        newline = os.read(file, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def without_times(path: Path) -> list[bytes]:
    """Return the lines of a `results.jsonl` without their times: the same for the same command."""
    lines = []
    for text in path.read_bytes().splitlines():
        line = json.loads(text)
        line["cost"] = {key: value for key, value in line["cost"].items() if key not in TIMES}
        del line["digest"]
        line["rows"] = [row for row in line["rows"] if row["unit"] != SECONDS]
        lines.append(json.dumps(line).encode())
    return lines
