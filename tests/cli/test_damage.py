"""Folders of runs that were changed: named, run again or left out, and never a traceback."""

from __future__ import annotations

import json
import shutil

import pytest

from polymode.runs.run_folder import RunFolder, without_times


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run of four cells, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def change_a_digit(path):
    """Change the first value of the first cell, as a slip in an editor would."""
    lines = (path / "results.jsonl").read_text().splitlines(keepends=True)
    value = json.loads(lines[0])["rows"][0]["value"]
    assert lines[0].count(repr(value)) >= 1
    lines[0] = lines[0].replace(repr(value), repr(value / 2))
    (path / "results.jsonl").write_text("".join(lines))


def cut_predictions(path):
    key = json.loads((path / "results.jsonl").read_text().splitlines()[0])["key"]
    file = path / "predictions" / f"{key}.npz"
    file.write_bytes(file.read_bytes()[:1000])


DAMAGE = [change_a_digit, cut_predictions]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cell_is_run_again(copied, command, no_report, damage, finished):
    damage(copied)
    assert command.run(copied, "-q") == 0
    assert "was changed after it was written" in command.err
    assert "its cell counts as not done" in command.err
    lines = without_times(copied / "results.jsonl")
    assert len(lines) == 5
    assert lines[4] == without_times(finished / "results.jsonl")[0]
    assert command.run(copied, "-q") == 0 and command.err == ""
    assert len(without_times(copied / "results.jsonl")) == 5


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("verb", ["report", "compare", "table"])
def test_a_damaged_cell_is_left_out_with_a_warning(copied, command, no_report, damage, verb):
    damage(copied)
    assert command(verb, str(copied)) == 0
    assert "was changed after it was written" in command.err
    assert "its cell is left out; `polymode run` makes it again" in command.err
    assert len(RunFolder(copied).results()) == 3


@pytest.mark.parametrize("verb", ["report", "compare", "table", "cite"])
def test_a_whole_folder_is_shown_without_a_word(copied, command, no_report, verb):
    assert command(verb, str(copied)) == 0
    assert command.err == ""
