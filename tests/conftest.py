"""Settings of every test, and small results with kept predictions for figures and reports.

No cache of the user's is read or written.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

# Read when torch is loaded: a thread that waits for another sleeps, and burns no core meanwhile.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest  # noqa: E402
import torch  # noqa: E402

import polymode as pm  # noqa: E402
from polymode.core import choice  # noqa: E402
from polymode.metrics import compare, evaluate  # noqa: E402

THREADS = torch.get_num_threads()


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
