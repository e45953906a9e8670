"""`examine`: one examination of a posterior, by name; and requests for examinations as text.

An examination is a function `(post, task, options) -> Findings`. Its options are declared by a
class (`core/options.py`), an object of which it gets; one without options takes post and task. It
is registered by

    @EXAMINATIONS.register(
        "equivariance",
        summary="...",                       # one line
        measures={"same_predictions": "..."},  # what each of its numbers is, for the report
        options=Equivariance,                # left out if it has none
    )

and its figures, if any, by `DISPLAYS.register` in the `plots.py` beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from polymode.core.checks import check_call
from polymode.core.options import Config, build
from polymode.core.registry import Registry
from polymode.core.text import read_value, value_text
from polymode.examinations.findings import Findings
from polymode.posterior import Posterior
from polymode.tasks import Task
from polymode.tasks.named import as_task

Examination = Callable[..., Findings]

EXAMINATIONS: Registry[Examination] = Registry(
    "examination",
    modules=[
        "polymode.examinations.convergence",
        "polymode.chains.examination",
        "polymode.examinations.reference_posterior",
        "polymode.examinations.laplace_evidence",
        "polymode.examinations.pairs",
        "polymode.examinations.price",
        "polymode.examinations.groups",
        "polymode.symmetry.examination",
        "polymode.equivariance.examination",
        "polymode.adversary.examination",
    ],
)


class Asked(NamedTuple):
    """An examination with its checked options; `str` gives the form of `--examine`.

    >>> print(Asked("equivariance", {"group": "C4", "sizes": [1, 2]}))
    equivariance:group=C4,sizes=[1, 2]
    """

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        options = ",".join(f"{key}={value_text(value)}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


@dataclass(frozen=True, kw_only=True)
class NoOptions(Config):
    """The options of an examination that has none."""


def options_of(name: str) -> type[Config]:
    """Return the class of an examination's options."""
    return EXAMINATIONS.get(name).metadata.get("options", NoOptions)


def ask(name: str, options: Mapping[str, Any]) -> Asked:
    """Return a checked request, or raise `ValueError` with the reason."""
    build(options_of(name), f"examination '{name}'", options)
    return Asked(name, dict(sorted(options.items())))


def read_asked(text: str) -> Asked:
    """Parse "NAME" or "NAME:key=value,key=value"; values are JSON, or else text."""
    check_call(read_asked, locals())
    name, _, options_text = text.partition(":")
    options = {}
    for part in re.split(r",(?=\s*\w+\s*=)", options_text) if options_text.strip() else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(
                f"an examination is asked for as NAME or NAME:key=value,key=value, got '{text}'"
            )
        options[key.strip()] = read_value(value.strip())
    return ask(name.strip(), options)


def examine(post: Posterior, task: Task | str, name: str, /, **options: Any) -> Findings:
    """Return the findings of an examination of a posterior.

    Args:
        post: what `pm.fit` returned. task: the one it was fitted on, or another of its kind; a
            name stands for `pm.task(name)`.
        name: see `polymode list examinations`. options: of this examination.
    """
    task = as_task(task, "examine")
    check_call(examine, locals(), but=("task",))
    plain = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in options.items()}
    request = ask(name, plain)
    entry = EXAMINATIONS.get(name)
    chosen = [options_of(name)(**plain)] if "options" in entry.metadata else []
    return entry.value(post, task, *chosen).signed(str(request))
