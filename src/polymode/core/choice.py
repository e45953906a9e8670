"""Which execution is fastest here: measured on the first batch, then remembered.

The choice must not flip between two runs of one job, because executions agree only up to rounding.
So it is written down by job (architecture, sizes, threads) and machine, in memory and in
`$POLYMODE_CACHE/executions.json` (by default under the user's cache folder); delete the file to
measure anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polymode.core.execution import Plan, to_channels_last
from polymode.core.memory import free_bytes, saved_bytes
from polymode.core.stack import Stack
from polymode.core.store import replace_file

Run = Callable[[Stack, Tensor, Tensor], Any]

_known: dict[str, Plan] = {}
_LONG = 0.05  # seconds: a candidate is repeated until it has run this long, at most _REPEATS times
_REPEATS = 5
_SLOW = 0.02  # seconds for one member on one core: above, candidates are tried on few members
_THRIFT = 0.9  # one thread is preferred where several save less than a tenth: it disturbs no one
_HOPELESS = 3.0  # a candidate this many times slower than the best at its first run is given up


def choose(stack: Stack, kind: str, run: Run, x: Tensor, y: Tensor, own: bool) -> Plan:
    """Return the plan that the user named, or the fastest one."""
    if stack.execution == "batched":
        return Plan("batched")
    if stack.execution == "chunked":
        return Plan(
            "chunked", chunk_size=stack.chunk_size or _members_that_fit(stack, run, x, y, own)
        )
    job = _job(stack, kind, x, own)
    if job not in _known:
        _known.update(_read())
    if job not in _known:
        _known[job] = _measure(stack, run, x, y, own)
        _write(job, _known[job])
    plan = _known[job]
    if plan.execution == "batched":
        size = _members_that_fit(stack, run, x, y, own)
        if size < stack.num_modes:
            return Plan("chunked", chunk_size=size)
    return plan


def _candidates(stack: Stack, slow: bool) -> list[Plan]:
    """Return the ways to try, the likeliest first.

    On a processor, batching pays where the time goes into starting many small operations, so it is
    not tried for networks that are `slow` alone; convolutions under `vmap` were measured three
    times slower than a loop.
    """
    earlier = next(iter(stack._plans.values()), None)
    images = any(t.dim() == 5 for t in (*stack.params.values(), *stack.frozen.values()))
    layouts = (True, False) if images else (False,)
    if earlier is not None:
        layouts = (earlier.channels_last,)  # the memory format is decided already
    several = torch.get_num_threads() > 1 and stack.device.type == "cpu"
    counts = (1, None) if several and not slow else (None,)
    plans = []
    if stack.num_modes > 1 and False in layouts and not stack._apart:
        if not (slow and stack.device.type == "cpu"):
            plans += [Plan("batched", num_threads=count) for count in counts]
    if stack.num_modes > 1 and several:
        plans += [Plan("threads", layout) for layout in layouts]
    plans += [Plan("loop", layout, num_threads=count) for count in counts for layout in layouts]
    if stack.execution != "auto":
        plans = [plan for plan in plans if plan.execution == stack.execution] or [
            Plan("loop", layouts[0])
        ]
    return plans


def _measure(stack: Stack, run: Run, x: Tensor, y: Tensor, own: bool) -> Plan:
    """Time each candidate on a copy of the stack and return the fastest."""

    def trial(plan: Plan, count: int) -> Callable[[], Any]:
        part = stack[:count].clone().train(stack.training)
        part._random = dict(stack._random)
        if plan.channels_last:
            to_channels_last(part)
        part._plans = {"outputs": plan, "gradients": plan}
        return lambda: run(part, x[:count] if own else x, y[:count] if own else y)

    alone = trial(Plan("loop", num_threads=1), 1)
    slow = min(_once(alone), _once(alone)) > _SLOW
    count = min(stack.num_modes, torch.get_num_threads()) if slow else stack.num_modes
    best, best_time = Plan("loop"), float("inf")
    for plan in _candidates(stack, slow):
        try:
            taken = _time(trial(plan, count), best_time)
        except (RuntimeError, ValueError):
            if plan.execution != "batched":  # not every network can be vmapped; all can run alone
                raise
            continue
        taken *= _THRIFT if plan.num_threads == 1 else 1.0
        if taken < best_time:
            best, best_time = plan, taken
    return best


def _time(work: Callable[[], Any], best: float) -> float:
    """Return the shortest of a few timed runs after a first one that warms up."""
    first = _once(work)
    if first > _HOPELESS * best:
        return first
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _LONG:
        times.append(_once(work))
    return min(times)


def _once(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _members_that_fit(stack: Stack, run: Run, x: Tensor, y: Tensor, own: bool) -> int:
    """Return how many members may be batched together within half of the free memory."""
    if not torch.is_grad_enabled():
        return stack.num_modes
    trial = stack[:1].clone().train(stack.training)
    trial._plans = {"outputs": Plan("loop"), "gradients": Plan("loop")}
    trial._random = dict(stack._random)
    one = saved_bytes(lambda: run(trial, x[:1] if own else x, y[:1] if own else y))
    return max(1, min(stack.num_modes, int(0.5 * free_bytes(stack.device) // max(one, 1))))


def _job(stack: Stack, kind: str, x: Tensor, own: bool) -> str:
    """Return a hash of everything the choice depends on."""
    shapes = [(n, tuple(t.shape)) for n, t in {**stack.params, **stack.frozen}.items()]
    facts = [
        kind, stack.execution, type(stack.template).__qualname__, str(stack.template), shapes,
        tuple(x.shape), own, stack.training, torch.is_grad_enabled(), str(stack.dtype),
        str(stack.device),
        torch.get_num_threads(), torch.__version__, platform.processor(), platform.node(),
        [plan.channels_last for plan in stack._plans.values()],
    ]  # fmt: skip
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def _file() -> Path:
    cache = os.environ.get("POLYMODE_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "polymode") / "executions.json"


def _read() -> dict[str, Plan]:
    try:
        return {job: Plan(*plan) for job, plan in json.loads(_file().read_text()).items()}
    except (OSError, ValueError, TypeError):
        return {}


def _write(job: str, plan: Plan) -> None:
    """Add one choice to the file; a folder that cannot be written costs a measurement, no more."""
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        replace_file(_file(), json.dumps(_read() | {job: plan}, indent=0).encode())
    except OSError:
        pass
