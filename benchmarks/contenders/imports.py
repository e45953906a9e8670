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


def _fresh(statement: str) -> Job:
    def run() -> None:
        subprocess.run([sys.executable, "-c", statement], check=True)

    return Job(run, 1)
