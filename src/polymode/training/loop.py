"""The one training loop: batches in, steps of a method, events out; checkpoints, resume,
interrupts.

A method gives `step(state, batch) -> (state, info)`, where `state` is a named tuple with a field
`step` (steps done) and `info.loss` holds the members' losses (M,). The loop draws the batches as a
function of (seed, epoch), so the state is all there is to save.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from polymode.core.rng import fold, generator
from polymode.core.rows import Rows, as_rows, stacked
from polymode.core.threads import use_threads
from polymode.core.warn import warn
from polymode.distributed import ranks
from polymode.distributed.meeting import Meeting
from polymode.stack.execution import limit_threads
from polymode.stack.stack import Stack
from polymode.stack.vocabulary import explain_ids
from polymode.training.checkpoint import claimed, damage_named, load_training, save_training
from polymode.training.events import Observer, Reporter
from polymode.training.history import Recorder
from polymode.training.holdout import Selection, Source
from polymode.training.optimiser import Optimization
from polymode.training.options import Augment, Passes

S = TypeVar("S", bound=Any)


class Batch(NamedTuple):
    """What one step sees: inputs (B, ...) and targets, or (M, B, ...) both if `own`."""

    x: Tensor
    y: Tensor
    own: bool = False


class Divergence(ArithmeticError):
    """Training left the finite numbers; the message says where and what to try."""


class Checkpoint(NamedTuple):
    """Where a run is kept, how often, what tells it from other runs, and what it runs on."""

    folder: Path
    identity: dict[str, Any]
    seconds: float = 30.0
    threads: int | None = None  # of torch when the run began


def run(
    step: Callable[[S, Batch], tuple[S, Any]],
    state: S,
    data: Source,
    passes: Passes,
    *,
    seed: int,
    what: str = "training",
    observers: tuple[Observer, ...] = (),
    checkpoint: Checkpoint | None = None,
    recorder: Recorder | None = None,
    finished: Callable[[S], bool] | None = None,
    selection: Selection | None = None,
) -> S:
    """Train from `state` (or from the checkpoint, if there is one) to the last epoch; return the
    state.

    Raises `Divergence` at the first step whose loss is not finite, and `KeyboardInterrupt` after
    the step in which the interrupt came; both leave the last checkpoint in place, the interrupt
    with one written at that very step. `recorder` hears of every step, those before a resume
    included. `finished` is asked after every pass over the data whether the state is good enough to
    end before the last one. `selection` keeps each member's best weights, which the state then ends
    with.
    """
    if checkpoint is not None:
        checkpoint = checkpoint._replace(threads=torch.get_num_threads())
    claims = checkpoint is not None and ranks.is_first()
    with claimed(checkpoint.folder) if claims and checkpoint else nullcontext():
        per_epoch = data.num_batches(passes.batch_size)
        reporter = Reporter(what, passes.total_steps(per_epoch), observers)
        recorder = recorder or Recorder(reporter.total, state.stack.num_modes)
        by_member = passes.data_order == "own" and data.can_reorder
        course = _Course(
            step, data, passes, seed, per_epoch, by_member, reporter, recorder, checkpoint,
            finished, selection,
        )  # fmt: skip
        state = _run(course, state)
        if selection is not None:
            selection.restore(state.stack)
        return state


@dataclass(frozen=True)
class _Course:
    """What a run is made of, from its first step to its last.

    Attributes:
        step, data, passes, seed, checkpoint, finished, selection: the arguments of `run`.
        per_epoch: batches in one pass over the data.
        by_member: whether each member has batches of its own.
        reporter, recorder: what hears of every step.
    """

    step: Callable[[Any, Batch], tuple[Any, Any]]
    data: Source
    passes: Passes
    seed: int
    per_epoch: int
    by_member: bool
    reporter: Reporter
    recorder: Recorder
    checkpoint: Checkpoint | None
    finished: Callable[[Any], bool] | None
    selection: Selection | None


def _run(course: _Course, state: S) -> S:
    """Resume where there is a checkpoint, train to the end, and write the last one."""
    reporter, checkpoint, per_epoch = course.reporter, course.checkpoint, course.per_epoch
    resumed = None if checkpoint is None else _load(course, checkpoint, state)
    if resumed is not None:
        state = resumed
        reporter.first_step = state.step
        reporter.tell("resume", state.step, state.step // per_epoch, math.nan)
    stack: Stack = state.stack
    reporter.tell("start", state.step, state.step // max(per_epoch, 1), math.nan)
    stack.train()
    try:
        with _interrupts() as interrupted, limit_threads(None):
            meeting = Meeting(state.step, reporter.total)
            try:
                state = _train_epochs(course, state, meeting, interrupted)
            except Exception as error:
                meeting.failed(error)
    finally:
        stack.eval()
    with ranks.together():
        _require_finite(stack, state.step, course.passes)
    if checkpoint is not None:
        _save(course, checkpoint, state)
    return state


def _train_epochs(course: _Course, state: S, meeting: Meeting, interrupted: threading.Event) -> S:
    """Take the steps of all epochs that are left."""
    passes, reporter, checkpoint = course.passes, course.reporter, course.checkpoint
    saved, first = time.perf_counter(), state.step
    last_finite, loss = math.nan, math.nan
    while state.step < reporter.total and not (course.finished and course.finished(state)):
        epoch, position = divmod(state.step, course.per_epoch)
        before = state.step
        for batch in _batches(course, state.stack, epoch, position):
            try:
                state, info = course.step(state, batch)
            except ValueError as error:
                _explain_batch_of_one(error, batch)
                raise
            except IndexError as error:
                explain_ids(error, state.stack, batch.x[0] if batch.own else batch.x)
                raise
            if state.step == first + 1:  # the execution is chosen in the first step
                use_threads(state.stack.num_threads)
            losses, all_losses = info.loss.tolist(), meeting.seen(info.loss)
            loss = sum(all_losses) / len(all_losses)
            if not math.isfinite(loss):
                raise _divergence(state.step - 1, all_losses, last_finite, passes)
            last_finite = loss
            course.recorder.add(state.step, losses, state.stack)
            if course.selection is not None and not course.selection.by_interval:
                course.selection.add(state.step, state.stack)
            if reporter.due():
                reporter.tell("progress", state.step, epoch, loss)
            due = checkpoint is not None and time.perf_counter() - saved > checkpoint.seconds
            due, stop = meeting.at(state.step, due, interrupted.is_set())
            if stop:
                _stop(course, state)
            if due and checkpoint is not None:
                with ranks.together():
                    _require_finite(state.stack, state.step, passes)
                _save(course, checkpoint, state)
                reporter.tell("checkpoint", state.step, epoch, loss)
                saved = time.perf_counter()
        if state.step == before:
            raise ValueError(
                f"a pass over the data ended after {position} batches, but should have"
                f" {course.per_epoch}; give a loader whose every pass yields as many batches as its"
                " length says"
            )
    reporter.tell("end", state.step, passes.num_epochs(course.per_epoch), loss)
    return state


def _explain_batch_of_one(error: ValueError, batch: Batch) -> None:
    """Raise torch's complaint about a normalised batch of one as ours; leave any other."""
    rows = len(batch.y[0] if batch.own else batch.y)
    if rows == 1 and "more than 1 value per channel" in str(error):
        raise ValueError(
            "BatchNorm cannot normalise a batch of 1 example, whose variance is 0: take"
            " batch_size >= 2 (in a DataLoader also drop_last=True), or a network with GroupNorm"
        ) from error


