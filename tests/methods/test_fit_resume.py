"""`fit` killed or interrupted: the same call ends in equal bits, another call is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

import polymode as pm
from polymode.core.safe_files import FileProblem
from polymode.likelihoods.kinds import Gaussian
from polymode.training.events import Event, Reporter

from .small_fits import LONG, QUICK, X, Y, net, same, task

SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
from small_fits import LONG, net, task
import polymode as pm
pm.fit("deep_ensemble", net=net, task=task(), checkpoint={folder!r}, checkpoint_seconds=0,
       progress="silent", execution="loop", **LONG)
"""


def start(tmp_path, folder: str) -> subprocess.Popen:
    code = textwrap.dedent(SCRIPT).format(
        tests=os.path.dirname(__file__), folder=str(tmp_path / folder)
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


@pytest.mark.threads_of_torch
@pytest.mark.cpu_seconds(20)  # two processes that import torch
def test_killed_and_restarted_gives_equal_bits(tmp_path) -> None:
    """SIGKILL in the middle of training, at two different moments, then run to the end here."""
    options = {"net": net, "task": task(), "progress": "silent", "execution": "loop"} | LONG
    whole = pm.fit("deep_ensemble", **options)
    file = tmp_path / "run" / "training.safetensors"
    kills = 0
    for wait in (0.05, 0.15):
        process = start(tmp_path, "run")
        seen = file.stat().st_mtime_ns if file.exists() else 0
        while process.poll() is None and not (file.exists() and file.stat().st_mtime_ns > seen):
            time.sleep(0.01)
        time.sleep(wait)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills >= 1
    events: list[Event] = []
    resumed = pm.fit(
        "deep_ensemble", checkpoint=tmp_path / "run", on_event=events.append, **options
    )
    assert events[0].kind == "resume" and events[0].step > 0
    assert same(resumed, whole)


def test_interrupt_leaves_a_checkpoint_to_resume_from(tmp_path) -> None:
    """Ctrl-C (a real signal) finishes the step and keeps it; the same call ends in equal bits."""
    options = {"net": net, "task": task(), "execution": "loop", "progress": "silent"} | LONG
    whole = pm.fit("deep_ensemble", **options)

    def interrupt(event: Event) -> None:
        if event.kind == "start":
            signal.setitimer(signal.ITIMER_REAL, 0.08)

    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt, match="the same call resumes from"):
            pm.fit("deep_ensemble", checkpoint=tmp_path, on_event=interrupt, **options)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    events: list[Event] = []
    resumed = pm.fit("deep_ensemble", checkpoint=tmp_path, on_event=events.append, **options)
    assert events[0].kind == "resume"
    assert events[0].step > 0
    assert same(resumed, whole)
    again = pm.fit("deep_ensemble", checkpoint=tmp_path, **options)
    assert same(again, whole)


def test_a_resumed_fit_runs_as_it_began_and_says_where_it_cannot(tmp_path, monkeypatch) -> None:
    """The rule gives the same execution again; threads are the user's."""
    options = {"net": net, "task": task(), "checkpoint": tmp_path, "num_modes": 2} | QUICK
    whole = pm.fit("deep_ensemble", **options)
    torch.set_num_threads(2)
    assert same(pm.fit("deep_ensemble", **options), whole)  # nothing is left to do
    monkeypatch.setattr(Reporter, "due", lambda self: True)
    short = options | {"checkpoint": tmp_path / "short"}
    with pytest.raises(KeyboardInterrupt):
        pm.fit("deep_ensemble", on_event=_interrupt, **short)
    torch.set_num_threads(1)
    with pytest.warns(UserWarning, match=r"with 2 of torch's.* 1 now.*set_num_threads\(2\)"):
        pm.fit("deep_ensemble", **short)


def _interrupt(event: Event) -> None:
    if event.kind == "progress":
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"lr": 0.5}, "options.lr was"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"task": task(train=(X + 1, Y))}, "data was"),
        ({"net": pm.nets.mlp}, "network.* was"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, word) -> None:
    options = {"net": net, "task": task(), "checkpoint": tmp_path} | QUICK
    pm.fit("map", **options)
    with pytest.raises(FileProblem, match=word):
        pm.fit("map", **(options | change))


def test_a_checkpoint_of_another_likelihood_is_refused(tmp_path) -> None:
    """The data are the same, so only the likelihood itself can tell."""
    for noise in (0.1, 0.2):
        lines = pm.Task(train=(X[:, :1], X[:, 1:2]), likelihood=Gaussian(noise=noise))
        options = {"net": lambda: nn.Linear(1, 1), "task": lines, "checkpoint": tmp_path} | QUICK
        if noise == 0.1:
            pm.fit("map", **options)
        else:
            with pytest.raises(FileProblem, match=r"likelihood\.noise was 0\.1\d*, is 0\.2"):
                pm.fit("map", **options)


def test_a_second_fit_in_the_folder_of_one_that_runs_is_refused(tmp_path) -> None:
    """Before the first checkpoint too, when there is nothing yet that tells them apart."""
    options = {"net": net, "task": task(), "checkpoint": tmp_path} | QUICK
    refused = []

    def second(event) -> None:
        if event.kind == "start":
            with pytest.raises(FileProblem, match="is in use: another training") as caught:
                pm.fit("map", **options, seed=1)
            refused.append(caught)

    first = pm.fit("map", **options, seed=0, on_event=second)
    assert len(refused) == 1
    again = pm.fit("map", **options, seed=0)
    for one, other in zip(first.members, again.members, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert a.equal(b)


def test_odd_checkpoint_folders_are_refused(tmp_path) -> None:
    """A file in the folder's place, and pipes in the place of its files, which would wait."""
    (tmp_path / "file").write_text("")
    for name in ("training.lock", "training.safetensors"):
        (tmp_path / name[9:]).mkdir()
        os.mkfifo(tmp_path / name[9:] / name)
    for folder, word in (("file", "a file is in its"), ("lock", "plain"), ("safetensors", "pipe")):
        options = {"net": net, "task": task(), "checkpoint": tmp_path / folder} | QUICK
        with pytest.raises(FileProblem, match=word):
            pm.fit("map", **options)
