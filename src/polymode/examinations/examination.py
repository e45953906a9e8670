"""`examine`: one examination of a posterior, by name; and how examinations are asked for in text.

An examination is a function `(post, task, *, options) -> Findings`. It is entered by

    @EXAMINATIONS.register(
        "equivariance",
        summary="...",                       # one line
        measures={"same_predictions": "..."},  # what each of its numbers is, for the report
        check=check_options,                 # optional: (**options), raises ValueError
    )

and its figures, if any, by `DISPLAYS.register` in `plots.py` of its subject, or in `plots/`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from polymode.core.checks import check_call, check_keywords
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
        "polymode.examinations.reference",
        "polymode.examinations.evidence",
        "polymode.examinations.pairs",
        "polymode.symmetry.examination",
        "polymode.equivariance.examination",
        "polymode.adversary.examination",
    ],
)


class Asked(NamedTuple):
    """An examination with its options, checked; `str` is as `--examine` takes it.

    >>> print(Asked("equivariance", {"group": "C4", "sizes": [1, 2]}))
    equivariance:group=C4,sizes=[1, 2]
    """

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        given = ",".join(f"{key}={value_text(value)}" for key, value in self.options.items())
        return f"{self.name}:{given}" if given else self.name


def ask(name: str, options: Mapping[str, Any]) -> Asked:
    """Return a checked request, or raise `ValueError` that says what is wrong with it."""
    entry = EXAMINATIONS.get(name)
    check_keywords(entry.value, f"examination '{name}'", options)
    if check := entry.metadata.get("check"):
        check(**options)
    return Asked(name, dict(sorted(options.items())))


def read_asked(text: str) -> Asked:
    """Return what "NAME" or "NAME:key=value,key=value" asks for; values are JSON, or else text."""
    check_call(read_asked, locals())
    name, _, given = text.partition(":")
    options = {}
    for part in re.split(r",(?=\s*\w+\s*=)", given) if given.strip() else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(
                f"an examination is asked for as NAME or NAME:key=value,key=value, got '{text}'"
            )
        options[key.strip()] = read_value(value.strip())
    return ask(name.strip(), options)


def examine(post: Posterior, task: Task | str, name: str, /, **options: Any) -> Findings:
    """Return what an examination finds about a posterior.

    Args:
        post: what `pm.fit` returned. task: the one it was fitted on, or another of its kind; a
            name stands for `pm.task(name)`.
        name: see `polymode list examinations`. options: of this examination.
    """
    task = as_task(task, "examine")
    check_call(examine, locals(), but=("task",))
    plain = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in options.items()}
    asked = ask(name, plain)
    return EXAMINATIONS.get(name).value(post, task, **plain).signed(str(asked))
