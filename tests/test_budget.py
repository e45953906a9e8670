"""The suite's own rules: what a test may take, and which tests share a process."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace

import pytest

import polymode as pm


@pytest.fixture
def rules(request):
    """The conftest that all tests share."""
    plugins = request.config.pluginmanager.get_plugins()
    return next(plugin for plugin in plugins if hasattr(plugin, "BUDGET"))


def run(rules, seconds: float, *marks: float, modules: int = 0, slowness: float = 1.0) -> object:
    """Run the hook around a test that takes so long, and imports so much."""
    clock = iter([10.0, 10.0 + seconds])
    mark = pytest.mark.cpu_seconds(*marks).mark if marks else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "cpu_seconds", lambda: next(clock))
        patch.setattr(rules, "slowness", lambda again=False: slowness)
        running = rules.pytest_runtest_call(SimpleNamespace(get_closest_marker=lambda name: mark))
        next(running)
        for number in range(modules):
            patch.setitem(sys.modules, f"made_up_{number}", types.ModuleType("made_up"))
        try:
            running.send("result")
        except StopIteration as end:
            return end.value
    raise AssertionError("the hook yields once")


def test_a_test_fails_that_takes_more_than_it_may(rules) -> None:
    assert run(rules, 5.9) == "result"
    with pytest.raises(pytest.fail.Exception, match=r"took 6\.1 s of CPU time, more than 2 × 3 s"):
        run(rules, 6.1)
    assert run(rules, 19.0, 10) == "result"
    with pytest.raises(pytest.fail.Exception, match="more than 2 × 10 s"):
        run(rules, 21.0, 10)


def test_a_slower_machine_allows_more(rules) -> None:
    assert run(rules, 11.9, slowness=2.0) == "result"
    with pytest.raises(pytest.fail.Exception, match="more than 4 × 3 s"):
        run(rules, 12.1, slowness=2.0)
    assert rules.slowness() >= 1


def test_the_first_user_of_a_library_may_import_it(rules) -> None:
    assert run(rules, 15.0, modules=101) == "result"
    with pytest.raises(pytest.fail.Exception, match="more than 2 × 8 s"):
        run(rules, 17.0, modules=101)


def test_time_of_processes_that_ended_counts(rules) -> None:
    """Starting Python takes 5 ms at least; this process waits meanwhile."""
    before, own = rules.cpu_seconds(), time.process_time()
    subprocess.run([sys.executable, "-S", "-c", "sum(range(10**6))"], check=True)
    taken, own = rules.cpu_seconds() - before, time.process_time() - own
    assert taken > own + 0.005


def test_files_share_a_process_and_conformance_is_spread_by_method(rules) -> None:
    assert rules.group_of("tests/stack/test_stack.py::test_a[1-swag]") == "tests/stack/test_stack"
    suite = "tests/conformance"
    assert rules.group_of(f"{suite}/test_networks.py::test_b[swag-batch norm]") == "swag"
    assert rules.group_of(f"{suite}/test_golden.py::test_c[pairs]") == f"{suite}/test_golden"
    process = f"{suite}/test_fresh_process"
    assert rules.group_of(f"{process}.py::test_d[swag]") == process


def test_the_longest_groups_exist(rules) -> None:
    for group in rules.LONGEST:
        path = Path(rules.__file__).parents[1] / f"{group}.py"
        assert path.exists() or group in pm.methods.METHODS.names(), group
