"""Members in parallel: one Python thread per core, one intra-operation thread in each.

Convolutions of one small network do not keep several cores busy; several networks do. Torch
releases the interpreter lock inside its operations and during the backward pass, so plain threads
suffice.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

Value = TypeVar("Value")

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_lock = threading.Lock()


class _Caller:
    """Identifies a thread and the workers that serve it."""


class _Thread(threading.local):
    """The caller of each thread, made at its first look."""

    def __init__(self) -> None:
        self.caller = _Caller()


_thread = _Thread()


class PerThread(Generic[Value]):
    """A value per thread, made at its first look and dropped when the thread ends.

    Workers of `for_each_member` see the value of the thread they serve. Copies begin empty.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._values: WeakKeyDictionary[_Caller, Value] = WeakKeyDictionary()

    def __call__(self) -> Value:
        caller = _thread.caller
        value = self._values.get(caller)
        if value is None:
            value = self._values[caller] = self._make()
        return value

    def __deepcopy__(self, memo: dict[int, Any]) -> PerThread[Value]:
        return PerThread(copy.deepcopy(self._make, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return PerThread, (self._make,)


def _pool(workers: int) -> ThreadPoolExecutor:
    """Return the pool of this process; its threads use one intra-operation thread each."""
    with _lock:
        key = (os.getpid(), workers)  # threads do not survive a fork
        if key not in _pools:
            ready = threading.Barrier(workers + 1)

            def start() -> None:
                torch.set_num_threads(1)
                torch.get_num_threads()  # settles it: a thread adopts torch's setting at first use
                ready.wait()

            pool = ThreadPoolExecutor(workers, thread_name_prefix="polymode", initializer=start)
            for _ in range(workers):
                pool.submit(int)
            ready.wait()
            torch.set_num_threads(workers)  # the call above set the default of future threads, too
            _pools[key] = pool
        return _pools[key]


def _setter() -> ThreadPoolExecutor:
    """Return the thread of this process that does nothing but set the number of threads."""
    with _lock:
        key = (os.getpid(), 0)
        if key not in _pools:
            _pools[key] = ThreadPoolExecutor(1, thread_name_prefix="polymode")
        return _pools[key]


def use_threads(number: int) -> None:
    """Let operations of this thread use `number` threads, and those of new threads as many as now.

    Torch sets both at once, so another thread restores the second. While this is the only thread,
    no other can start a new one.
    """
    before = torch.get_num_threads()
    if number != before:
        torch.set_num_threads(number)
        if threading.active_count() > 1:
            _setter().submit(torch.set_num_threads, before)


def for_each_member(num_modes: int, work: Callable[[int], None]) -> None:
    """Call work(0), ..., work(num_modes - 1), spread over as many threads as torch may use.

    Workers inherit whether gradients are recorded. The first error is raised here, after all
    workers have stopped.
    """
    workers = min(torch.get_num_threads(), num_modes)
    if workers == 1:
        for k in range(num_modes):
            work(k)
        return
    todo = iter(range(num_modes))
    guard = threading.Lock()
    grad_enabled, caller = torch.is_grad_enabled(), _thread.caller

    def run() -> None:
        before, _thread.caller = _thread.caller, caller
        try:
            with torch.set_grad_enabled(grad_enabled):
                while True:
                    with guard:
                        k = next(todo, None)
                    if k is None:
                        return
                    work(k)
        finally:
            _thread.caller = before

    pool = _pool(torch.get_num_threads())
    futures = [pool.submit(run) for _ in range(workers)]
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error
