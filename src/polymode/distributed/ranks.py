"""Ranks: processes that share the modes of one posterior, and what they say to each other.

Under torchrun every process runs the same program. Rank r of k holds about M / k
modes in a row, and what a member draws depends on its number alone (`core/rng.py`), so members that
do not see each other need no message at all. Members that do exchange what couples them by
`gather`. Outside such a group, and in a group of one, every function here returns what it was
given: there is one code.

Everything here but `launched` and `place` is a meeting: every rank must call it, in the same order.

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
from polymode.core.text import first_line
from polymode.distributed.failures import Words

T = TypeVar("T")

REACH_SECONDS = 10.0  # to reach the address where all meet; torch tries twice
START_SECONDS = 60.0  # for others to come there: longer than a slow disk takes to import torch
WAIT_SECONDS = 1800.0  # for another rank within a run, which may score predictions meanwhile
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankProblem(RuntimeError):
    """A group of ranks that cannot be formed, or has lost a member; the message says why."""


class OtherFailed(RuntimeError):
    """Another rank could not go on; the group is whole."""


class Share(NamedTuple):
    """Modes [first, last) of `num_modes` that this rank holds."""

    first: int
    last: int
    num_modes: int

    @property
    def modes(self) -> slice:
        return slice(self.first, self.last)


class Traffic(NamedTuple):
    """What `gather` has brought to this rank from the others."""

    calls: int = 0
    num_bytes: int = 0


_share: list[Share | None] = [None]  # that of the fit at work, the innermost last
_traffic = Traffic()
_messages = 0  # that this rank has begun
_words: Words | None = None


class _Lost(NamedTuple):
    """Which rank this one was in a group that is no more, and why."""

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
    global _words
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
        _words = Words(store, rank, size)
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
    """Leave the group; others that wait for this rank are told at once.

    The store goes with it: one that is still held when the interpreter ends aborts the process.
    """
    global _words
    if dist.is_initialized():
        dist.destroy_process_group()
    _words = None
    gc.collect()


def leave_together() -> None:
    """Leave the group when all are done: nobody's connections are cut off before."""
    everyones(None)
    leave()


