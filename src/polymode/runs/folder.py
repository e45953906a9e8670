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
last line counts. Times are in `cost` and in the events; all else is the same for the same command.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from polymode._version import __version__
from polymode.core.store import is_plain_name, replace_file
from polymode.metrics.results import Results
from polymode.runs.kept import Stored, StoredArrays
from polymode.runs.lock import FolderLock
from polymode.runs.settings import UsageProblem

SCHEMA = 2  # 1 had no list of cells
TIMES = ("train_seconds", "predict_seconds")
_FOLDERS = ("checkpoints", "predictions")
_FILES = ("results.jsonl", "failures.jsonl", "events.jsonl", "LOCK")
SECONDS = "s"  # unit of rows that are times
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class WriteProblem(Exception):
    """The folder cannot be written: no other cell would fare better. The message is one line."""


class RunFolder:
    """Files of one run below `path`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

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
        for place in (self.path, self.path / "predictions"):
            for left in place.glob(".*.tmp"):
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
                " numbers do not belong into one table: choose another --out"
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
        stale = dict.fromkeys(redo, len(self.lines("results.jsonl")))
        more = {"cells": list(listed.values()), "redo": {**before.get("redo", {}), **stale}}
        self.write("config.json", {**content, "schema": SCHEMA, **more})

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps(content, indent=1, sort_keys=True)
        with self._or_problem(name):
            replace_file(self.path / name, text.encode())

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON file; empty where there is none."""
        try:
            content = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UsageProblem(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise UsageProblem(f"{self.path / name} cannot be read: it holds no JSON object")
        return content

    def append(self, name: str, content: Mapping[str, Any], *, sync: bool = True) -> None:
        """Add one line of JSON, whole or not at all, and (`sync`) wait until it is on the disk."""
        line = json.dumps(content, allow_nan=False).encode() + b"\n"
        with self._or_problem(name), open(self.path / name, "a+b", buffering=0) as file:
            whole = _end_of_lines(file.fileno())
            file.truncate(whole)
            try:
                _write_all(file.fileno(), line)
                if sync:
                    os.fsync(file.fileno())
            except OSError:
                file.truncate(whole)
                raise

    def log(self, kind: str, **facts: Any) -> None:
        """Add a line to `events.jsonl`; of no result, so it may reach the disk when it likes."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z"
        self.append("events.jsonl", {"time": now, "kind": kind, **facts}, sync=False)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of `events.jsonl` that can be read; times are worth no complaint."""
        found = []
        for _, line in self._raw("events.jsonl"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [each for each in found if isinstance(each, dict)]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file; a last one that was cut short does not count."""
        found = []
        for number, line in self._raw(name):
            where = f"{self.path / name}, line {number}"
            try:
                content = json.loads(line)
            except ValueError as error:
                raise UsageProblem(f"{where} cannot be read: {error}") from error
            if not isinstance(content, dict) or "key" not in content:
                raise UsageProblem(f"{where} cannot be read: it is no line of polymode's")
            if not is_plain_name(content["key"]):
                raise UsageProblem(
                    f"{where} cannot be read: {str(content['key'])[:60]!r} is not the key of a cell"
                )
            found.append(content)
        return found

    def _raw(self, name: str) -> list[tuple[int, bytes]]:
        try:
            raw = (self.path / name).read_bytes()
        except FileNotFoundError:
            return []
        return list(enumerate(raw.split(b"\n")[:-1], 1))

    def done(self) -> set[str]:
        """Return the keys of the cells that have results, and need not be redone."""
        redo = self.config().get("redo", {})
        lines = enumerate(self.lines("results.jsonl"))
        return {line["key"] for number, line in lines if number >= redo.get(line["key"], 0)}

    def results(self, *, predictions: bool = False) -> list[Results]:
        """Return the results in the order of the plan, the last one where a cell was run again."""
        places = {cell["key"]: n for n, cell in enumerate(self.config().get("cells", []))}
        found: dict[str, tuple[str, Results]] = {}
        for line in self.lines("results.jsonl"):
            try:
                results = Results.from_dict(line)
            except ValueError as error:
                raise UsageProblem(f"{self.path / 'results.jsonl'}: {error}") from error
            setup = [results.method, results.net, results.config, results.seed]
            found[json.dumps(setup, sort_keys=True)] = (line["key"], results)
        ordered = sorted(found.values(), key=lambda pair: places.get(pair[0], len(places)))
        if not predictions:
            return [results for _, results in ordered]
        return [self._with_arrays(key, results) for key, results in ordered]

    def add(self, key: str, results: Results, predictions: bytes) -> None:
        """Keep the predictions, then the line that says the cell is done."""
        with self._or_problem("predictions"):
            replace_file(self.path / "predictions" / f"{key}.npz", predictions)
        self.append("results.jsonl", {"key": key, **results.to_dict()})

    def failures(self) -> list[dict[str, Any]]:
        """Return the last failure of each cell that has not been done since."""
        done = {line["key"] for line in self.lines("results.jsonl")}
        last = {line["key"]: line for line in self.lines("failures.jsonl")}
        return [line for key, line in last.items() if key not in done]

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
        path = self.path / "predictions" / f"{key}.npz"
        try:
            return results.replace(kept=Stored(path), arrays=StoredArrays(path))
        except FileNotFoundError:
            return results


def without_times(path: Path) -> list[bytes]:
    """Return the lines of a `results.jsonl` without their times: the same for the same command."""
    found = []
    for text in path.read_bytes().splitlines():
        line = json.loads(text)
        line["cost"] = {key: value for key, value in line["cost"].items() if key not in TIMES}
        line["rows"] = [row for row in line["rows"] if row["unit"] != SECONDS]
        found.append(json.dumps(line).encode())
    return found


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
