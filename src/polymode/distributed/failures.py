"""Words that a rank leaves for the others when it fails, in the store where all have met.

A rank that waits for a message hears nothing else, so one that fails must not let it wait. If all
have failed at the same point, after as many messages, nobody waits and the group is whole. Of one
that fails alone the others must learn: it leaves word why, and its connections close; whoever
waited for it looks for the word.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

SAME_SECONDS = 5.0  # within which ranks that fail alike have all failed
HEARD_SECONDS = 2.0  # for others to read a word before the process ends that may hold the store


class Words:
    """The words of one group of ranks.

    Args:
        store: a store of torch.distributed. rank: the number of this one. size: of all.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._count = 0  # failures of all ranks so far

    def fail(self, messages: int, why: str) -> bool:
        """Leave word of a failure after so many messages; return whether all others failed there
        as well."""
        keys = self._keys("failed", range(self._size))
        try:
            self._store.set(keys[self._rank], f"{messages} {why}")
            self._store.wait(keys, timedelta(seconds=SAME_SECONDS))
            points = {self._store.get(key).split()[0] for key in keys}
        except RuntimeError:  # somebody does not come, or the store is gone
            return False
        self._count += len(points) == 1
        return len(points) == 1

    def found(self) -> str | None:
        """Return the word of another rank, None if there is none to be read."""
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

    def wait_until_heard(self) -> None:
        """Wait for the others to read the word of this rank, but not for long."""
        try:
            heard = self._keys("heard", self._others)
            self._store.wait(heard, timedelta(seconds=HEARD_SECONDS))
        except RuntimeError:
            pass

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._size) if rank != self._rank]

    def _keys(self, kind: str, ranks: Any) -> list[str]:
        return [f"{kind}/{self._count}/{rank}" for rank in ranks]
