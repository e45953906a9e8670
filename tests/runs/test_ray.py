"""Cells and shards on a local Ray cluster with two workers, of which one is killed at work."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from polymode.cli.app import main
from polymode.distributed import ray as cluster
from polymode.distributed.ray import Cluster, ClusterProblem, Started
from polymode.report import page as reports
from polymode.runs.run_folder import RunFolder, without_times
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


def dying(flags: Path, times: int) -> type:
    """Return an actor that ends its process so many times when it is asked for what it heard."""

    class Dying(cluster._News):  # of a function, so that it is sent to the worker with its code
        def take(self) -> list:
            deaths = len(list(flags.iterdir()))
            if deaths < times and self.said:
                (flags / str(deaths)).touch()
                os._exit(1)
            return super().take()

    return Dying


@pytest.mark.cpu_seconds(60)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_an_actor_that_dies_is_started_again_and_one_that_dies_for_good_ends_the_run_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    """Results do not pass the actor. A run that it ended resumes to what one process gives."""
    ray()
    monkeypatch.setattr(reports, "report", lambda board, path, **_: path.touch())
    for name in ("once", "always"):
        (tmp_path / f"{name}-deaths").mkdir()
    on_ray = ["--backend", "ray", "--jobs", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_News", dying(tmp_path / "once-deaths", 1))
        assert main([*WORDS, str(tmp_path / "once"), *on_ray]) == 0
        assert len(list((tmp_path / "once-deaths").iterdir())) == 1
        capsys.readouterr()
        patch.setattr(cluster, "_News", dying(tmp_path / "always-deaths", 1000))
        assert main([*WORDS, str(tmp_path / "always"), *on_ray]) == 1
    said = capsys.readouterr().err.splitlines()  # Ray itself may have a word, too
    (line,) = [line for line in said if line.startswith("polymode: ")]
    assert line.startswith("polymode: Ray failed (ActorDiedError: ")
    assert line.endswith("what is finished is kept, the same command goes on from there")
    assert main([*WORDS, str(tmp_path / "always"), *on_ray]) == 0
    assert main([*WORDS, str(tmp_path / "here")]) == 0
    here, *others = (
        [(each.method, each.seed, [row for row in each.rows if row.unit != "s"]) for each in found]
        for found in map(ordered, (tmp_path / name for name in ("here", "once", "always")))
    )
    assert len(here) == 6 and others == [here, here]
    assert len(without_times(tmp_path / "always" / "results.jsonl")) == 6


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


def test_a_node_that_does_not_start_in_time_is_said_in_a_line(monkeypatch) -> None:
    """Ray raises a plain `Exception` then, where the machine is too busy."""
    late = SimpleNamespace(init=fail, shutdown=lambda: None)
    monkeypatch.setattr(cluster, "_library", lambda: late)
    with pytest.raises(ClusterProblem, match="^Ray cannot be started: The current node timed out$"):
        Cluster().run(print, [1], print)


def fail(**_: object) -> None:
    raise Exception("The current node timed out. This could happen because ...")


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
