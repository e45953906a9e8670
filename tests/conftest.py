"""Settings of every test, and small results with kept predictions for figures and reports.

No cache of the user's is read or written.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Generator, Iterator
from functools import cache

# Read when torch is loaded: a thread that waits for another sleeps, and burns no core meanwhile.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Without bytecode each worker and each of the many child processes would compile polymode anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and tables would be wrapped to it

import pytest  # noqa: E402
import torch  # noqa: E402

import polymode as pm  # noqa: E402
from polymode.metrics import compare, evaluate  # noqa: E402
from polymode.stack.fast import plan as choice  # noqa: E402

THREADS = torch.get_num_threads()
BUDGET = 3.0  # seconds of CPU time that a test may take, unless marked `cpu_seconds`
BUSY = 2.0  # on a busy machine, whose caches are shared, the same work takes up to twice as long
USUAL = 0.08  # seconds that `slowness` works on the machine for which budgets were set
LIBRARY, IMPORTS = 100, 5.0  # so many new modules: a library, which the first user pays for


# Groups of tests that take longest begin first, so that none of them ends a run by itself.
LONGEST = [
    "distributed/test_ranks", "cli/test_jobs", "cli/test_run", "tests/test_docs",
    "studies/test_tomography", "runs/test_kill", "cli/test_experiments", "cli/test_progress",
    "examinations/test_reference", "methods/test_fit_resume", "core/test_memory", "cli/test_app",
    "cli/test_talk", "report/test_page", "laplace/test_evidence", "laplace", "laplace_map", "hmc",
    "mile",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist keep groups together, without which each process would set up all that the
    tests of a file share, and take them in the order of collection."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadgroup"
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`, the tests of a file share a process, and so its fixtures."""
    if hasattr(config, "workerinput"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
        rank = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: rank.get(group_of(item), len(rank)))


def group_of(item: pytest.Item) -> str:
    """Return what stays together: a file; in the conformance suite a method."""
    case = getattr(item, "callspec", None)
    if "conformance" in item.path.parts and case is not None and "method" in case.params:
        return str(case.params["method"])
    return f"{item.path.parent.name}/{item.path.stem}"


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
    """Executions are still chosen by measurement, but not again and again for 1.5 s a job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "_BUDGET", 0.0)
        patch.setattr(choice, "_LEAST", 1)
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
