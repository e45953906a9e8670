"""Which execution is fastest here: measured on the first batch, then remembered.

The choice must not flip between two runs of one job, because executions agree only up to rounding.
So it is written down by job (architecture, sizes, threads) and machine, in memory and in
`$POLYMODE_CACHE/executions.json` (by default under the user's cache folder); delete the file to
measure anew. A run of the command line keeps the choices of its cells in its own folder, too, where
they hold on every machine and without the cache (`remembered_in`).
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.memory import free_bytes, saved_bytes
from polymode.core.rows import shapes_of
from polymode.core.safe_files import cache_folder, locked, replace_file
from polymode.core.text import parse_json
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.stack.fast.dense import dense_program
from polymode.stack.fast.prefix import prefix_of
from polymode.tracing.code import code_of

if TYPE_CHECKING:
    from polymode.stack.stack import Stack

Run = Callable[["Stack", Tensor, Tensor], Any]


class Plan(NamedTuple):
    """One way to evaluate a stack."""

    execution: str
    channels_last: bool = False
    chunk_size: int | None = None
    num_threads: int | None = None  # intra-operation threads; None leaves torch's setting
    wide: bool = False  # the first convolution of all members as one, see `stack/fast/prefix.py`


MOST_THREADS = 1024  # that a file may ask for: the system may end a process that starts 10⁶
KINDS = ("outputs", "graph", "gradients")  # outputs without and with gradients; gradients of losses

_remembered: dict[str, Plan] = {}
# file of the run that is at work in this thread
_run_file: ContextVar[Path | None] = ContextVar("_run_file", default=None)
# How each constant was found:
_LEAST, _ROUNDS = 3, 20  # trials after the first: single times on a busy machine differ by 1.5
_BUDGET = 1.5  # seconds for them: ten rounds of the slowest near candidates, LeNet and ResNet-8
_NEAR, _NEARER = 2.0, 1.25  # a candidate stays in within these factors of the best: twice the noise
_TOGETHER = 4  # members that a wide convolution is tried with: fewer do not show what it saves
_SLOW = 0.02  # seconds per member on one core: above it, few members and no vmap are tried (3x)
_MANY = 64  # members to try others on: beyond them the time of every candidate is linear
_THRIFT = 0.9  # one thread is preferred unless several save a tenth: on shared cores they cost 20x
_WIDE = 1.1  # a wide convolution must save a tenth: it grows with the members, trials have few
_SHARED = 1.1  # as must operations on all cores: each waits for the core that is disturbed
_FEW = 250  # calls: below, 25 calls of trials cost more than the best plan saves over the rule's
_SHORT = 3e8  # operations of a step: below, it takes some ms on one core, and waiting costs as much
_HOPELESS = 3.0  # given up after its first run: no candidate came back from more than 2.2


def choose(stack: Stack, kind: str, run: Run, x: Tensor, y: Tensor, per_member: bool) -> Plan:
    """Return the plan that the user named, or the fastest one: the same on all ranks."""
    if stack.execution == "batched":
        return Plan("batched")
    number = ranks.num_modes(stack.num_modes)
    return ranks.agreed(lambda: _choose(stack, kind, run, x, y, per_member, number))


def _choose(
    stack: Stack, kind: str, run: Run, x: Tensor, y: Tensor, per_member: bool, num_modes: int
) -> Plan:
    """Choose as for all `num_modes`, so that any number of ranks gets the same plan."""
    has_program = not stack.members_differ and dense_program(stack) is not None
    by_rule = stack.execution == "auto" and stack.horizon < _FEW and has_program
    job = _job(stack, kind, x, per_member, num_modes)

    def fit() -> int:
        return stack.chunk_size or members_that_fit(stack, run, x, y, per_member)

    def anew() -> Plan:
        if stack.execution == "chunked":
            return Plan("chunked", chunk_size=fit())
        if stack.execution == "auto" and stack.shares and _can_batch(stack, run, x, y, per_member):
            plan = Plan("batched")  # what members share then runs once
        elif by_rule:
            plan = _by_rule(stack, x, per_member, num_modes)
        else:
            plan = _of_machine(job, lambda: _measure(stack, run, x, y, per_member))
        if plan.execution == "batched" and (size := fit()) < stack.num_modes:
            return Plan("chunked", chunk_size=size)
        return plan

    path = _run_file.get()
    if path is None:
        return anew()
    key = f"{job}, by rule" if by_rule else job
    plan = _read(path).get(key) or _agree(path, key, anew())
    if plan.execution in ("batched", "chunked"):  # as many as fitted then, which took half
        together = plan.chunk_size or stack.num_modes
        if together > 2 * (size := fit()):
            return Plan("chunked", chunk_size=size)
    return plan


@contextmanager
def remembered_in(path: Path) -> Iterator[None]:
    """Let choices come from the file `path` first, and keep there all that are made or used."""
    before = _run_file.set(path)
    try:
        yield
    finally:
        _run_file.reset(before)


def _of_machine(job: str, measure: Callable[[], Plan]) -> Plan:
    """Return this machine's choice for a job, measured now if it is not known."""
    key = hashlib.blake2b(
        repr((job, platform.processor(), platform.node())).encode(), digest_size=12
    ).hexdigest()
    if key not in _remembered:
        _remembered.update(_read(_file()))
    if key not in _remembered:
        plan = measure()
        try:
            plan = _agree(_file(), key, plan)
        except OSError as error:
            if _run_file.get() is None:
                _warn_of_no_cache(error)
        _remembered[key] = plan
    return _remembered[key]


