"""Ranks: processes that share the modes of one posterior, and the messages between them.

Under torchrun every process runs the same program. Rank r of k holds about M / k consecutive modes,
and what a member draws depends only on its number (`core/rng.py`), so uncoupled members need no
messages. Coupled members exchange what they need by `gather`. Outside such a group, and in a group
of one, every function here returns its argument, so the same code runs in all cases.

Everything here but `launched` and `place` is collective: every rank calls it, in the same order.

Shapes: `M` modes of all ranks, `m` modes of one.
"""

from __future__ import annotations

import atexit
import gc
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from polymode._version import __version__
from polymode.core.rows import map_leaves
from polymode.core.text import first_line

T = TypeVar("T")

REACH_SECONDS = 10.0  # to reach the address where all meet; torch tries twice
START_SECONDS = 60.0  # for others to come there: longer than a slow disk takes to import torch
SAME_SECONDS = 5.0  # within which ranks that fail alike have all failed
READ_SECONDS = 2.0  # for others to read a note before the process ends that may hold the store
WAIT_SECONDS = 1800.0  # for another rank within a run, which may score predictions meanwhile
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankProblem(RuntimeError):
    """A group of ranks that cannot be formed, or has lost a member; the message says why."""


class OtherFailed(RuntimeError):
    """Another rank failed; the group is intact."""


class Share(NamedTuple):
    """Modes [first, last) of `num_modes` that this rank holds."""

    first: int
    last: int
    num_modes: int

    @property
    def modes(self) -> slice:
        return slice(self.first, self.last)


class Traffic(NamedTuple):
    """Tensors that this rank has received: messages and bytes."""

    calls: int = 0
    num_bytes: int = 0


class FailureBoard:
    """Notes in the common store by which ranks learn why another failed.

    A rank that waits for a message hears nothing else, so a failing rank must not leave it waiting.
    If all have failed at the same point, after as many messages, nobody waits and the group is
    intact. A rank that fails by itself posts why and closes its connections; those that waited for
    it then read the note.

    Args:
        store: a store of torch.distributed. rank: the number of this one. size: of all.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._count = 0  # failures of all ranks so far

    def post(self, messages: int, why: str) -> bool:
        """Post a failure after so many messages; return whether all ranks failed there."""
        keys = self._keys("failed", range(self._size))
        try:
            self._store.set(keys[self._rank], f"{messages} {why}")
            self._store.wait(keys, timedelta(seconds=SAME_SECONDS))
            points = {self._store.get(key).split()[0] for key in keys}
        except RuntimeError:  # a rank does not come, or the store is gone
            return False
        self._count += len(points) == 1
        return len(points) == 1

    def read(self) -> str | None:
        """Return the note of another rank, None if there is none."""
        try:
            for rank in self._others:
                (key,) = self._keys("failed", [rank])
                if self._store.check([key]):
                    why = self._store.get(key).decode().partition(" ")[2]
                    self._store.set(*self._keys("heard", [self._rank]), "")
                    return f"rank {rank} failed: {why}"
        except RuntimeError:
            pass
        return None

    def wait_until_read(self) -> None:
        """Wait briefly for the others to read the note of this rank."""
        try:
            read = self._keys("heard", self._others)
            self._store.wait(read, timedelta(seconds=READ_SECONDS))
        except RuntimeError:
            pass

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank]

    def _keys(self, kind: str, ranks: Any) -> list[str]:
        return [f"{kind}/{self._count}/{rank}" for rank in ranks]


_share: list[Share | None] = [None]  # of the running fits, the innermost last
_traffic = Traffic()
_messages = 0  # begun by this rank
_board: FailureBoard | None = None


class _Lost(NamedTuple):
    """The number of this rank in a group that has broken up, and why."""

    rank: int
    size: int
    why: str


_lost: _Lost | None = None


def launched() -> bool:
    """Whether this process was started as one of several, by torchrun or the like."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1") and "RANK" in os.environ


