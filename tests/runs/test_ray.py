"""Cells and shards on a local Ray cluster with two workers, of which one is killed at work."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from polymode.cli.app import main
from polymode.core.cluster import Cluster, ClusterProblem, Started
from polymode.report import run as reports
from polymode.runs.folder import RunFolder, without_times
from polymode.zoo import Zoo

WORDS = [
    "run", "--task", "two_moons", "--method", "map", "--method", "swag", "--seeds", "0-2", "--set",
    "epochs=3", "--set", "net.hidden=[8]", "--set", "task.num_test=50", "-q", "--out",
]  # fmt: skip
ZOO = ["zoo", "train", "digits-lenet", "--networks", "4", "--per-shard", "2", "--set", "epochs=1"]


def ray() -> None:
    pytest.importorskip("ray", reason="Ray is not installed; `make test-ray` does")


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first worker that begins a task is killed; its process is noted here."""
    found: list[int] = []
    run = Cluster.run

    def killing(self, work, jobs, tell):
        def hear(number, news):
            if isinstance(news, Started) and not found:
                found.append(news.process)
                os.kill(news.process, signal.SIGKILL)
            tell(number, news)

        run(self, work, jobs, hear)

    monkeypatch.setattr(Cluster, "run", killing)
    return found


@pytest.mark.cpu_seconds(60)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_killed_worker_loses_nothing_and_doubles_nothing(
    killed: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray()
    monkeypatch.setattr(reports, "report", lambda board, path, **_: path.touch())
    assert main([*WORDS, str(tmp_path / "ray"), "--backend", "ray", "--jobs", "2"]) == 0
    assert len(killed) == 1
    assert main([*WORDS, str(tmp_path / "here")]) == 0
    one, two = (
        sorted(without_times(tmp_path / name / "results.jsonl")) for name in ("here", "ray")
    )
    assert len(two) == 6
    assert [line.split(b'"cost"')[0] for line in one] == [line.split(b'"cost"')[0] for line in two]
    for mine, theirs in zip(*(ordered(tmp_path / name) for name in ("here", "ray")), strict=True):
        rows = [row for row in mine.rows if row.unit != "s"]
        assert rows == [row for row in theirs.rows if row.unit != "s"]


def ordered(path: Path) -> list:
    return sorted(RunFolder(path).results(), key=lambda found: (found.method, found.seed))


@pytest.mark.cpu_seconds(60)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_shards_of_a_zoo_survive_a_killed_worker(killed: list[int], tmp_path: Path) -> None:
    ray()
    assert main([*ZOO, "--out", str(tmp_path / "ray"), "--backend", "ray"]) == 0
    assert len(killed) == 1
    assert main([*ZOO, "--out", str(tmp_path / "here")]) == 0
    here, there = Zoo(tmp_path / "here"), Zoo(tmp_path / "ray")
    assert [shard.digest for shard in there.shards] == [shard.digest for shard in here.shards]
    assert there.verify() == []


def test_an_address_without_a_cluster_is_refused_at_once(tmp_path: Path, capsys) -> None:
    ray()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(ClusterProblem, match=f"no Ray cluster answers at {address}"):
        Cluster(address).run(print, [1], print)
    assert time.monotonic() - started < 10
    assert main([*WORDS, str(tmp_path / "run"), "--backend", "ray", "--address", "nowhere"]) == 1
    assert "`address` must be HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["--backend", "spark"], "--backend must be processes or ray, got 'spark'"),
        (["--address", "here:1"], "--address is that of a Ray cluster: add --backend ray"),
    ],
)
def test_options_are_checked_without_ray(words: list[str], message: str, tmp_path, capsys) -> None:
    assert main([*WORDS, str(tmp_path / "run"), *words]) == 2
    assert message in capsys.readouterr().err
