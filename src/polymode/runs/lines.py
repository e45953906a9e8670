"""Files of one JSON object per line: appended whole or not at all; what is damaged is named.

Lines that hold results carry a digest of themselves, so that a changed digit is found. Lines of
before there were digests are taken as they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polymode.core.files import is_plain_name, json_digest
from polymode.core.text import parse_json

CHANGED = "was changed after it was written: its digest does not match"


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
        whole = _end_of_lines(file.fileno())
        file.truncate(whole)
        try:
            _write_all(file.fileno(), line)
            if sync:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(whole)
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
