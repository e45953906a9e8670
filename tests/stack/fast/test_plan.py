"""The file of choices is a cache: whatever it holds costs a measurement at most."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from polymode.stack.fast import plan as choice
from polymode.stack.fast.plan import Plan
from polymode.stack.stack import Stack
from polymode.tracing.code import _plain

GOOD = ["loop", False, None, 1, False]


@pytest.mark.parametrize("content", ["null", "[]", "3", "[" * 100_000, "{", "\x00"])
def test_a_file_that_holds_no_choices_is_none(tmp_path, monkeypatch, content) -> None:
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    (tmp_path / "executions.json").write_text(content)
    assert choice._read(choice._file()) == {}
    assert choice._agree(choice._file(), "job", Plan("loop")) == Plan("loop")
    assert choice._read(choice._file()) == {"job": Plan("loop")}


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
        ["loop", False, None, 10**6, False],
        ["chunked", False, 10**30, None, False],
        ["loop", False, None, 1, None],
    ],
)
def test_an_entry_that_is_no_plan_is_left_out(tmp_path, monkeypatch, plan) -> None:
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path))
    (tmp_path / "executions.json").write_text(json.dumps({"good": GOOD, "odd": plan}))
    assert choice._read(choice._file()) == {"good": Plan("loop", num_threads=1)}


@pytest.fixture
def without_cache(tmp_path, monkeypatch):
    """A cache folder that cannot be written, and a clock that favours another plan each time."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POLYMODE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(choice, "_remembered", {})
    plans = iter([Plan("loop"), Plan("batched")])
    monkeypatch.setattr(choice, "_measure", lambda *args: next(plans))


def chosen() -> Plan:
    stack, x = Stack(lambda: nn.Linear(2, 1), 2), torch.randn(3, 2)
    with torch.no_grad():
        stack(x)
    return stack.plans["outputs"]


def test_a_cache_that_cannot_be_written_is_said_to_cost_the_same_bits(without_cache) -> None:
    with pytest.warns(UserWarning, match="other last digits. Set POLYMODE_CACHE"):
        assert chosen() == Plan("loop")
    assert chosen() == Plan("loop")


def test_a_run_keeps_its_choices_without_a_cache_and_on_another_machine(
    without_cache, tmp_path, monkeypatch
) -> None:
    """Measured anew, the plan would be another; the run's file is read in another process too."""
    with choice.remembered_in(tmp_path / "executions.json"):
        assert chosen() == Plan("loop")
        monkeypatch.setattr(choice, "_remembered", {})
        monkeypatch.setattr(choice.platform, "node", lambda: "elsewhere")
        assert chosen() == Plan("loop")
    with pytest.warns(UserWarning, match="cannot be written"):
        assert chosen() == Plan("batched")


def test_a_kept_plan_yields_where_memory_has_become_scarce(
    without_cache, tmp_path, monkeypatch
) -> None:
    fit = [8]
    monkeypatch.setattr(choice, "members_that_fit", lambda *args: fit[0])
    found = []
    with choice.remembered_in(tmp_path / "executions.json"):
        for fit[0] in (6, 3, 2):
            stack = Stack(lambda: nn.Linear(2, 1), 8, execution="chunked")
            stack(torch.randn(3, 2))
            found.append(stack.plans["graph"].chunk_size)
    assert found == [6, 6, 2]


EDITED = """
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def forward(self, x):
        return self.layer(x{})
"""


@pytest.mark.parametrize(("change", "same"), [("", True), (" * 2", False)])
def test_an_edited_network_is_another_job(change, same) -> None:
    """Of the same name, layers and shapes: what ran batched before may not now."""
    jobs = []
    for edit in ("", change):
        names = {"nn": nn, "__name__": "own"}
        exec(EDITED.format(edit), names)
        stack = Stack(names["Own"], 2)
        jobs.append(choice._job(stack, "outputs", torch.randn(3, 2), False, 2))
    assert (jobs[0] == jobs[1]) == same


def test_constants_of_code_are_the_same_in_every_process() -> None:
    """The order in which a set is shown differs from process to process."""
    code = compile("lambda x: x in {'b', 'c', 'a'}", "", "eval")
    (inner,) = (each for each in code.co_consts if hasattr(each, "co_code"))
    assert ["'a'", "'b'", "'c'"] in _plain(inner)[2]
    assert " at 0x" not in repr(_plain(code))
