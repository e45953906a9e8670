"""Import time, each round in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

from ..cases import Case
from . import Job


def torch(case: Case) -> Job:
    """`import torch` alone."""
    return _fresh("import torch")


def polymode(case: Case) -> Job:
    """`import polymode` with the names of a first session, which are imported when used."""
    return _fresh("import polymode as pm; pm.fit, pm.task, pm.nets, pm.load, pm.Prediction")


def bare(case: Case) -> Job:
    """The interpreter alone."""
    return _fresh("pass")


def cli_help(case: Case) -> Job:
    """`polymode --help`."""
    return _run("-m", "polymode", "--help")


def cli_list(case: Case) -> Job:
    """`polymode list methods`, which needs the library."""
    return _run("-m", "polymode", "list", "methods")


def _fresh(statement: str) -> Job:
    return _run("-c", statement)


def _run(*words: str) -> Job:
    def run() -> None:
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)

    return Job(run, 1)
