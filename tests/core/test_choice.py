"""The file of choices is a cache: whatever it holds costs a measurement at most."""

from __future__ import annotations

import json

import pytest

from polymode.core import choice
from polymode.core.choice import Plan

GOOD = ["loop", False, None, 1, False]


@pytest.mark.parametrize("content", ["null", "[]", "3", "[" * 100_000, "{", "\x00"])
def test_a_file_that_holds_no_choices_is_none(tmp_path, monkeypatch, content) -> None:
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    (tmp_path / "executions.json").write_text(content)
    assert choice._read() == {}
    assert choice._agree("job", Plan("loop")) == Plan("loop")
    assert choice._read() == {"job": Plan("loop")}


@pytest.mark.parametrize(
    "plan",
    [
        None,
        "batch",
        [],
        ["loop"],
        ["magic", *GOOD[1:]],
        [[], *GOOD[1:]],
        ["loop", 1, None, 1, False],
        ["chunked", False, 0, None, False],
        ["loop", False, None, "2", False],
        ["loop", False, None, 1, None],
    ],
)
def test_an_entry_that_is_no_plan_is_left_out(tmp_path, monkeypatch, plan) -> None:
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    (tmp_path / "executions.json").write_text(json.dumps({"good": GOOD, "odd": plan}))
    assert choice._read() == {"good": Plan("loop", num_threads=1)}
