"""The stopwatch of `execution="measure"`: candidates on the first batch, the fastest is taken.

Nothing is written down, so two runs of one job may take two executions and end in other last
digits. Shapes: `M` modes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from polymode.stack.fast.plan import Job, Plan, plan_named
from polymode.stack.fast.prefix import prefix_of

if TYPE_CHECKING:
    from polymode.stack.stack import Stack

_MANY = 64  # members to try: beyond them the time of every candidate is linear
_ROUNDS = 10  # single times on a busy machine differ by 1.5
_BUDGET = 1.5  # seconds for them: ten rounds of LeNet or ResNet-8
_NEAR = 2.0  # a candidate stays in within this factor of the best


def measure(stack: Stack, job: Job) -> Plan:
    """Return the fastest plan of the candidates, timed in turns on copies of the stack."""
    trials: dict[Plan, Callable[[], Any]] = {}
    times: dict[Plan, float] = {}
    for plan in _candidates(stack, job):
        part = stack[: min(len(stack), _MANY)].clone()
        for leaf in part.leaves():
            leaf.requires_grad_(stack.differentiable)
        part.lay_out(plan.channels_last)
        work = job.trial(part, plan)
        try:
            _seconds(work)
            trials[plan], times[plan] = work, _seconds(work)
        except (RuntimeError, ValueError):
            if plan.execution != "batched":  # not every network can be batched; all can run alone
                raise
    start = time.perf_counter()
    for _ in range(_ROUNDS):
        best = min(times.values())
        times = {plan: seconds for plan, seconds in times.items() if seconds <= _NEAR * best}
        if len(times) == 1 or time.perf_counter() - start > _BUDGET:
            break
        times = {plan: min(seconds, _seconds(trials[plan])) for plan, seconds in times.items()}
    return min(times, key=lambda plan: times[plan])


def _candidates(stack: Stack, job: Job) -> list[Plan]:
    """Return the ways to try: executions in both formats, with one thread and with all."""
    several = torch.get_num_threads() > 1 and stack.device.type == "cpu"
    counts = (1, None) if several else (None,)
    layouts = {plan_named(stack, job, "loop").channels_last, bool(stack.channels_last)}
    plans = [Plan("loop", layout, num_threads=n) for layout in layouts for n in counts]
    if len(stack) > 1:
        plans += [Plan("threads", layout) for layout in layouts]
        if True in layouts and not stack.members_differ and prefix_of(stack) is not None:
            plans.append(Plan("threads", channels_last=True, wide=True))
        if False in layouts and not stack.members_differ:
            plans += [Plan("batched", num_threads=n) for n in counts]
    return plans


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