def _batches(course: _Course, stack: Stack, epoch: int, position: int) -> Iterator[Batch]:
    """Yield the batches of one epoch from `position` on, augmented."""
    data, passes, seed = course.data, course.passes, course.seed
    by_member, augment = course.by_member, passes.augment
    assert not isinstance(augment, str)  # names have become functions
    if by_member:
        seeds = [fold(member, "order", epoch) for member in stack.seeds]
        pairs = data.epoch_each(passes.batch_size, seeds, position)
    else:
        pairs = data.epoch(passes.batch_size, fold(seed, "order", epoch), position)
    for number, (x, y) in enumerate(pairs, position):
        if augment is not None and by_member:
            streams = [generator(member, "augment", epoch, number) for member in stack.seeds]
            augmented = [_augmented(augment, x[k], y[k], g) for k, g in enumerate(streams)]
            x, y = (stacked(part) for part in zip(*augmented, strict=True))
        elif augment is not None:
            x, y = _augmented(augment, x, y, generator(seed, "augment", epoch, number))
        yield Batch(x, y, by_member)


def _augmented(augment: Augment, x: Any, y: Tensor, stream: torch.Generator) -> tuple[Any, Tensor]:
    """Return the augmented batch; an augmentation with a method `pairs` moves targets as well."""
    pairs = getattr(augment, "pairs", None)
    several = isinstance(x, Rows)
    inputs = x.tree if isinstance(x, Rows) else x  # functions take what users gave
    changed, y = (augment(inputs, stream), y) if pairs is None else pairs(inputs, y, stream)
    return (as_rows(changed) if several else changed), y


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that no step is left half done; the second stops."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        flag.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)


