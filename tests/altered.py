"""JSON values with one thing altered: another type, out of range, missing, nested too deeply."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

ODD: list[Any] = [
    None, True, 0, -1, 1, 3, 2**31, 10**6, 10**30, -(10**30), 0.5, 1e308, float("nan"),
    float("inf"), "", "x", "../x", "\x1b[2J", "a" * 300, [], [[]], [1], ["x"], [None], [-1],
    [10**9, 10**9], {}, {"x": 1}, {"name": "x"}, {"is": "value"},
]  # fmt: skip


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where a value can be replaced: keys and numbers that lead to it."""
    pairs: Any = ()
    if isinstance(content, dict):
        pairs = content.items()
    elif isinstance(content, list):
        pairs = list(enumerate(content))[:3]  # the others are alike
    for key, value in pairs:
        yield (*path, key)
        yield from places(value, (*path, key))


def altered(content: Any, draw: random.Random) -> tuple[str, Any]:
    """Return what was done to a copy of `content`, and the copy."""
    made = copy.deepcopy(content)
    path = draw.choice(list(places(made)))
    holder = made
    for key in path[:-1]:
        holder = holder[key]
    last, what = path[-1], draw.random()
    if what < 0.12:
        del holder[last]
        return f"{path} removed", made
    if what < 0.2:
        value: Any = holder[last]
        for _ in range(draw.choice([1, 3, 300])):
            value = [value] if draw.random() < 0.5 else {"x": value}
        holder[last] = value
        return f"{path} nested", made
    if what < 0.26 and isinstance(holder, dict):
        holder[draw.choice(["x", "num_modes", "is", "lr", "\x1b[2J"])] = draw.choice(ODD)
        return f"something put beside {path}", made
    value = draw.choice(ODD)
    holder[last] = value
    return f"{path} = {value!r:.40}", made
