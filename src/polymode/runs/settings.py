"""Seeds and options in few letters, as a command line takes them; complaints are one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from polymode.core.text import value_text


class UsageProblem(Exception):
    """Something asked for that cannot be run; the message is one line with the remedy."""


class Setting(NamedTuple):
    """One option: its owner (a method, "task", "net", or "" for every method), key and value."""

    owner: str
    key: str
    value: Any

    def __str__(self) -> str:
        """As `--set` takes it.

        >>> print(Setting("net", "hidden", [32]), Setting("", "optimizer", "sgd"))
        net.hidden=[32] optimizer=sgd
        """
        name = f"{self.owner}.{self.key}" if self.owner else self.key
        return f"{name}={value_text(self.value)}"


def span(seeds: Sequence[int]) -> str:
    """Return seeds as `--seeds` takes them, runs of three or more shortened.

    >>> span([0, 1, 2, 7]), span([4, 5])
    ('0-2,7', '4,5')
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    parts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in runs]
    return ",".join(parts)
