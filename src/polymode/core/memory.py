"""Free memory: looked up before large allocations, and kept by the process for the next step."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Return the memory that can still be taken on `device`, in bytes."""
    if torch.device(device).type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached  # torch's cache can be taken, too
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")
        )
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return int(min([free, *(_left(*files) for files in _limits())]))


def _left(limit: Path, used: Path, statistics: Path) -> float:
    """Return the bytes that a control group may still take; its cached files are released on
    demand."""
    try:
        lines = (line.split() for line in statistics.read_text().splitlines())
        cached = {name: int(value) for name, value in lines}
        back = cached.get("total_inactive_file", cached.get("inactive_file", 0))
        return max(0, int(limit.read_text()) - int(used.read_text()) + back)
    except (OSError, ValueError):  # it is gone, or without a limit
        return math.inf


@cache
def _limits(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> tuple[tuple[Path, Path, Path], ...]:
    """Return the files with limit, use and statistics of each control group of this process and
    its parents: containers and job schedulers give less memory than the machine has."""
    limits = []
    try:
        lines = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return ()
    for _, controllers, path in lines:
        if controllers == "":
            top, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inner = top / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder == top or top in folder.parents:
                limit, used = (folder / name for name in names)
                if limit.is_file() and used.is_file():
                    limits.append((limit, used, folder / "memory.stat"))
    return tuple(limits)


def require_free(need: float, what: str, remedy: str, device: torch.device | str = "cpu") -> None:
    """Refuse what needs more memory than `device` has free, before any of it is taken."""
    free = free_bytes(device)
    if need > free:
        raise ValueError(f"{what} need {human(need)} of memory; {human(free)} free. {remedy}")


class refuse_huge(TorchDispatchMode, ContextDecorator):
    """Refuse tensors in the block, or decorated function, that are larger than what is free.

    The system promises more memory than there is, and ends the process when it is used.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__()
        self.what, self.remedy = what, remedy

    def _recreate_cm(self) -> refuse_huge:
        return refuse_huge(self.what, self.remedy)  # one per call: calls may nest or run in threads

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        named = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
        size, dtype, device = ({**named, **kwargs}.get(n) for n in ("size", "dtype", "device"))
        if size is not None and "self" not in named and torch.device(device or "cpu").type == "cpu":
            need = math.prod(size) * (dtype or torch.get_default_dtype()).itemsize
            shape = " × ".join(f"{n:,}" for n in size)
            if need > _SMALL:
                require_free(need, f"{self.what}: the {shape} numbers of one tensor", self.remedy)
        return func(*args, **kwargs)


def saved_bytes(work: Callable[[], Any]) -> int:
    """Return how many bytes `work()` keeps for its backward passes, each storage counted once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # itself, it would hold the graph that holds it

    notes = _counters.notes
    notes.append(note)
    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            work()
    finally:
        notes.pop()
    return sum(sizes.values())


def count_saved(tensor: Tensor) -> None:
    """Count a tensor that is kept for a backward pass without autograd, if `saved_bytes` counts."""
    for note in _counters.notes:
        note(tensor)


_SMALL = 2**24  # bytes, below which free memory is not looked up


class _Counters(threading.local):
    """The functions that count saved tensors in this thread."""

    def __init__(self) -> None:
        self.notes: list[Callable[[Tensor], Tensor]] = []


_counters = _Counters()


def human(num_bytes: float) -> str:
    """Return a size for people.

    >>> human(41_000_000)
    '41 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


@cache
def keep_freed_memory() -> None:
    """Ask the C library, once per process, to keep what tensors free for the next ones.

    By default glibc hands blocks of some megabytes back to the system, and every step of training
    gets them anew, page by page, filled with zeros: 5 to 20 % of the time of a ResNet-8. Heaps of
    threads come in pieces of 64 MB, which are kept if so much is reserved in advance. Other C
    libraries are left alone, and so is glibc if `POLYMODE_KEEP_MEMORY` is "0".
    """
    if os.environ.get("POLYMODE_KEEP_MEMORY") == "0" or not _glibc():
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, 2**25)  # the most that mallopt takes
    library.mallopt(_TRIM_THRESHOLD, -1)
    library.mallopt(_TOP_PAD, 2**26)


def _glibc() -> bool:
    try:
        return "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (AttributeError, ValueError, OSError):
        return False


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of mallopt(3), from malloc.h
