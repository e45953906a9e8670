"""Settings of every test, and small results with kept predictions for figures and reports.

No cache of the user's is read or written.
"""

from __future__ import annotations

import gc
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterator
from functools import cache
from typing import Any

# Read when torch is loaded: a thread that waits for another sleeps, and burns no core meanwhile.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Without bytecode each worker and each of the many child processes would compile polymode anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and tables would be wrapped to it

import pytest  # noqa: E402
import torch  # noqa: E402

import polymode as pm  # noqa: E402
from polymode.methods import METHODS  # noqa: E402
from polymode.metrics import compare, evaluate  # noqa: E402
from polymode.stack.fast import measure  # noqa: E402

THREADS = torch.get_num_threads()
BUDGET = 3.0  # seconds of CPU time that a test may take, unless marked `cpu_seconds`
BUSY = 2.0  # on a busy machine, whose caches are shared, the same work takes up to twice as long
USUAL = 0.08  # seconds that `slowness` works on the machine for which budgets were set
LIBRARY, IMPORTS = 100, 5.0  # so many new modules: a library, which the first user pays for


# Groups of tests that take longest begin first, so that none of them ends a run by itself.
LONGEST = [
    "tests/distributed/test_ranks", "tests/cli/test_jobs", "tests/cli/test_run", "tests/test_docs",
    "tests/studies/test_tomography", "tests/runs/test_kill", "tests/cli/test_experiments",
    "tests/cli/test_progress", "tests/metrics/test_reference", "laplace", "laplace_map",
    "tests/conformance/test_fresh_process", "tests/methods/test_fit_resume", "hmc", "mile",
    "tests/core/test_memory", "tests/cli/test_app", "tests/cli/test_talk", "tests/report/test_page",
    "tests/methods/laplace/test_evidence",
]  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Let each process of pytest-xdist take whole groups, and so make fixtures of a file once.

    Its own groups, by marks, do nothing with pytest 9.2, to which it reports them by renaming
    tests: an attribute that is no longer read.
    """
    if config.getoption("dist") not in ("load", "loadgroup"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # not by number of tests, but as they are collected
    return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Collect the longest groups first in the processes of pytest-xdist."""
    if hasattr(config, "workerinput"):
        rank = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: rank.get(group_of(item.nodeid), len(rank)))


def pytest_collection_finish() -> None:
    """Let no collection of garbage walk through ten thousand tests that stay to the end."""
    gc.collect()
    gc.freeze()


def group_of(nodeid: str) -> str:
    """Return what stays together: a file; in the conformance suite a method, but for the file whose
    methods share a process."""
    path, _, test = nodeid.partition("::")
    case = re.search(r"\[(\w+)", test)
    if "/conformance/" in path and "fresh_process" not in path and case:
        if case[1] in METHODS.names():
            return case[1]
    return path.removesuffix(".py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that takes more CPU time than it may; time of a busy machine does not count."""
    before, modules = cpu_seconds(), len(sys.modules)
    result = yield
    taken, mark = cpu_seconds() - before, item.get_closest_marker("cpu_seconds")
    budget = float(mark.args[0]) if mark else BUDGET
    if len(sys.modules) - modules > LIBRARY:
        budget += IMPORTS
    allowed = BUSY * slowness()
    if taken > allowed * budget:  # perhaps the machine has become busier since
        allowed = max(allowed, BUSY * slowness(again=True))
    if taken > allowed * budget:
        pytest.fail(
            f"took {taken:.1f} s of CPU time, more than {allowed:.2g} × {budget:g} s: make it"
            " smaller, or mark what cannot be smaller with cpu_seconds(...)",
            pytrace=False,
        )
    return result


def slowness(again: bool = False) -> float:
    """Return how many times longer than usual this machine works, at least 1; as measured before,
    unless it is to be measured `again`."""
    if again:
        _measured_slowness.cache_clear()
    return _measured_slowness()


@cache
def _measured_slowness() -> float:
    shortest = min(_work() for _ in range(3))
    return max(shortest / USUAL, 1.0)


def _work() -> float:
    start, x = time.process_time(), torch.ones(64, 64)
    sum(number for number in range(10**6))
    for _ in range(3000):
        x = torch.tanh(x @ x)
    return time.process_time() - start


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYMODE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _short_trials() -> Iterator[None]:
    """Where executions are measured, not for 1.5 s a job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "_BUDGET", 0.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_thread_in_fixtures() -> None:
    """Fixtures of modules are made before `_threads` of their first test: by as many threads as it
    leaves, so that what they fit is to the bit what a test fits anew."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread within operations: tests are small, and two wait for each other on busy machines.

    Tests of executions, some of which run members in parallel threads, get two; those that compare
    bits with another process (marked `threads_of_torch`) what torch chooses there.
    """
    several = "test_stack" in request.node.nodeid or "executions" in request.node.name
    number = 2 if several or "threads" in request.node.name else 1
    if request.node.get_closest_marker("threads_of_torch"):
        number = THREADS
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _interrupts_arrive() -> None:
    """A shell that starts jobs in the background lets them ignore Ctrl-C, and so their children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def digits_results():
    task = pm.task("digits")
    options = {"epochs": 2, "progress": "silent", "net": pm.nets.mlp, "task": task}
    return [
        evaluate(pm.fit(name, seed=seed, **options, **more), task)
        for seed in (0, 1)
        for name, more in (("map", {}), ("deep_ensemble", {"num_modes": 2}))
    ]


@pytest.fixture(scope="session")
def digits_board(digits_results):
    return compare(digits_results)


@pytest.fixture(scope="session")
def gap_results():
    task = pm.task("gap_regression")
    options = {"epochs": 5, "progress": "silent", "net": pm.nets.mlp, "task": task}
    return evaluate(pm.fit("deep_ensemble", num_modes=3, **options), task)