def _compare_versions(store: Any, rank: int, size: int) -> None:
    """Refuse to work with ranks whose numbers may differ."""
    mine = f"polymode {__version__}, torch {torch.__version__.split('+')[0]}"
    store.set(f"version/{rank}", mine)
    every = [store.get(f"version/{other}").decode() for other in range(size)]
    store.set(f"read/{rank}", "")
    for other, theirs in enumerate(every):
        if theirs != mine:
            store.wait([f"read/{each}" for each in range(size)])  # rank 0 may hold it
            raise RankProblem(
                f"rank {rank} ({platform.node()}) has {mine}, rank {other} has {theirs}: members"
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
    """Let `gather` and the like speak of these modes; None: of a rank by itself, as in trials."""
    _share.append(share)
    try:
        yield
    finally:
        _share.pop()


def sharing_now() -> Share | None:
    """Return what this rank holds of the work at hand; None if it holds all of it."""
    return _share[-1] if place()[1] > 1 else None


def num_modes(mine: int) -> int:
    """Return M of all ranks where this one works on `mine`."""
    share = sharing_now()
    return mine if share is None else share.num_modes


def mode_number(mine: int) -> int:
    """Return the number among all modes of this rank's mode `mine`."""
    share = sharing_now()
    return mine if share is None else share.first + mine


def own(whole: Tensor) -> Tensor:
    """Return this rank's modes of a tensor (M, ...)."""
    share = sharing_now()
    return whole if share is None else whole[share.modes]


# ---------------------------------------------------------------- messages


def gather(mine: Tensor, axis: int = 0) -> Tensor:
    """Return what all ranks hold of a tensor, joined along `axis` in the order of modes."""
    if sharing_now() is None:
        return mine
    rank, size = place()
    mine = mine.detach().contiguous()
    lengths = _lengths(size)
    shapes = [(*mine.shape[:axis], length, *mine.shape[axis + 1 :]) for length in lengths]
    parts = [mine if r == rank else mine.new_empty(s) for r, s in enumerate(shapes)]
    assert mine.shape == shapes[rank], (mine.shape, shapes[rank])
    with _told():
        if len(set(lengths)) == 1:
            dist.all_gather([torch.empty_like(mine) if p is mine else p for p in parts], mine)
        else:
            for source, part in enumerate(parts):
                dist.broadcast(part, source)
    global _traffic
    came = sum(part.numel() for part in parts) - mine.numel()
    _traffic = Traffic(_traffic.calls + 1, _traffic.num_bytes + came * mine.element_size())
    return torch.cat(parts, axis)


def _lengths(size: int) -> list[int]:
    share = sharing_now()
    assert share is not None
    ends = _ends(share.num_modes, size)
    return [b - a for a, b in zip(ends, ends[1:], strict=False)]


def traffic() -> Traffic:
    """Return what this rank has received by `gather` since the process began."""
    return _traffic


def everyones(value: T) -> list[T]:
    """Return the values of all ranks, small ones that can be pickled, in their order."""
    _, size = place()
    if size == 1:
        return [value]
    found: list[Any] = [None] * size
    with _told():
        dist.all_gather_object(found, value)
    return found


def firsts(make: Callable[[], T]) -> T:
    """Return what rank 0 makes, on all ranks; nobody else makes it."""
    rank, size = place()
    if size == 1:
        return make()
    made, failed = None, None
    try:
        made = make() if rank == 0 else None
    except Exception as error:
        failed = error
    told: list[Any] = [made, failed and _text(failed)]
    with _told():
        dist.broadcast_object_list(told, 0)
    if failed is not None:
        failed.told = True  # type: ignore[attr-defined]
        raise failed
    if told[1] is not None:
        raise OtherFailed(f"rank 0 of {size} failed: {told[1]}")
    return told[0]


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
    mine: Exception | None = None
    try:
        yield
    except Exception as error:
        if sharing_now() is None:
            raise
        mine = error
    if sharing_now() is not None:
        stop_together(mine)


def stop_together(mine: Exception | None) -> None:
    """Raise what failed here, or else what failed on another rank."""
    texts = everyones(mine and _text(mine))
    if mine is not None:
        mine.told = True  # type: ignore[attr-defined]
        raise mine
    for rank, text in enumerate(texts):
        if text is not None:
            raise OtherFailed(f"rank {rank} of {len(texts)} failed: {text}")


@contextmanager
def in_step() -> Iterator[None]:
    """Do what all ranks do. If it fails on all alike, each raises its error; if on one alone, that
    one leaves word for the others and the group, so that they do not wait for it."""
    try:
        yield
    except Exception as error:
        told = getattr(error, "told", False) or isinstance(error, RankProblem | OtherFailed)
        if place()[1] > 1 and not told:
            error.told = True  # type: ignore[attr-defined]
            if _words is None or not _words.fail(_messages, _text(error)):
                _lose(f"has left the others since it failed alone: {_text(error)}")
        raise


def _lose(why: str) -> None:
    """Leave the group for good: it is not whole."""
    global _lost
    _lost, words = _Lost(*place(), why), _words
    leave()
    if _lost.rank == 0 and words is not None:
        words.wait_until_heard()


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


def numbers(mine: Sequence[int]) -> Tensor:
    """Return integers of all ranks, (k, ...): cheaper than `everyones`."""
    _, size = place()
    sent = torch.tensor(list(mine))
    found = [torch.empty_like(sent) for _ in range(size)]
    with _told():
        dist.all_gather(found, sent)
    return torch.stack(found)


class _Joined(torch.autograd.Function):
    """`gather` whose gradient is that of this rank's part, of a loss that every rank computes."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        ctx.share = sharing_now()
        return gather(mine)

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
        with _told():
            dist.all_reduce(grad)
        return grad


def joined(mine: Tensor) -> Tensor:
    """`gather` along the first axis, differentiable together with `spread`."""
    return mine if sharing_now() is None else _Joined.apply(mine)  # type: ignore[no-any-return]


def spread(x: Tensor) -> Tensor:
    """Return inputs that all ranks hold; gradients with respect to them are those of all modes."""
    return x if sharing_now() is None else _Spread.apply(x)  # type: ignore[no-any-return]


@contextmanager
def _told() -> Iterator[None]:
    """Say in one line that a rank is gone; the library's words are of sockets."""
    _refuse_if_lost()
    global _messages
    _messages += 1
    try:
        yield
    except RuntimeError as error:
        late = "imed out" in str(error) or "imeout" in str(error)
        why = "does not answer" if late else "has ended"
        word = None if _words is None else _words.found()
        _lose(f"waits for another that {why} ({word or first_line(error)})")
    _refuse_if_lost()


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _short(value: Any) -> str:
    return f"{value!r:.80}"
