"""One writer a folder: a file `LOCK` that says who writes, and since when.

The lock itself is the system's: it ends with the process that holds it, however that
ends, so what a killed run leaves is taken over without asking. Where the system has no such lock,
the owner's entry decides: a process of this machine that is gone does not count.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from polymode.core.safe_files import is_alive, take_lock
from polymode.core.text import parse_json
from polymode.runs.settings import UsageProblem


class FolderLock:
    """Holds `path` (the file) while a `with` block runs; a second process is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1

    def __enter__(self) -> FolderLock:
        while True:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take()
            except BaseException:
                os.close(self._file)
                raise
            if self._still_there():
                break
            os.close(self._file)  # its owner removed it between our opening and locking it
        owner = {"pid": os.getpid(), "host": platform.node(), "since": time.time()}
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, json.dumps(owner).encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _take(self) -> None:
        locked = take_lock(self._file, wait=False)
        if locked is False:
            raise self._refusal()
        if locked is None and _may_live(self._owner()):
            raise self._refusal(f"wait, remove {self.path} if that process is gone,")

    def _still_there(self) -> bool:
        try:
            return os.stat(self.path).st_ino == os.fstat(self._file).st_ino
        except FileNotFoundError:
            return False

    def _owner(self) -> dict[str, Any]:
        try:
            os.lseek(self._file, 0, os.SEEK_SET)
            owner = parse_json(os.read(self._file, 4096))
            return owner if isinstance(owner, dict) else {}
        except (ValueError, OSError):  # empty, being written, or locked as on Windows
            return {}

    def _refusal(self, remedy: str = "wait,") -> UsageProblem:
        owner = self._owner()
        who = "another process"
        if owner:
            who = f"process {owner.get('pid')} on {owner.get('host')} since {_when(owner)}"
        folder = self.path.parent
        return UsageProblem(f"{folder} is being written by {who}; {remedy} or choose another --out")


def _when(owner: dict[str, Any]) -> str:
    """Return the time of day at which the owner began, with the date if that was not today."""
    try:
        since = time.localtime(float(owner.get("since", 0.0)))
    except (TypeError, ValueError, OverflowError, OSError):  # of another hand
        return "an unknown time"
    today = time.localtime()[:3] == since[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", since)


def _may_live(owner: dict[str, Any]) -> bool:
    """Return False if the owner is known to be gone; a process elsewhere may live."""
    if not owner:
        return False
    if owner.get("host") != platform.node() or os.name != "posix":
        return True
    number = owner.get("pid")
    return type(number) is int and number > 0 and number != os.getpid() and is_alive(number)
