"""One writer a folder: a second one is refused, and what the dead leave is taken over."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import time

import filelock
import pytest

from polymode.runs.lock import FolderLock
from polymode.runs.run_folder import RunFolder
from polymode.runs.settings import UsageProblem

HOLD = """
import sys, time
from pathlib import Path
from polymode.runs.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "LOCK")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_process_is_told_who_writes_and_since_when(tmp_path, holder):
    clock = time.strftime("%H:%M", time.localtime((tmp_path / "LOCK").stat().st_mtime))
    who = f"process {holder.pid} on {platform.node()} since {clock}"
    message = f"{tmp_path} is being written by {who}; wait, or choose another --out"
    with pytest.raises(UsageProblem) as refused:
        FolderLock(tmp_path / "LOCK").__enter__()
    assert str(refused.value) == message
    with pytest.raises(UsageProblem, match="is being written by"):
        RunFolder(tmp_path).writing({}).__enter__()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "LOCK").exists()
    with FolderLock(tmp_path / "LOCK"):
        assert json.loads((tmp_path / "LOCK").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "LOCK").exists()


def test_a_lock_that_was_removed_while_we_waited_for_it_is_made_anew(tmp_path, monkeypatch):
    path, real, removed = tmp_path / "LOCK", FolderLock._take, []

    def take(self):
        real(self)
        if not removed:
            path.unlink()  # as its last owner does between our opening and locking it
            removed.append(True)

    monkeypatch.setattr(FolderLock, "_take", take)
    with FolderLock(path):
        assert path.exists()
        with pytest.raises(UsageProblem, match="is being written by process"):
            FolderLock(path).__enter__()


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without locks."""

    def unsupported(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock, "lock_descriptor", unsupported)


def test_where_the_system_has_no_lock_the_owner_decides(tmp_path, no_locks):
    path = tmp_path / "LOCK"
    here, gone = platform.node(), _a_dead_process()
    for owner in ({"pid": gone, "host": here, "since": 0}, {}, "nonsense"):
        path.write_text(json.dumps(owner) if owner != "nonsense" else "{")
        with FolderLock(path):
            pass
    for owner in ({"pid": os.getppid(), "host": here}, {"pid": gone, "host": "elsewhere"}):
        path.write_text(json.dumps({**owner, "since": 0}))
        with pytest.raises(UsageProblem, match=f"remove {path} if that process is gone"):
            FolderLock(path).__enter__()
        assert path.exists()


@pytest.mark.parametrize("since", ["noon", None, [], {}, 1e300, float("nan"), -1e18])
def test_an_odd_time_in_the_lock_is_no_traceback(tmp_path, no_locks, since):
    owner = {"pid": os.getppid(), "host": platform.node(), "since": since}
    (tmp_path / "LOCK").write_text(json.dumps(owner))
    with pytest.raises(UsageProblem, match="since an unknown time; wait"):
        FolderLock(tmp_path / "LOCK").__enter__()


@pytest.mark.parametrize("pid", ["x", None, [], 10**30, -1, 0])
def test_an_owner_that_is_no_process_is_taken_over(tmp_path, no_locks, pid):
    (tmp_path / "LOCK").write_text(json.dumps({"pid": pid, "host": platform.node()}))
    with FolderLock(tmp_path / "LOCK"):
        pass


def test_a_lock_that_is_nested_deeply_has_no_owner(tmp_path, no_locks):
    (tmp_path / "LOCK").write_text("[" * 5000)
    with FolderLock(tmp_path / "LOCK"):
        pass


def _a_dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
