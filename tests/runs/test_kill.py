"""kill -9 at any time, as often as you like: the run that resumes ends where a whole one ends."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from polymode.runs.run_folder import RunFolder, without_times
from polymode.zoo import Zoo

KILLS = 10
CELLS = 12

SERVER = """
import json, os, signal, sys, time

from polymode.report import page
from polymode.runs import pool, running  # all that a run needs, imported once
import polymode.metrics.evaluation, polymode.tasks.toy, torch._dynamo
from polymode.cli.app import main

page.report = lambda board, path, **_: path.touch()
for line in sys.stdin:
    words, seconds = json.loads(line)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(words))
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    answer = [os.waitstatus_to_exitcode(status), time.monotonic() - started]
    print(json.dumps(answer), flush=True)
"""


class Server:
    """Runs `polymode` in fresh processes, killed after some seconds if asked to.

    They are forked from one process that has imported torch and used nothing of it, so that ten
    runs do not cost ten imports.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(60)

    def __call__(self, words: list[str], seconds: float | None = None) -> tuple[int, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([words, seconds]) + "\n")
        self.process.stdin.flush()
        code, taken = json.loads(self.process.stdout.readline())
        return code, taken


@pytest.mark.cpu_seconds(60)
def test_ten_kills_at_random_times_leave_the_results_of_an_uninterrupted_run(tmp_path):
    """Kills are drawn over the first third of a run: start, training, scoring, writing.

    Should the machine be so fast that a run ends before its ten kills, another one is begun.
    """
    draw = random.Random(0)
    words = "run --task two_moons --method map --set epochs=20 --set net.hidden=[8]"
    words += f" --set task.num_test=20 -q --seeds 0-{CELLS - 1} --out"
    whole, kills, runs = tmp_path / "whole", 0, [tmp_path / "killed0"]
    with Server() as polymode:
        code, seconds = polymode([*words.split(), str(whole)])
        assert code == 0
        while kills < KILLS:
            wait = draw.uniform(0.0, 0.35 * seconds)
            code, _ = polymode([*words.split(), str(runs[-1])], wait)
            assert code in (-9, 0)
            kills += code == -9
            there = RunFolder(runs[-1])  # at any time, what is there can be read
            assert all(each.method == "map" for each in there.results()) and there.damage() == []
            if code == 0:
                runs.append(tmp_path / f"killed{len(runs)}")
        assert polymode([*words.split(), str(runs[-1])])[0] == 0
    for killed in runs:
        assert without_times(killed / "results.jsonl") == without_times(whole / "results.jsonl")
        for kept in (whole / "predictions").iterdir():
            assert kept.read_bytes() == (killed / "predictions" / kept.name).read_bytes()
        assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}


@pytest.mark.cpu_seconds(30)
def test_a_zoo_whose_training_is_killed_again_and_again_ends_as_a_whole_one(tmp_path):
    """Kills are drawn over the first half of a training of six shards."""
    draw = random.Random(1)
    words = "zoo train two_moons-mlp --networks 12 --per-shard 2 --set epochs=4 --out".split()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with Server() as polymode:
        code, seconds = polymode([*words, str(whole)])
        assert code == 0
        for _ in range(5):
            polymode([*words, str(killed)], draw.uniform(0.0, 0.5 * seconds))
            if (killed / "zoo.json").exists():
                assert all("not in the index" in each for each in Zoo(killed).verify())
        assert polymode([*words, str(killed)])[0] == 0
    assert [s.digest for s in Zoo(killed).shards] == [s.digest for s in Zoo(whole).shards]
    assert Zoo(killed).verify() == [] and len(Zoo(killed)) == 12