def _warn_of_no_cache(error: OSError) -> None:
    warn(
        f"the fastest execution cannot be written to {_file()} ({error.strerror or error}): the"
        " next process measures anew, and the same seed may end in other last digits. Set"
        " POLYMODE_CACHE to a folder that can be written, or name one, execution='batched'",
    )


def _by_rule(stack: Stack, x: Tensor, per_member: bool, num_modes: int) -> Plan:
    """Return the plan of dense networks for work too short to be measured first.

    Batched products were the fastest for every width from 64 to 512 units and 4 to 16 members, 1.4
    to 6 times the speed of a plain loop.
    """
    rows = len(x[0] if per_member else x)
    operations = 6 * rows * num_modes * stack.num_parameters
    threads = 1 if operations < _SHORT and stack.device.type == "cpu" else None
    return Plan("batched" if num_modes > 1 else "loop", num_threads=threads)


def _can_batch(stack: Stack, run: Run, x: Tensor, y: Tensor, per_member: bool) -> bool:
    """Whether two members run in one computation: not every network can be vmapped."""
    part = stack[:2].clone()
    part.plans = dict.fromkeys(KINDS, Plan("batched"))
    for leaf in part.leaves():
        leaf.requires_grad_(stack.differentiable)
    try:
        run(part, x[:2] if per_member else x, y[:2] if per_member else y)
    except (RuntimeError, ValueError):
        return False
    return True


def _candidates(stack: Stack, slow: bool, per_member: bool) -> list[Plan]:
    """Return the ways to try, the likeliest first.

    On a processor, batching pays where the time goes into starting many small operations, so it is
    not tried for networks that are `slow` alone; convolutions under `vmap` were measured three
    times slower than a loop.
    """
    images = any(t.dim() == 5 for t in (*stack.params.values(), *stack.frozen.values()))
    layouts = (True, False) if images and not _breaks_channels_last(stack) else (False,)
    if stack.channels_last is not None:
        layouts = (stack.channels_last,)
    several = torch.get_num_threads() > 1 and stack.device.type == "cpu"
    counts = (1, None) if several and not slow and not images else (None,)
    plans = []
    if stack.num_modes > 1 and False in layouts and not stack.members_differ:
        if not (slow and stack.device.type == "cpu"):
            plans += [Plan("batched", num_threads=count) for count in counts]
    inputs_alone = torch.is_grad_enabled() and not stack.differentiable
    wide = stack.num_modes > 1 and True in layouts and not per_member and not stack.members_differ
    wide = wide and (several or inputs_alone) and prefix_of(stack) is not None
    if wide and inputs_alone:
        plans.append(Plan("loop", channels_last=True, wide=True))
    if stack.num_modes > 1 and several:
        if wide and not inputs_alone:
            plans.append(Plan("threads", channels_last=True, wide=True))
        plans += [Plan("threads", layout) for layout in layouts]
    plans += [Plan("loop", layout, num_threads=count) for count in counts for layout in layouts]
    if stack.execution != "auto":
        plans = [plan for plan in plans if plan.execution == stack.execution] or [
            Plan("loop", layouts[0])
        ]
    return plans


def _breaks_channels_last(stack: Stack) -> bool:
    """Whether a gradient in channels_last format would write past the end of its memory.

    oneDNN of torch 2.13 does so on processors with AVX2 for strided 1x1 convolutions with fewer
    than eight input channels; other numbers that eight does not divide take the same kernel.
    """
    return any(
        isinstance(layer, nn.Conv2d)
        and set(layer.kernel_size) == {1}
        and max(layer.stride) > 1
        and layer.in_channels % 8 != 0
        for layer in stack.template.modules()
    )