def place() -> tuple[int, int]:
    """Return the number of this rank and of all, (0, 1) outside a group."""
    if _lost is not None:
        return _lost.rank, _lost.size
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def require_one(what: str) -> None:
    """Refuse several ranks."""
    size = place()[1]
    if size > 1:
        raise ValueError(
            f"{what}, which {size} ranks cannot do; run it in one process: without torchrun"
        )


def is_first() -> bool:
    """Whether this process writes files and speaks for all."""
    return place()[0] == 0


def start() -> None:
    """Join the group that torchrun describes, unless this process is alone or has joined.

    Refuses ranks of another release of polymode or torch.
    """
    _refuse_if_lost()
    if not launched() or not dist.is_available() or dist.is_initialized():
        return
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise RankProblem(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is not set: start"
            " with torchrun, or unset WORLD_SIZE to run alone"
        )
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    global _board
    limit = float(os.environ.get("POLYMODE_START_SECONDS", START_SECONDS))
    reach = timedelta(seconds=min(limit, REACH_SECONDS))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=reach))
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"polymode/{again}", store)  # else it holds addresses of the dead
        store.set_timeout(timedelta(seconds=limit))
        _compare_versions(store, rank, size)
        wait = timedelta(seconds=float(os.environ.get("POLYMODE_WAIT_SECONDS", WAIT_SECONDS)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
        _board = FailureBoard(store, rank, size)
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, RankProblem):
            raise
        raise RankProblem(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} did not find the others at"
            f" {where} within {limit:g} s ({first_line(error)}); look at MASTER_ADDR and"
            " MASTER_PORT, at firewalls, and whether all ranks were started"
        ) from None
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    atexit.register(leave)


def leave() -> None:
    """Leave the group; others that wait for this rank learn of it at once.

    The store goes with it: one that is still held when the interpreter ends aborts the process.
    """
    global _board
    if _board is None and not dist.is_initialized():
        return  # a collection takes .3 s where torch is loaded
    if dist.is_initialized():
        dist.destroy_process_group()
    _board = None
    gc.collect()


def leave_together() -> None:
    """Leave the group when all are done: nobody's connections are cut off before."""
    everyones(None)
    leave()


def _compare_versions(store: Any, rank: int, size: int) -> None:
    """Refuse to work with ranks whose numbers may differ."""
    version = f"polymode {__version__}, torch {torch.__version__.split('+')[0]}"
    store.set(f"version/{rank}", version)
    versions = [store.get(f"version/{r}").decode() for r in range(size)]
    store.set(f"read/{rank}", "")
    for r, theirs in enumerate(versions):
        if theirs != version:
            store.wait([f"read/{reader}" for reader in range(size)])  # rank 0 may hold it
            raise RankProblem(
                f"rank {rank} ({platform.node()}) has {version}, rank {r} has {theirs}: members"
                " would not be trained alike; install the same versions everywhere"
            )


# ---------------------------------------------------------------- who holds what


def share_of(num_modes: int) -> Share:
    """Return the modes of this rank, about M / k in a row; refuses ranks that would hold none."""
    rank, size = place()
    if num_modes < size:
        modes = f"{num_modes} mode{'s' if num_modes > 1 else ''}"
        raise ValueError(
            f"{size} ranks cannot share {modes}: each holds at least one. Start"
            f" {num_modes} (torchrun --nproc-per-node={num_modes}), or take num_modes >= {size}"
        )
    ends = _ends(num_modes, size)
    return Share(ends[rank], ends[rank + 1], num_modes)