class _Kept:
    """A state with its history and the best weights so far, as a checkpoint takes it."""

    def __init__(
        self, state: Any, history: dict[str, Any] | None, best: dict[str, Tensor] | None
    ) -> None:
        self.state, self.history, self.best = state, history, best
        self.mode_axes: dict[str, int | None] = getattr(state, "mode_axes", {}) | _common(state)

    def _asdict(self) -> dict[str, Any]:
        best = {} if self.best is None else {"best": self.best}
        return {**self.state._asdict(), "history": self.history, **best}

    def _replace(self, **changes: Any) -> _Kept:
        history, best = changes.pop("history"), changes.pop("best", None)
        return _Kept(self.state._replace(**changes), history, best)


def _common(state: Any) -> dict[str, None]:
    """Return the names of what has no axis of modes, since members train it in common."""
    names: list[str] = []
    for field, value in state._asdict().items():
        if isinstance(value, Stack):
            for name in value.common:
                names += [f"{field}/network/{name}", f"best/best/network/{name}"]
        elif isinstance(value, Optimization) and state.stack.common:
            common = {id(leaf) for leaf in state.stack.common.values()}
            names += [f"{field}/{n}" for n, leaf in enumerate(value.leaves) if id(leaf) in common]
    return dict.fromkeys(names)


def _save(course: _Course, checkpoint: Checkpoint, state: Any) -> None:
    history = {**course.recorder.numbers(), "threads": checkpoint.threads}
    kept = _Kept(state, history, None if course.selection is None else course.selection.tensors())
    save_training(checkpoint.folder, kept, state.step, checkpoint.identity)


def _load(course: _Course, checkpoint: Checkpoint, state: S) -> S | None:
    """Return the state of the last checkpoint, None if there is none."""
    total = course.reporter.total
    best = None if course.selection is None else course.selection.tensors()
    saved: Any = load_training(checkpoint.folder, _Kept(state, None, best), checkpoint.identity)
    if saved is None:
        return None
    with damage_named(checkpoint.folder):
        before = (saved.history or {}).pop("threads", checkpoint.threads)
        course.recorder.load(saved.history)
        if course.selection is not None:
            course.selection.load(saved.best)
        if not 0 <= saved.state.step <= total:
            raise ValueError(f"`step` is {saved.state.step}, of {total} in all")
    if before != checkpoint.threads and saved.state.step < total:
        warn(
            f"{checkpoint.folder} was written by a training with {before} of torch's threads, and"
            f" there are {checkpoint.threads} now: sums are rounded in another order, so its last"
            f" digits will differ. For the same bits, call torch.set_num_threads({before}) first",
        )
    return saved.state


def _stop(course: _Course, state: Any) -> None:
    checkpoint = course.checkpoint
    if checkpoint is None:
        raise KeyboardInterrupt(
            f"stopped after step {state.step:,}; nothing was saved: give `checkpoint=FOLDER` to be"
            " able to resume"
        )
    _save(course, checkpoint, state)
    raise KeyboardInterrupt(
        f"stopped after step {state.step:,}; the same call resumes from {checkpoint.folder}"
    )


def _divergence(step: int, losses: list[float], finite: float, passes: Passes) -> Divergence:
    """Return what to raise; `losses` are those of all modes, or of this rank's."""
    faulty = [k for k, value in enumerate(losses) if not math.isfinite(value)] or [0]
    before = "no step before it was finite" if math.isnan(finite) else f"last finite {finite:.4g}"
    partial = len(losses) < ranks.num_modes(len(losses))
    member = ranks.mode_number(faulty[0]) if partial else faulty[0]
    return Divergence(
        f"training diverged at step {step:,}: the loss of member {member} is"
        f" {losses[faulty[0]]} ({len(faulty)} of {len(losses)} members; mean loss"
        f" {before}). {passes.advice}"
    )


def _require_finite(stack: Stack, step: int, passes: Passes) -> None:
    """Look at parameters before they are kept: the loss can be finite one step longer."""
    for name, tensor in {**stack.params, **stack.extra, **stack.buffers}.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor.detach()).all():
            raise Divergence(
                f"training diverged at step {max(step - 1, 0):,}: '{name}' is not finite after this"
                f" step. {passes.advice}"
            )
