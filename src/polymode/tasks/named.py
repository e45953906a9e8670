"""The named tasks, and `task`, which builds one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from polymode.core.checks import check_call
from polymode.core.registry import Registry, suggest
from polymode.tasks.task import Task

TASKS: Registry[Callable[..., Task]] = Registry(
    "task",
    [
        "polymode.tasks.toy",
        "polymode.tasks.dense",
        "polymode.tasks.images",
        "polymode.tasks.tables",
        "polymode.tasks.frames.from_frame",
        "polymode.tasks.bodies",
    ],
)
"""Builders `(*, seed, **options) -> Task`, each with the metadata description, source, licence,
kind ("toy" or "real"), size (examples in train / val / test at the default options) and, for those
that need files, data (names of data sets)."""


def toy_task(
    name: str,
    *,
    description: str,
    size: str,
    source: str = "own code",
    licence: str = "Apache-2.0 (generated)",
) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Return a decorator that registers a toy task; its options are checked at each call."""

    def enter(build: Callable[..., Task]) -> Callable[..., Task]:
        @wraps(build)
        def checked(**options: Any) -> Task:
            check_call(build, options)
            return build(**options)

        facts = {"description": description, "source": source, "licence": licence}
        return TASKS.register(name, **facts, kind="toy", size=size)(checked)

    return enter


def task(name: str, seed: int = 0, **options: Any) -> Task:
    """Return the registered task `name`, built with `seed` and the options of its builder.

    >>> task("two_moons", noise=0.2).input_shape
    (2,)
    """
    check_call(task, locals())
    build = TASKS.get(name).value
    accepted = [option for option in inspect.signature(build).parameters if option != "seed"]
    for option in options:
        if option not in accepted:
            raise ValueError(
                f"Task '{name}' has no option '{option}'.{suggest(option, accepted)}"
                f" Its options: {', '.join(accepted) or 'none'}."
            )
    return build(seed=seed, **options)


def list_tasks(pattern: str = "*") -> list[str]:
    """Return the names of the registered tasks that match the glob `pattern`, sorted.

    >>> list_tasks("two*")
    ['two_modes', 'two_moons']
    """
    check_call(list_tasks, locals())
    return TASKS.names(pattern)


def as_task(value: Any, caller: str) -> Task:
    """Return a task, also by its name, or say what was given to the `caller` instead."""
    if isinstance(value, Task):
        return value
    if isinstance(value, str):
        return task(value)
    raise ValueError(
        f"`task` of {caller} is a {type(value).__name__}; give a name such as 'digits', or"
        " pm.Task(train=(x, y), likelihood=...)"
    )
