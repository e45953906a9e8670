"""Many independent pieces of work as tasks of Ray, on this machine or on a cluster.

Ray places the tasks and restarts those whose worker died; their events come through an actor. Only
the caller receives results and writes them, so none is written twice.
Needs the extra `polymode[ray]`; on a cluster all machines need the same release of polymode.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from polymode._version import __version__
from polymode.core.text import first_line

RETRIES = 3  # times that a task, or the actor, is started again whose process died
PAUSE = 0.1  # seconds between looks at what tasks tell
PATIENCE = 20.0  # seconds that cancelled tasks have to write their checkpoints
REACH = 5.0  # seconds to reach an address
_AHEAD = 32  # tasks that wait in Ray for each one that runs: many, since they may be short

Say = Callable[[Any], None]
Work = Callable[[Any, Say], Any]


class ClusterProblem(ValueError):
    """A cluster that cannot be used; the message says why."""


class Started(NamedTuple):
    """A task has begun, in this process; again if an earlier worker died."""

    process: int


class Done(NamedTuple):
    """What a task returned."""

    result: Any


class Lost(NamedTuple):
    """Why a task gave nothing, after all retries."""

    error: str


Tell = Callable[[int, Any], None]
"""Called with the number of a task and `Started`, `Done`, `Lost` or an event of its own."""


class Cluster(NamedTuple):
    """Where tasks run: the `address` of a Ray cluster, or None for this machine, with so many
    `workers` of `threads` each."""

    address: str | None = None
    workers: int = 2
    threads: int = 1

    def run(self, work: Work, jobs: Sequence[Any], tell: Tell) -> None:
        """Run `work(job, say)`, a function of a module, for every job; `tell` is called here.

        On Ctrl-C tasks are asked to stop, as by Ctrl-C, and `KeyboardInterrupt` is raised when they
        have.
        """
        with self._ray() as ray:
            try:
                _run(ray, work, jobs, tell, self.threads)
            except ray.exceptions.RayError as error:
                raise ClusterProblem(
                    f"Ray failed{_at(self.address)} ({type(error).__name__}: {first_line(error)});"
                    " what is finished is kept, the same command goes on from there"
                ) from None

    @contextmanager
    def _ray(self) -> Iterator[Any]:
        ray = _library()
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        variables = {"OMP_NUM_THREADS": str(self.threads)}
        if self.address is None:
            variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
            cluster: dict[str, Any] = {
                "num_cpus": self.workers * self.threads,
                "include_dashboard": False,
            }
        else:
            _reach(self.address)
            cluster = {"address": self.address}
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning of the future
        try:
            ray.init(**cluster, **quiet, runtime_env={"env_vars": variables})
        except Exception as error:  # a plain one where a node does not start in time
            ray.shutdown()
            raise ClusterProblem(
                f"Ray cannot be started{_at(self.address)}: {first_line(error)}"
            ) from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _run(ray: Any, work: Work, jobs: Sequence[Any], tell: Tell, threads: int) -> None:
    # Restarted where it dies: it holds only events, results do not pass through it.
    again = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
    news = ray.remote(num_cpus=0, **again)(_News).remote()
    task = ray.remote(num_cpus=threads, max_retries=RETRIES)(_task)
    most = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
    waiting = list(enumerate(jobs))[::-1]
    busy: dict[Any, int] = {}

    def listen(timeout: float) -> None:
        done, _ = ray.wait(list(busy), num_returns=len(busy), timeout=timeout)
        for number, event in ray.get(news.take.remote()):
            tell(number, event)
        for reference in done:
            tell(busy.pop(reference), _outcome(ray, reference))

    try:
        while waiting or busy:
            while waiting and len(busy) < most:
                number, job = waiting.pop()
                busy[task.remote(work, job, number, news, __version__)] = number
            listen(PAUSE)
    except KeyboardInterrupt:
        _cancel(ray, busy, listen)
        raise


def _cancel(ray: Any, busy: dict[Any, int], listen: Callable[[float], None]) -> None:
    """Ask all tasks to stop, and receive what they still finish."""
    for reference in busy:
        ray.cancel(reference)
    until = time.monotonic() + PATIENCE
    while busy and time.monotonic() < until:
        listen(PAUSE)


class _News:
    """An actor that holds the events of tasks until the caller takes them."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Any]] = []

    def add(self, number: int, event: Any) -> None:
        self.events.append((number, event))

    def take(self) -> list[tuple[int, Any]]:
        events, self.events = self.events, []
        return events


def _task(work: Work, job: Any, number: int, news: Any, version: str) -> Any:
    """What a worker does."""
    if version != __version__:
        raise ClusterProblem(
            f"{socket.gethostname()} has polymode {__version__}, the caller {version}: install the"
            " same on all machines"
        )

    def say(event: Any) -> None:
        news.add.remote(number, event)

    say(Started(os.getpid()))
    return work(job, say)


def _outcome(ray: Any, reference: Any) -> Done | Lost:
    try:
        return Done(ray.get(reference))
    except ray.exceptions.TaskCancelledError:
        return Lost("cancelled")
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if error.cause is not None else error
        return Lost(f"{type(cause).__name__}: {cause}")
    except ray.exceptions.RayError as error:
        return Lost(f"WorkerDied: {first_line(error)}; tried {RETRIES + 1} times")


def _library() -> Any:
    try:
        import ray
    except ImportError:
        raise ClusterProblem("--backend ray needs Ray: pip install 'polymode[ray]'") from None
    return ray


def _reach(address: str) -> None:
    """Fail soon where nobody answers at an address: Ray itself waits for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local"):
        return
    if not host or not port.isdigit():
        raise ClusterProblem(
            f"`address` must be HOST:PORT, ray://HOST:PORT or auto, got '{address}'"
        )
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except OSError as error:
        raise ClusterProblem(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one with"
            " `ray start --head`, or leave --address out to use this machine"
        ) from None


def _at(address: str | None) -> str:
    return "" if address is None else f" at {address}"
