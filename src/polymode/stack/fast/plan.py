"""Which execution a stack gets: a rule of sizes and layers, the same in every process.

Executions agree only up to rounding, so the choice must not depend on a clock, on what else the
machine does, or on how much memory is free. The table that the rule was read from is in
docs/scale.md; `python -m benchmarks.executions` measures it. `execution="measure"` times the
candidates instead (`stack/fast/measure.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from polymode.core.memory import free_bytes, human, saved_bytes
from polymode.core.rows import leaves_of
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.stack.fast.dense import dense_program
from polymode.stack.fast.prefix import prefix_of

if TYPE_CHECKING:
    from polymode.stack.stack import Stack

Run = Callable[["Stack", Tensor, Tensor], Any]

KINDS = ("outputs", "graph", "gradients")  # outputs without and with gradients; gradients of losses
CHUNK_BYTES = 2**30  # of intermediate results that members batched together keep for gradients
_SHORT = 3e8  # operations of a step: below, it takes some ms on one core, and waiting costs as much
_SMALL = 2**18  # rows × weights of a member: below, starting its operations takes most of the time


class Plan(NamedTuple):
    """One way to evaluate a stack."""

    execution: str
    channels_last: bool = False
    chunk_size: int | None = None
    num_threads: int | None = None  # intra-operation threads; None leaves torch's setting
    wide: bool = False  # the first convolution of all members as one, see `stack/fast/prefix.py`


class Job(NamedTuple):
    """A call that wants a plan.

    Attributes:
        kind: one of `KINDS`. run: the work, done by another stack on inputs x and targets y.
        per_member: whether x and y have the member axis.
    """

    kind: str
    run: Run
    x: Tensor
    y: Tensor
    per_member: bool

    @property
    def rows(self) -> int:
        return len(self.x[0] if self.per_member else self.x)

    @property
    def sized_kind(self) -> str:
        """Under which a plan is held: a batch to predict may be of any size."""
        return f"outputs of {self.rows}" if self.kind == "outputs" else self.kind

    def trial(self, stack: Stack, plan: Plan) -> Callable[[], Any]:
        """Return the work as done by this stack, of as many of the members, as planned.

        Ranks try by themselves: a loss that couples members meets none of the others'.
        """
        stack.plans = dict.fromkeys(KINDS, plan)
        inputs = [part[: len(stack)] if self.per_member else part for part in (self.x, self.y)]

        def work() -> Any:
            with ranks.sharing(None):
                return self.run(stack, *inputs)

        return work


def choose(stack: Stack, job: Job) -> Plan:
    """Return the plan for the execution that the user named, or the rule's."""
    name = rule(stack, job) if stack.execution == "auto" else stack.execution
    return plan_named(stack, job, name)


def in_chunks(stack: Stack, job: Job, plan: Plan) -> Plan:
    """Return the plan with as many members at a time as are batched together, where that is not
    all of them, or with none at a time where the user wants all."""
    if plan.execution not in ("batched", "chunked") or stack.execution == "batched":
        return plan
    size = chunk_size(stack, job)
    if plan.execution == "batched" and size >= ranks.num_modes(stack.num_modes):
        return plan
    return plan._replace(execution="chunked", chunk_size=size)


def rule(stack: Stack, job: Job) -> str:
    """Return the execution for these layers and sizes.

    1. One member, or members that differ in more than tensors: one after another, or side by side.
    2. Members that share frozen tensors: all through `vmap`, where what they share runs once.
    3. Dense networks (a graph of linear layers, norms, entrywise functions): batched products.
    4. On other devices than a processor: all through `vmap`.
    5. Images on a processor: members side by side, in `channels_last` format; where the first
       convolution is followed by pooling, it is one wide convolution on shared inputs.
    6. Gradients of other networks with up to 2¹⁸ rows × weights a member: through `vmap`; starting
       their operations takes most of the time.
    7. All else, and networks with operations that `vmap` does not know: side by side.
    """
    if ranks.num_modes(stack.num_modes) == 1:
        return "loop"
    if stack.members_differ:
        return "threads"
    if not stack.shares and not stack.common:
        if dense_program(stack) is not None:
            return "batched"
        small = job.kind != "outputs" and job.rows * stack.num_parameters <= _SMALL
        if stack.device.type == "cpu" and (_has_images(stack) or not small):
            return "threads"
    return "batched" if _can_batch(stack, job) else "threads"


def plan_named(stack: Stack, job: Job, execution: str) -> Plan:
    """Return the plan for an execution: format, threads within operations, a wide convolution."""
    if execution in ("batched", "chunked"):
        return Plan(execution, num_threads=_threads(stack, job, stack.num_modes))
    layout = stack.channels_last
    if layout is None:
        layout = _has_images(stack) and not _breaks_channels_last(stack)
    if execution == "loop":
        return Plan("loop", layout, num_threads=_threads(stack, job, 1))
    prefix = prefix_of(stack) if layout and not stack.members_differ else None
    return Plan(execution, layout, wide=prefix is not None and prefix.pools)


def chunk_size(stack: Stack, job: Job) -> int:
    """Return how many members are batched together: as many as the user says, or as many as keep
    `CHUNK_BYTES` for gradients. That is warned of, not changed, where so much is not free."""
    if stack.chunk_size is not None:
        return stack.chunk_size
    if not torch.is_grad_enabled():
        return ranks.num_modes(stack.num_modes)
    member = member_bytes(stack, job)
    size = max(1, CHUNK_BYTES // member)
    need, free = member * min(size, stack.num_modes), free_bytes(stack.device)
    if need > free:
        warn(
            f"gradients of {min(size, stack.num_modes)} members at a time need about {human(need)}"
            f" of memory; {human(free)} free. Give chunk_size={max(1, free // (2 * member))} with"
            " execution='chunked', or a smaller batch"
        )
    return size


def member_bytes(stack: Stack, job: Job) -> int:
    """Return how many bytes a member keeps for its gradients."""
    return max(1, saved_bytes(job.trial(stack[[0]], Plan("loop"))))


def _threads(stack: Stack, job: Job, together: int) -> int | None:
    x = job.x[0] if job.per_member else job.x
    return threads_for(stack, x, together)


def threads_for(stack: Stack, x: Tensor, together: int = 1) -> int | None:
    """Return 1 where gradients of so many members on a batch (B, ...) are too short a work to
    share, None for as many threads as torch has.

    A weight is used once for each row, or, outside dense networks, for at most every number of it.
    """
    uses = len(x)
    if stack.members_differ or dense_program(stack) is None:
        uses = sum(leaf.numel() for leaf in leaves_of(x))
    operations = 6 * uses * together * stack.num_parameters
    return 1 if operations < _SHORT and stack.device.type == "cpu" else None


def _has_images(stack: Stack) -> bool:
    return any(t.dim() == 5 for t in (*stack.params.values(), *stack.frozen.values()))


def _can_batch(stack: Stack, job: Job) -> bool:
    """Whether `vmap` knows all of the network's operations; recurrent layers are among the rest."""
    part = stack[:2].clone()
    for leaf in part.leaves():
        leaf.requires_grad_(stack.differentiable)
    try:
        job.trial(part, Plan("batched"))()
    except (RuntimeError, ValueError):
        return False
    return True


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
