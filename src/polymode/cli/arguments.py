"""From what is typed to what is meant: seeds and `--set`; every complaint is one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polymode.core.text import read_value
from polymode.runs.settings import Setting, UsageProblem


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of "0-2" or "0,3,5-7", each once, in order.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise UsageProblem(
                f"--seeds takes numbers of at least 0 such as 0-2 or 0,3,7, got '{text}'"
            )
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise UsageProblem(f"--seeds {part.strip()} runs backwards; write {last}-{first}")
        if last - first >= 10_000 or last >= 2**63:
            raise UsageProblem(f"--seeds {part.strip()}: at most 10,000 seeds, each below 2^63")
        seeds += range(first, last + 1)
    return list(dict.fromkeys(seeds))


def parse_settings(settings: Sequence[str]) -> list[Setting]:
    """Return each "owner.key=value"; the owner is "" for "key=value".

    Values are read as JSON, with true, false and null; what is not JSON is text.

    >>> parse_settings(["deep_ensemble.num_modes=10"])
    [Setting(owner='deep_ensemble', key='num_modes', value=10)]
    """
    parsed = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        owner, _, key = name.strip().rpartition(".")
        if not equals or not key:
            raise UsageProblem(
                f"--set takes key=value or method.key=value, got '{setting}'; for example"
                " --set deep_ensemble.num_modes=10"
            )
        parsed.append(Setting(owner, key, read_value(text)))
    return parsed
