"""When ranks that train apart meet: to keep a checkpoint of one and the same step, and to stop
together.

Members that do not see each other need no messages, so their ranks drift apart. About once a second
they meet at a step that all have agreed on, and tell whether something failed, whether Ctrl-C came,
and, rank 0, whether a checkpoint is due and when to meet next. A rank that fails goes to the next
meeting, where the others hear of it. Where methods couple members, the others wait within a step
for a rank that fails there, and `ranks.in_step` tells them.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple, NoReturn

from torch import Tensor

from polymode.distributed import ranks

SECONDS = 1.0  # from one meeting to the next


class Told(NamedTuple):
    """What a meeting has agreed on."""

    due: bool
    interrupted: bool


class Meeting:
    """The meetings of one training; of a process by itself they are no more than the questions.

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

    def seen(self, mine: Tensor) -> list[float]:
        """Return the losses to look at: where modes are coupled, of all, since all stop then."""
        return (ranks.gather(mine) if self.coupled else mine).tolist()

    def at(self, step: int, due: bool, interrupted: bool) -> Told:
        """Return whether to keep a checkpoint, and whether to stop, after this step."""
        if self.alone:
            return Told(due, interrupted)
        if step < self.next:
            return Told(False, False)
        now = time.perf_counter()
        pace = max(now - self._time, 1e-6) / max(step - self._step, 1)
        self._step, self._time = step, now
        after = min(step + max(1, math.floor(SECONDS / pace)), self.total)
        if step < self.total:
            after = max(after, step + 1)
        found = ranks.numbers([0, int(interrupted), int(due), after])
        if found[:, 0].any():
            ranks.stop_together(None)
        self.next = int(found[0, 3])
        return Told(bool(found[0, 2]), bool(found[:, 1].any()))

    def failed(self, error: Exception) -> NoReturn:
        """Let the others know that this rank cannot go on, and raise the error."""
        known = getattr(error, "told", False)
        if not (self.alone or known or isinstance(error, ranks.RankProblem | ranks.OtherFailed)):
            if not self.coupled:
                ranks.numbers([1, 0, 0, 0])
                ranks.stop_together(error)
        raise error
