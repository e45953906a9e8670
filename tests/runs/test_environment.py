"""What is said of where a run ran."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from polymode.runs.environment import commit_of, environment


def test_versions_and_machine_are_said() -> None:
    facts = environment()
    assert {"polymode", "python", "torch"} <= set(facts["versions"])
    assert facts["processors"] >= 1


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_a_checkout_and_whether_it_was_changed(tmp_path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    assert commit_of(tmp_path) is None
    git("init")
    source = tmp_path / "src" / "a.py"
    source.parent.mkdir()
    source.write_text("")
    git("add", "-A")
    git("commit", "-m", "first")
    assert re.fullmatch("[0-9a-f]{12}", str(commit_of(tmp_path)))
    source.write_text("1")
    assert re.fullmatch("[0-9a-f]{12} with changes", str(commit_of(tmp_path)))