def _measure(stack: Stack, run: Run, x: Tensor, y: Tensor, per_member: bool) -> Plan:
    """Time the candidates on copies of the stack and return the fastest.

    All are timed once after a run that warms up; those that come near the best are timed again, in
    turns, since a single time on a busy machine says little.
    """

    def trial(plan: Plan, count: int) -> Callable[[], Any]:
        part = stack[:count].clone()
        for leaf in part.leaves():
            leaf.requires_grad_(stack.differentiable)
        part.lay_out(plan.channels_last)
        part.plans = dict.fromkeys(KINDS, plan)
        return lambda: run(part, x[:count] if per_member else x, y[:count] if per_member else y)

    alone = trial(Plan("loop", num_threads=1), 1)
    slow = min(_once(alone), _once(alone)) > _SLOW
    plans = _candidates(stack, slow, per_member)
    few = max(torch.get_num_threads(), _TOGETHER if any(plan.wide for plan in plans) else 1)
    count = min(stack.num_modes, few if slow else _MANY)
    trials = {plan: trial(plan, count) for plan in plans}
    times: dict[Plan, float] = {}
    for plan, work in trials.items():
        best = min(times.values(), default=float("inf"))
        try:
            first = _once(work)
            repeats = 2 if first > _SLOW else 4  # short runs are easily disturbed
            hopeless = first > _HOPELESS * best and first > _SLOW
            times[plan] = first if hopeless else min(_once(work) for _ in range(repeats))
        except (RuntimeError, ValueError):
            if plan.execution != "batched":  # not every network can be vmapped; all can run alone
                raise
    start = time.perf_counter()
    for number in range(_ROUNDS):
        limit = (_NEAR if number < 3 else _NEARER) * min(times.values())
        times = {plan: duration for plan, duration in times.items() if duration <= limit}
        late = number >= _LEAST and time.perf_counter() - start > _BUDGET
        if len(times) == 1 or late:
            break
        for plan in times:
            times[plan] = min(times[plan], _once(trials[plan]))
    return min(times, key=lambda plan: times[plan] * _handicap(plan, count, stack.num_modes))


def _handicap(plan: Plan, tried: int, num_modes: int) -> float:
    """What to multiply the time of a trial with: see above, and cores that idle in a last, partial
    turn of members side by side, which a trial with fewer members does not show."""
    cores = torch.get_num_threads()
    if plan.execution == "threads":
        turns, turns_tried = math.ceil(num_modes / cores), math.ceil(tried / cores)
        idle = turns / turns_tried * tried / num_modes
        return idle * (_WIDE if plan.wide else 1.0)
    if plan.num_threads == 1:
        return _THRIFT
    return _SHARED if plan.execution == "loop" and cores > 1 else 1.0


def _once(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def members_that_fit(stack: Stack, run: Run, x: Tensor, y: Tensor, per_member: bool) -> int:
    """Return how many members may be batched together within half of the free memory."""
    if not torch.is_grad_enabled():
        return stack.num_modes
    trial = stack[[0]]
    trial.plans = dict.fromkeys(KINDS, Plan("loop"))
    member_bytes = saved_bytes(
        lambda: run(trial, x[:1] if per_member else x, y[:1] if per_member else y)
    )
    return max(1, min(stack.num_modes, int(0.5 * free_bytes(stack.device) // max(member_bytes, 1))))


def _job(stack: Stack, kind: str, x: Tensor, per_member: bool, num_modes: int) -> str:
    """Return a hash of everything the choice depends on, but the machine."""
    tensors = {**stack.params, **stack.frozen}
    shapes = [(n, (num_modes, *t.shape[1:])) for n, t in tensors.items()]
    of_x: Any = (num_modes if per_member else len(x), shapes_of(x))
    if isinstance(x, Tensor):
        of_x = (of_x[0], *of_x[1])
    if torch.is_grad_enabled() and not stack.differentiable:
        kind += ", of inputs alone"
    facts = [
        kind, stack.execution, type(stack.template).__qualname__, str(stack.template),
        code_of(stack.template), shapes,
        of_x, per_member, stack.mode, torch.is_grad_enabled(), str(stack.dtype),
        str(stack.device),
        torch.get_num_threads(), torch.__version__, stack.channels_last, stack.chunk_size,
    ]  # fmt: skip
    return hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def _file() -> Path:
    return cache_folder() / "executions.json"


def _read(path: Path) -> dict[str, Plan]:
    try:
        content = parse_json(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError):
        return {}
    listed = content.items() if isinstance(content, dict) else ()
    return {job: Plan(*plan) for job, plan in listed if is_plan(plan)}


def is_plan(plan: Any) -> bool:
    """Return whether what a file holds is a plan, and one that can be followed."""
    if not isinstance(plan, list) or len(plan) != len(Plan._fields):
        return False
    execution, channels_last, chunk_size, num_threads, wide = plan
    counts = all(
        n is None or (type(n) is int and 1 <= n <= most)
        for n, most in ((chunk_size, 2**31), (num_threads, MOST_THREADS))
    )
    is_way = execution in ("batched", "loop", "threads", "chunked")
    return is_way and counts and isinstance(channels_last, bool) and isinstance(wide, bool)


def _agree(path: Path, job: str, plan: Plan) -> Plan:
    """Return the choice on file, else put this one there: processes that measured at once agree."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        plans = _read(path)
        if job not in plans:
            replace_file(path, json.dumps(plans | {job: plan}, indent=0).encode())
    return plans.get(job, plan)
