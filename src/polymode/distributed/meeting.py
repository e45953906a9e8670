"""Meetings of ranks in training: to write checkpoints of the same step, and to stop together.

Uncoupled members need no messages, so their ranks drift apart. About once a second they meet at an
agreed step and exchange whether something failed and whether Ctrl-C came; rank 0 adds whether a
checkpoint is due and when to meet next. A rank that fails goes to the next meeting, where the
others learn of it. Where methods couple members, the others wait within a step for a rank that
fails there, and `ranks.in_step` tells them.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple, NoReturn

from torch import Tensor

from polymode.distributed import ranks

SECONDS = 1.0  # from one meeting to the next


class Decision(NamedTuple):
    """What a meeting has agreed on: whether to write a checkpoint, whether to stop."""

    due: bool
    interrupted: bool


class Meeting:
    """The meetings of one training; a process by itself decides at once.

    Args:
        step: at which training begins. total: at which it ends.
    """

    def __init__(self, step: int, total: int) -> None:
        self.alone = ranks.sharing_now() is None
        self.next, self.total = min(step + 1, total), total
        self._step, self._time = step, time.perf_counter()
        self._before = ranks.traffic().calls

    @property
    def coupled(self) -> bool:
        """Whether members have exchanged something in this training."""
        return not self.alone and ranks.traffic().calls > self._before

    def seen(self, losses: Tensor) -> list[float]:
        """Return the losses to check: of all ranks where modes are coupled, since all stop then."""
        return (ranks.gather(losses) if self.coupled else losses).tolist()

    def at(self, step: int, due: bool, interrupted: bool) -> Decision:
        """Return whether to keep a checkpoint, and whether to stop, after this step."""
        if self.alone:
            return Decision(due, interrupted)
        if step < self.next:
            return Decision(False, False)
        now = time.perf_counter()
        pace = max(now - self._time, 1e-6) / max(step - self._step, 1)
        self._step, self._time = step, now
        after = min(step + max(1, math.floor(SECONDS / pace)), self.total)
        if step < self.total:
            after = max(after, step + 1)
        votes = ranks.numbers([0, int(interrupted), int(due), after])
        if votes[:, 0].any():
            ranks.stop_together(None)
        self.next = int(votes[0, 3])
        return Decision(bool(votes[0, 2]), bool(votes[:, 1].any()))

    def failed(self, error: Exception) -> NoReturn:
        """Tell the others that this rank failed, and raise the error."""
        if not (self.alone or ranks.is_announced(error) or self.coupled):
            ranks.numbers([1, 0, 0, 0])
            ranks.stop_together(error)
        raise error
