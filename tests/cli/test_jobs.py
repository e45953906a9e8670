"""`--jobs`: the same results from several processes, which may die or be interrupted.

Processes take seconds to import torch, so each test makes as much as it can of one pair of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time

import pytest
import torch

from polymode.runs import pool
from polymode.runs.run_folder import without_times

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture(autouse=True)
def _one_thread():
    """As many threads for one process as for each of two, so that sums are rounded alike."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def no_workers() -> bool:
    return not multiprocessing.active_children()


@pytest.mark.cpu_seconds(40)
def test_two_processes_give_what_one_gives_although_one_is_killed(tmp_path, command):
    """A cell that fails and one whose process is killed (the first that trains) fail alone; what
    is left, and what the next run adds, is to the byte what a single process gives."""
    one, two, killed = tmp_path / "one", tmp_path / "two", []

    def kill() -> None:
        while not list((two / "checkpoints").glob("*")):
            time.sleep(0.01)
        (worker, *_) = multiprocessing.active_children()
        assert worker.pid is not None
        killed.append(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)

    words = ["--seeds", "0-2", "--set", "map.epochs=300"]
    broken = ["--set", "deep_ensemble.lr=1e30", "--set", "deep_ensemble.optimizer=sgd"]
    assert command.run(one, *words, *broken, "-q") == 1
    thread = threading.Thread(target=kill)
    thread.start()
    assert command.run(two, *words, *broken, "--jobs", "2") == 1
    thread.join()
    assert "6 to run in 2 processes of 1 thread: " in command.err
    assert no_workers()
    errors = [failure["error"] for failure in lines(two / "failures.jsonl")]
    (death,) = [error for error in errors if error.startswith("WorkerDied")]
    assert f"the process {killed[0]} of this cell was killed by signal 9" in death
    diverged = [f for f in lines(two / "failures.jsonl") if "Divergence" in f["error"]]
    assert diverged and all("Traceback" in failure["traceback"] for failure in diverged)
    assert command.run(two, *words, *broken, "-q") == 1
    found = [sorted(without_times(path / "results.jsonl")) for path in (one, two)]
    assert found[0] == found[1] and len(found[0]) == 3
    for kept in (one / "predictions").iterdir():
        assert kept.read_bytes() == (two / "predictions" / kept.name).read_bytes()


@pytest.mark.cpu_seconds(20)
def test_what_is_left_runs_as_the_rest_did(tmp_path, command):
    """Whatever threads torch has: their number is the folder's, so the cell that was left ends in
    the same bytes. The folder of an earlier release also says how networks are evaluated."""
    one, two = tmp_path / "one", tmp_path / "two"
    words = ["--task", "two_moons", "--method", "deep_ensemble", "--seeds", "0,1"]
    words += ["--set", "deep_ensemble.epochs=30"]
    assert command.run(one, *words, both=False) == 0
    shutil.copytree(one, two)
    whole = (two / "results.jsonl").read_bytes().splitlines(keepends=True)
    (two / "results.jsonl").write_bytes(whole[0])
    (two / "executions.json").write_text('{"3f2a": ["loop", false, null, 1, false]}')
    torch.set_num_threads(2)
    assert command.run(two, *words, "--jobs", "2", both=False) == 0
    assert "1 to run in 1 process of 1 thread: " in command.err
    found = [sorted(without_times(path / "results.jsonl")) for path in (one, two)]
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.cpu_seconds(25)
def test_seeds_added_later_end_in_the_bytes_of_one_go(tmp_path, command):
    """A process has its share of the threads by --jobs, not by how many cells there are to run:
    products of two threads are rounded otherwise than those of one."""
    torch.set_num_threads(2)
    words = ["run", "--task", "digits", "--net", "lenet", "--method", "map", "--jobs", "2", "-q"]
    words += ["--set", "epochs=1", "--out"]
    assert command(*words, str(tmp_path / "later"), "--seeds", "0") == 0
    assert command(*words, str(tmp_path / "later"), "--seeds", "0-1") == 0
    assert command(*words, str(tmp_path / "once"), "--seeds", "0-1") == 0
    found = [sorted(without_times(tmp_path / name / "results.jsonl")) for name in ("later", "once")]
    assert found[0] == found[1] and len(found[0]) == 2
    for kept in (tmp_path / "once" / "predictions").iterdir():
        assert kept.read_bytes() == (tmp_path / "later" / "predictions" / kept.name).read_bytes()


@pytest.mark.cpu_seconds(25)
def test_ctrl_c_stops_all_processes_at_checkpoints(tmp_path, command):
    """Ctrl-C reaches this process alone, which passes it on; all that trained can go on."""
    real = threading.Event()

    def interrupt() -> None:
        while len(list((tmp_path / "checkpoints").glob("*"))) < 2:
            time.sleep(0.01)
        real.wait(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    words = ["--set", "epochs=1000000", "--jobs", "2", "-q"]
    assert command.run(tmp_path, *words) == 130
    thread.join()
    assert "Interrupted after 0 of 4 cells. Resume: polymode run" in command.err
    assert "--jobs 2 --out" in command.err
    assert " --jobs 2 --out" in json.loads((tmp_path / "config.json").read_text())["command"]
    assert len(list((tmp_path / "checkpoints").rglob("*.safetensors"))) == 2
    assert no_workers()


def test_a_process_that_dies_says_how():
    class Dead:
        pid = 7

    for code, words in ((-9, "signal 9 (SIGKILL); a lack of memory"), (3, "exit code 3")):
        dead = Dead()
        dead.exitcode = code  # type: ignore[attr-defined]
        assert words in pool._death(dead).error  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks here")
def test_the_first_process_too_is_born_with_interrupts_blocked(monkeypatch):
    """Starting the tracker of resources, with the first process, ends by unblocking them: an
    interrupt then met the imports of the process, and its traceback was printed."""
    running, masks = [], []

    def ensure_running() -> None:
        if not running:
            running.append(True)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    class Context:
        def __init__(self, *args, **options) -> None:
            """A context, a pipe and a process at once."""

        def Pipe(self):
            return Context(), Context()

        def close(self) -> None:
            """As pipes do."""

        def start(self) -> None:
            ensure_running()
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    Context.Process = Context  # type: ignore[misc,assignment]
    monkeypatch.setattr(pool.resource_tracker, "ensure_running", ensure_running)
    monkeypatch.setattr(pool.multiprocessing, "get_context", lambda method: Context())
    pool._start(None, 1)  # type: ignore[arg-type]
    assert signal.SIGINT in masks[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_warnings_of_workers_are_passed_on_to_the_parent():
    class Process:
        sentinel = multiprocessing.Pipe()[0]  # never ready: the process lives

    here, there = multiprocessing.Pipe()
    worker = pool._Worker(Process(), here)
    busy = {worker: "cell"}
    there.send(pool._Warned("labels skip 0"))
    with pytest.warns(UserWarning, match="labels skip 0"):
        assert pool._listen(busy, lambda *news: pytest.fail(str(news)), 5.0) == []
    assert busy == {worker: "cell"}
