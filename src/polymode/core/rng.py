"""Random streams by name: every number drawn is a function of the seed and of what it is drawn for.

A stream is addressed by a path, `fold(seed, "init", member)`, instead of being handed on from one
draw to the next. Therefore member 3 draws the same numbers in a stack of 4 and of 40, and a run
that resumes at step 1,000 needs no saved generator state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def fold(seed: int, *path: int | str) -> int:
    """Return the seed of the stream `path` below `seed`, an integer in [0, 2**63).

    >>> fold(0, "init", 3) == fold(0, "init", 3), fold(0, "init", 3) == fold(0, "init", 4)
    (True, False)
    """
    address = "/".join([str(int(seed)), *(str(part) for part in path)])
    digest = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def fold_each(seed: int, name: str, count: int, first: int = 0) -> Iterator[int]:
    """Yield `fold(seed, name, k)` for `first` ≤ k < `count`, no two of which torch starts alike.

    Its CPU generators take 32 bits of a seed, so among 93,000 streams one pair is alike by chance.
    Of such, the later one is that of (name, k, "again", 1), or 2, ...
    """
    taken: set[int] = set()
    for k in range(count):
        stream, again = fold(seed, name, k), 0
        while stream % 2**32 in taken:
            again += 1
            stream = fold(seed, name, k, "again", again)
        taken.add(stream % 2**32)
        if k >= first:
            yield stream


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a CPU generator at the start of the stream `path` below `seed`."""
    return torch.Generator().manual_seed(fold(seed, *path))


@contextmanager
def global_stream(seed: int, *others: torch.Generator) -> Iterator[None]:
    """Start torch's global CPU stream, and `others`, at `seed`; put them back after.

    `torch.manual_seed` would also note the call for every kind of accelerator, which takes longer
    than to build a small network.
    """
    streams = [torch.default_generator, *others]
    before = [stream.get_state() for stream in streams]
    for stream in streams:
        stream.manual_seed(seed)
    try:
        yield
    finally:
        for stream, state in zip(streams, before, strict=True):
            stream.set_state(state)