def _ends(num_modes: int, size: int) -> list[int]:
    """Return where shares begin and end; the first are the largest, since rank 0 tries for all."""
    return [-(-num_modes * rank // size) for rank in range(size + 1)]


@contextmanager
def sharing(share: Share | None) -> Iterator[None]:
    """Let `gather` and the like refer to these modes; None: to a rank by itself, as in trials."""
    _share.append(share)
    try:
        yield
    finally:
        _share.pop()


def sharing_now() -> Share | None:
    """Return what this rank holds of the work at hand; None if it holds all of it."""
    return _share[-1] if place()[1] > 1 else None


def num_modes(local_count: int) -> int:
    """Return M of all ranks where this one works on `local_count` modes."""
    share = sharing_now()
    return local_count if share is None else share.num_modes


def mode_number(local_index: int) -> int:
    """Return the number among all modes of this rank's mode `local_index`."""
    share = sharing_now()
    return local_index if share is None else share.first + local_index


def own(modes: Tensor) -> Tensor:
    """Return this rank's part of a tensor (M, ...) of all modes."""
    share = sharing_now()
    return modes if share is None else modes[share.modes]


# ---------------------------------------------------------------- messages


def gather(part: Tensor, axis: int = 0) -> Tensor:
    """Return what all ranks hold of a tensor, joined along `axis` in the order of modes."""
    if sharing_now() is None:
        return part
    return _gathered(part, axis, mode_counts())


def rows_of_all(part: Tensor) -> Tensor:
    """Return what each of k ranks holds (k, b, F) of the rows that this rank is to reduce.

    About B / k rows fall to each rank, in their order; `join_rows` is the way back.

    Args:
        part: (B, F), the same shape on all ranks.
    """
    rank, size = place()
    lengths = _shares(len(part), place()[1])
    received = part.new_empty(size * lengths[rank], *part.shape[1:])
    with _message():
        dist.all_to_all_single(
            received, part.detach().contiguous(), [lengths[rank]] * size, lengths
        )
    _count(received.numel() * (size - 1) // size * part.element_size())
    return received.unflatten(0, (size, lengths[rank]))


def join_rows(rows: Tensor, total: int) -> Tensor:
    """Return the rows (B, F) of all ranks, from those (b, F) that this one has reduced."""
    return _gathered(rows, 0, _shares(total, place()[1]))


def _gathered(part: Tensor, axis: int, lengths: list[int]) -> Tensor:
    """Return the parts of all ranks, of these lengths along `axis`."""
    rank, _ = place()
    part = part.detach().contiguous()
    shapes = [(*part.shape[:axis], length, *part.shape[axis + 1 :]) for length in lengths]
    parts = [part if r == rank else part.new_empty(s) for r, s in enumerate(shapes)]
    assert part.shape == shapes[rank], (part.shape, shapes[rank])
    with _message():
        if len(set(lengths)) == 1:
            dist.all_gather([torch.empty_like(part) if p is part else p for p in parts], part)
        else:
            for source, tensor in enumerate(parts):
                dist.broadcast(tensor, source)
    _count((sum(p.numel() for p in parts) - part.numel()) * part.element_size())
    return torch.cat(parts, axis)


def _count(num_bytes: int) -> None:
    global _traffic
    _traffic = Traffic(_traffic.calls + 1, _traffic.num_bytes + num_bytes)


def mode_counts() -> list[int]:
    """Return how many modes each rank holds of the work at hand."""
    share = sharing_now()
    assert share is not None
    return _shares(share.num_modes, place()[1])


def _shares(total: int, size: int) -> list[int]:
    ends = _ends(total, size)
    return [b - a for a, b in zip(ends, ends[1:], strict=False)]


def traffic() -> Traffic:
    """Return the tensors that this rank has received since the process began."""
    return _traffic


def everyones(value: T) -> list[T]:
    """Return the values of all ranks, small ones that can be pickled, in their order."""
    _, size = place()
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    with _message():
        dist.all_gather_object(values, value)
    return values


def firsts(make: Callable[[], T]) -> T:
    """Return what rank 0 makes, on all ranks; nobody else makes it."""
    rank, size = place()
    if size == 1:
        return make()
    result, failure = None, None
    try:
        result = make() if rank == 0 else None
    except Exception as error:
        failure = error
    message: list[Any] = [result, failure and _text(failure)]
    with _message():
        dist.broadcast_object_list(message, 0)
    if failure is not None:
        failure.announced = True  # type: ignore[attr-defined]
        raise failure
    result, cause = message
    if cause is not None:
        raise OtherFailed(f"rank 0 of {size} failed: {cause}")
    return result  # type: ignore[no-any-return]


def agreed(choose: Callable[[], T]) -> T:
    """Return a choice that rank 0 makes by itself for the work that ranks share."""
    if sharing_now() is None:
        return choose()

    def alone() -> T:
        with sharing(None):
            return choose()

    return firsts(alone)


@contextmanager
def together() -> Iterator[None]:
    """Do something in which ranks do not meet; if it fails on one, all stop."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        if sharing_now() is None:
            raise
        failure = error
    if sharing_now() is not None:
        stop_together(failure)


def stop_together(failure: Exception | None) -> None:
    """Raise what failed here, or else what failed on another rank."""
    texts = everyones(failure and _text(failure))
    if failure is not None:
        failure.announced = True  # type: ignore[attr-defined]
        raise failure
    for rank, text in enumerate(texts):
        if text is not None:
            raise OtherFailed(f"rank {rank} of {len(texts)} failed: {text}")


@contextmanager
def in_step() -> Iterator[None]:
    """Do what all ranks do. If it fails on all alike, each raises its error. A rank that fails by
    itself posts why and leaves the group, so that the others do not wait for it."""
    try:
        yield
    except Exception as error:
        if place()[1] > 1 and not is_announced(error):
            error.announced = True  # type: ignore[attr-defined]
            if _board is None or not _board.post(_messages, _text(error)):
                _lose(f"has left the others since it failed alone: {_text(error)}")
        raise


def is_announced(error: Exception) -> bool:
    """Whether the other ranks have learned of this error."""
    return getattr(error, "announced", False) or isinstance(error, RankProblem | OtherFailed)


def _lose(why: str) -> None:
    """Leave the group for good: it has lost a member."""
    global _lost
    _lost, board = _Lost(*place(), why), _board
    leave()
    if _lost.rank == 0 and board is not None:
        board.wait_until_read()


def _refuse_if_lost() -> None:
    if _lost is not None:
        rank, size, why = _lost
        raise RankProblem(
            f"rank {rank} of {size} {why}. What was kept by a checkpoint is there: start all ranks"
            " again"
        )


def same(what: str, value: Any) -> None:
    """Refuse to go on where ranks were given different things."""
    for rank, theirs in enumerate(everyones(value)):
        if theirs != value:
            raise ValueError(
                f"ranks were given different {what}: {_short(value)} on rank {place()[0]},"
                f" {_short(theirs)} on rank {rank}; all must run the same call"
            )


def numbers(local: Sequence[int]) -> Tensor:
    """Return integers of all ranks, (k, ...): cheaper than `everyones`."""
    _, size = place()
    sent = torch.tensor(list(local))
    received = [torch.empty_like(sent) for _ in range(size)]
    with _message():
        dist.all_gather(received, sent)
    return torch.stack(received)


class _Joined(torch.autograd.Function):
    """`gather` whose gradient is that of this rank's part, of a loss that every rank computes."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        ctx.share = sharing_now()
        return gather(part)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad[ctx.share.modes]


class _Spread(torch.autograd.Function):
    """The same on every rank; its gradient is the sum of those of all parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        grad = grad.contiguous()
        with _message():
            dist.all_reduce(grad)
        return grad


def joined(part: Tensor) -> Tensor:
    """`gather` along the first axis, differentiable together with `spread`."""
    return part if sharing_now() is None else _Joined.apply(part)  # type: ignore[no-any-return]


def spread(x: Any) -> Any:
    """Return inputs that all ranks hold; gradients with respect to them are those of all modes."""
    if sharing_now() is None:
        return x
    return map_leaves(x, lambda leaf: _Spread.apply(leaf) if leaf.is_floating_point() else leaf)


@contextmanager
def _message() -> Iterator[None]:
    """Count a message, and say in one line that a rank is gone; the library speaks of sockets."""
    _refuse_if_lost()
    global _messages
    _messages += 1
    try:
        yield
    except RuntimeError as error:
        late = "imed out" in str(error) or "imeout" in str(error)
        why = "does not answer" if late else "has ended"
        note = None if _board is None else _board.read()
        _lose(f"waits for another that {why} ({note or first_line(error)})")
    _refuse_if_lost()


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _short(value: Any) -> str:
    return f"{value!r:.80}"
