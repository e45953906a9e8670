"""Names that others gave may be shown anywhere: a terminal finds no commands in them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import polymode as pm
from polymode.core.text import plain
from polymode.runs.run_folder import signed

EVIL = "e\x1b[2Jv\x1b]0;title\x07i\x9b31ml\u202e\udc80"
SAFE = "evil\ufffd"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


@pytest.fixture
def evil(finished, tmp_path) -> Path:
    """A run whose lines, whole with their digests, have commands in their names."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    lines = []
    for text in (folder / "results.jsonl").read_text().splitlines():
        line = json.loads(text)
        del line["digest"]
        line |= {"net": EVIL, "task": EVIL}
        lines.append(json.dumps(signed(line)) + "\n")
    (folder / "results.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.parametrize(
    "words", [["table"], ["table", "--format", "csv"], ["compare"], ["compare", "--json"]]
)
def test_tables_of_foreign_results_hold_no_commands(evil, command, words) -> None:
    assert command(words[0], str(evil), *words[1:]) == 0
    assert not UNSAFE.search(command.out + command.err)
    if "--json" in words:
        assert command.json()["task"] == EVIL  # data stay what they are


def test_complaints_about_foreign_names_hold_no_commands(command) -> None:
    assert command("table", EVIL) != 0
    assert SAFE in command.err and not UNSAFE.search(command.err)
    assert command("table", EVIL, "--json") != 0
    assert not UNSAFE.search(command.out + command.err)


@pytest.mark.cpu_seconds(8)
def test_reports_of_foreign_results_hold_no_commands(evil, command) -> None:
    assert command("report", str(evil)) == 0, command.err
    page = (evil / "report.html").read_text()
    assert SAFE in page and not UNSAFE.search(page)


def test_names_of_classes_hold_no_commands() -> None:
    train = (torch.zeros(2, 1), torch.tensor([0, 1]))
    task = pm.Task(train=train, likelihood="categorical", class_names=[EVIL, "b"], name=EVIL)
    assert task.class_names == (SAFE, "b") and task.name == SAFE


def test_what_people_write_stays() -> None:
    text = "naïve – 10 × 10\t±0.5 ≈ 日本 👩‍💻\n"
    assert plain(text) == text
