"""What a cluster tells of its tasks reaches the caller once, in order, whatever comes late."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from polymode.distributed.ray import Done, Lost, Started
from polymode.runs.cell import Failed
from polymode.runs.fleet import run_on_cluster


class Cluster:
    """One that tells what it is told to tell."""

    threads = 1

    def __init__(self, *news: tuple[int, Any]) -> None:
        self.news = news

    def run(self, work, jobs, tell) -> None:
        self.jobs = jobs
        for number, message in self.news:
            tell(number, message)


def told(*news: tuple[int, Any]) -> list[tuple[str, Any]]:
    cells = [SimpleNamespace(key=key) for key in "ab"]
    heard: list[tuple[str, Any]] = []
    run_on_cluster(
        Cluster(*news), SimpleNamespace(), cells, Path,  # type: ignore[arg-type]
        lambda cell, message: heard.append((cell.key, message)),
    )  # fmt: skip
    return heard


def test_late_messages_of_a_cell_that_has_ended_are_dropped() -> None:
    heard = told(
        (0, Started(1)), (0, "step"), (0, Done("result")), (0, "late"), (0, Started(2)),
        (0, Lost("its worker died")), (1, "step"), (1, Done("other")),
    )  # fmt: skip
    assert heard == [
        ("a", None), ("a", "step"), ("a", "result"), ("b", None), ("b", "step"), ("b", "other"),
    ]  # fmt: skip


def test_what_is_lost_has_failed_and_what_was_cancelled_is_missing() -> None:
    assert told((0, Lost("no memory")), (1, Started(1)), (1, Lost("cancelled"))) == [
        ("a", None), ("a", Failed("no memory", "")), ("b", None),
    ]  # fmt: skip
